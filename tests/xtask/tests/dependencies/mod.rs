//! Dependencies point down: no stage uses a later one, no engine crate uses a stage, and in a crate no modules that lie
//! side by side import each other in a circle.

mod cycles;
mod modules;
mod packages;

use std::collections::BTreeSet;

use modules::Modules;
use packages::{Package, Place};

use crate::*;

#[test]
fn no_package_depends_on_one_above_it() {
    let problems = packages::problems(&packages::of(&root()));
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// A fresh copy of the course has the learner's tool within a minute.
#[test]
fn the_learners_tool_is_built_without_candle() {
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.args(["tree", "--package=course", "--edges=normal,build", "--prefix=none"]);
    let answer = cargo.args(["--format={p}", "--offline"]).current_dir(root()).output().unwrap();
    let packages = String::from_utf8(answer.stdout).unwrap();
    let ours: BTreeSet<&str> = packages
        .lines()
        .filter(|package| package.contains("(/"))
        .filter_map(|package| package.split(' ').next())
        .collect();
    assert_eq!(ours, BTreeSet::from(["course", "drawing", "harness"]), "{packages}");
    assert!(!packages.contains("candle"), "{packages}");
}

#[test]
fn a_dependency_on_a_package_above_is_found() {
    let package = |folder: &str, needs: &[&str], for_tests: &[&str]| Package {
        folder: folder.to_owned(),
        needs: needs.iter().map(|&need| need.to_owned()).collect(),
        for_tests: for_tests.iter().map(|&need| need.to_owned()).collect(),
        tests: Vec::new(),
    };
    let below = [
        package("01-one", &["engine/ops"], &[]),
        package("02-two", &["01-one", "engine/ops"], &["engine/harness"]),
        package("03-three", &["01-one", "02-two", "engine/backends"], &[]),
        package("engine/ops", &[], &[]),
        package("engine/harness", &["engine/ops"], &[]),
        package("engine/backends", &["02-two", "engine/harness"], &[]),
        package("tests", &["01-one", "03-three"], &[]),
    ];
    assert_eq!(packages::problems(&below), Vec::<String>::new());
    for (added, told) in [
        (
            package("02-b", &["03-three"], &[]),
            "02-b depends on 03-three, a stage that is not before it",
        ),
        (
            package("03-b", &["03-three"], &[]),
            "03-b depends on 03-three, a stage that is not before it",
        ),
        (
            package("02-b", &[], &["03-three"]),
            "02-b depends on 03-three, a stage that is not before it",
        ),
        (
            package("01-b", &["engine/backends"], &[]),
            "01-b depends on 02-two through engine/backends",
        ),
        (package("engine/b", &["01-one"], &[]), "engine/b depends on 01-one, a stage"),
        (package("engine/b", &[], &["01-one"]), "engine/b depends on 01-one, a stage"),
        (
            package("02-b", &["tests"], &[]),
            "02-b depends on tests, which is neither a stage nor in engine/",
        ),
    ] {
        let all = [&below[..], &[added]].concat();
        assert_eq!(packages::problems(&all), [told]);
    }
}

fn cycles_of(root: &Path) -> Vec<(String, String)> {
    let modules = Modules::read(root);
    cycles::of(&modules).iter().map(|cycle| (cycle.to_string(), cycle.told())).collect()
}

#[test]
fn modules_that_lie_side_by_side_form_no_cycle() {
    let mut problems = Vec::new();
    for package in packages::of(&root()) {
        if package.place() == Place::Elsewhere {
            continue;
        }
        for target in ["src/lib.rs", "src/main.rs"] {
            let name = format!("{}/{target}", package.folder);
            let file = root().join(&name);
            for (cycle, told) in if file.exists() { cycles_of(&file) } else { Vec::new() } {
                let told = told.replace(&format!("{}/", root().display()), "");
                problems.push(format!(
                    "{name}: these modules use each other in a circle: {cycle}\n{told}"
                ));
            }
        }
    }
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

fn crate_of(files: &[(&str, &str)]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let root = folder.path().join("lib.rs");
    (folder, root)
}

#[test]
fn a_cycle_is_found_however_it_is_written() {
    let lib = "mod a; mod b; mod c { mod inner { fn f() { crate::b::one(); } } }";
    for (a, b, cycle) in [
        ("use crate::b::One;", "use super::a;", "a, b"),
        ("fn f() -> crate::b::One { todo!() }", "use super::{a::{Two}};", "a, b"),
        ("fn f() { println!(\"{}\", crate::b::one()) }", "impl super::a::T for S {}", "a, b"),
        ("use crate::c;", "macro_rules! m { () => { $crate::a::f() } }", "a, b, c"),
        ("mod deep { use super::super::b; }", "use crate::a::*;", "a, b"),
    ] {
        let (_folder, root) = crate_of(&[("lib.rs", lib), ("a.rs", a), ("b/mod.rs", b)]);
        let found = cycles_of(&root);
        assert_eq!(found.len(), 1, "{a} {b}: {found:?}");
        assert_eq!(found[0].0, cycle, "{a} {b}");
        assert!(
            found[0].1.contains("a.rs:1: ") && found[0].1.contains("b/mod.rs:1: "),
            "{found:?}"
        );
    }
    // Below the root, and the file of each line.
    let (_folder, root) = crate_of(&[
        ("lib.rs", "mod outer;"),
        ("outer/mod.rs", "mod x; mod y; pub struct Shared;"),
        ("outer/x.rs", "\nuse super::Shared;\nuse super::y::Y;"),
        ("outer/y.rs", "use crate::outer::x;"),
    ]);
    let told = cycles_of(&root);
    assert_eq!(told[0].0, "outer: x, y");
    assert!(told[0].1.contains("outer/x.rs:3: use super::y::Y;"), "{told:?}");
}

#[test]
fn parents_and_tests_make_no_cycle() {
    let (_folder, root) = crate_of(&[
        ("lib.rs", "mod a; mod b; pub struct Error; #[cfg(test)] mod tests;"),
        ("a/mod.rs", "mod child; use crate::{Error, b}; use child::C; fn f() { self::child::f() }"),
        ("a/child.rs", "use super::super::Error; use super::f; use crate::a;"),
        (
            "b.rs",
            "use crate::Error; #[cfg(test)] use crate::a; #[cfg(all(test, unix))] mod tests { use crate::a; }",
        ),
        ("tests.rs", "use crate::{a, b};"),
    ]);
    assert_eq!(cycles_of(&root), []);
}

/// The targets are listed in each manifest, so a file that none of them names would be left out in silence.
#[test]
fn every_file_of_tests_is_compiled() {
    for package in packages::of(&root()) {
        let compiled: BTreeSet<PathBuf> =
            package.tests.iter().flat_map(|root| Modules::read(root).files).collect();
        let folder = root().join(&package.folder).join("tests");
        let mut waiting = if folder.exists() { vec![folder] } else { Vec::new() };
        while let Some(folder) = waiting.pop() {
            for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    waiting.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let path = path.canonicalize().unwrap();
                    assert!(compiled.contains(&path), "no [[test]] compiles {}", path.display());
                }
            }
        }
    }
}

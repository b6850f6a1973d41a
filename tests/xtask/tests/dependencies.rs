//! Dependencies point down: no stage uses a later one, no engine crate uses a stage, and no modules that lie side by side use each
//! other in a circle. And every file of tests is compiled.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use regex::Regex;
use walkdir::WalkDir;

use crate::*;

/// The packages of the workspace: the folder of each, below the root, and its metadata from cargo.
fn packages() -> Vec<(String, Value)> {
    let answer = cargo(&["metadata", "--no-deps", "--offline", "--format-version=1"]);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let packages = answer["packages"].as_array().unwrap().iter();
    let with_folder = |package: &Value| {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        (below_root(manifest.parent().unwrap()), package.clone())
    };
    packages.map(with_folder).collect()
}

fn cargo(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).args(words).current_dir(root()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn below_root(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

/// How far up a package is: the engine is below all stages. One crate of it implements a trait of stage 2. Tests and tools have no
/// level.
fn level(folder: &str) -> Option<u32> {
    match folder.split_once('-').and_then(|(number, _)| number.parse::<u32>().ok()) {
        Some(stage) => Some(2 * stage),
        None if folder == "engine/backends" => Some(5),
        None => folder.starts_with("engine/").then_some(0),
    }
}

#[test]
fn a_stage_uses_earlier_stages_and_the_engine_and_the_engine_uses_no_stage() {
    for (folder, package) in packages() {
        let Some(own) = level(&folder) else { continue };
        for need in package["dependencies"].as_array().unwrap() {
            let Some(path) = need["path"].as_str() else { continue };
            let need = below_root(Path::new(path));
            let is_below = level(&need).is_some_and(|other| other < own || (own, other) == (0, 0));
            assert!(is_below, "{folder} depends on {need}, which is not below it");
        }
    }
}

/// A fresh copy of the course has the learner's tool within a minute, and the tools of the book within seconds.
#[test]
fn the_first_tools_are_built_without_candle() {
    for (package, needs) in
        [("course", &["course", "drawing", "harness"][..]), ("tools", &["tools"])]
    {
        let edges = ["tree", "--package", package, "--edges=normal,build", "--prefix=none"];
        let packages = cargo(&[&edges[..], &["--format={p}", "--offline"]].concat());
        let ours = packages.lines().filter(|package| package.contains("(/"));
        let ours: BTreeSet<&str> = ours.filter_map(|package| package.split(' ').next()).collect();
        assert_eq!(ours, BTreeSet::from_iter(needs.iter().copied()), "{packages}");
        assert!(!packages.contains("candle"), "{packages}");
    }
}

fn rust_files(folder: &Path) -> Vec<(PathBuf, String)> {
    let paths = WalkDir::new(folder).into_iter().flatten().map(walkdir::DirEntry::into_path);
    let rust = paths.filter(|path| path.extension().is_some_and(|ending| ending == "rs"));
    rust.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// The modules in a folder, each with its siblings that its code names by `crate` or `super`. Comments and tests are left out.
fn uses(folder: &Path, path: &str) -> BTreeMap<String, BTreeSet<String>> {
    let ignored = Regex::new(r"(?m)^\s*//.*$|^\s*#\[cfg\((?:all\()?test\b.*\]\n.*$").unwrap();
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    for (file, text) in rust_files(folder) {
        let below = file.strip_prefix(folder).unwrap().with_extension("");
        let name = below.iter().next().unwrap().to_str().unwrap().to_owned();
        if !["lib", "main", "mod"].contains(&&*name) && !below.iter().any(|it| it == "tests") {
            let text = text.split("#[cfg(test)]\nmod ").next().unwrap();
            texts.entry(name).or_default().push_str(&ignored.replace_all(text, ""));
        }
    }
    let named = |name: &String, text: &str| {
        let named =
            format!(r"\b(?:crate{path}|super(?:::super)*)::(?:{name}\b|\{{[^;]*\b{name}\b)");
        Regex::new(&named).unwrap().is_match(text)
    };
    let of = |own: &String, text: &str| {
        let others = texts.keys().filter(|other| *other != own);
        others.filter(|other| named(other, text)).cloned().collect()
    };
    texts.iter().map(|(own, text)| (own.clone(), of(own, text))).collect()
}

#[test]
fn modules_that_lie_side_by_side_form_no_circle() {
    for (package, _) in packages().into_iter().filter(|(folder, _)| level(folder).is_some()) {
        let src = root().join(&package).join("src");
        for entry in WalkDir::new(&src).into_iter().flatten().filter(|it| it.path().is_dir()) {
            let below = entry.path().strip_prefix(&src).unwrap().display().to_string();
            let path =
                if below.is_empty() { below } else { format!("::{}", below.replace('/', "::")) };
            let mut uses = uses(entry.path(), &path);
            // A module that uses no other module is in no circle.
            while let Some(name) = uses.keys().find(|name| uses[*name].is_empty()).cloned() {
                uses.remove(&name);
                uses.values_mut().for_each(|used| _ = used.remove(&name));
            }
            assert!(uses.is_empty(), "{package}{path}: these use each other: {uses:?}");
        }
    }
}

/// The targets are listed in each manifest, so cargo would leave out a file that none of them names.
#[test]
fn every_file_of_tests_is_compiled() {
    for (folder, package) in packages() {
        let targets = package["targets"].as_array().unwrap().iter();
        let roots: Vec<&str> = targets.map(|target| target["src_path"].as_str().unwrap()).collect();
        let files = rust_files(&root().join(&folder).join("tests"));
        for (path, _) in files.iter().filter(|(path, _)| !roots.contains(&path.to_str().unwrap())) {
            let is_folder = path.file_name().unwrap() == "mod.rs";
            let module = if is_folder { path.parent().unwrap() } else { path };
            let declared = format!("mod {};", module.file_stem().unwrap().to_str().unwrap());
            let file = module.file_name().unwrap().to_str().unwrap();
            let named =
                |text: &str| text.contains(&declared) || text.contains(&format!("/{file}\"]"));
            assert!(
                files.iter().any(|(_, text)| named(text)),
                "no [[test]] compiles {}",
                path.display()
            );
        }
    }
}

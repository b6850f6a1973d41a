//! Writes, for `verify.rs`, a copy of each check for every candidate: the exercise as it is given, its solution, and
//! every known wrong answer.
//!
//! A check begins with the module of `exercise.rs`, which rustfmt skips: the file is the learner's, and may not be there
//! yet. In a copy the path is that of the candidate, so one compilation of `verify.rs` holds them all, under names such
//! as `ch02_ring::wrong_whole_tensors::…`.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// How every check begins, for the file that a learner writes in.
const CANDIDATE: &str = "#[rustfmt::skip]\n#[path = \"exercise.rs\"]\nmod exercise;\n";

/// Names a folder of wrong answers, `EXERCISE/NAME.rs`, which `cargo course verify` and `soak` write. Without this variable
/// there are none.
const WRONG_ANSWERS: &str = "EXERCISES_WRONG_ANSWERS";

/// What the module of an answer that is no model carries.
const LENIENT: &str = "#[allow(warnings, clippy::all)]";

/// What the module of a solution carries: the lints that this package's manifest leaves out, again.
const STRICT: &str = "#[warn(unused_imports, unused_variables, clippy::todo)]";

/// A file that a check can be run against: the name of its module in `verify.rs`, its path, and the module's lints.
type Candidate = (String, PathBuf, &'static str);

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // A new exercise needs an entry here, so this is touched whenever one comes or goes.
    watch(&root.join("Cargo.toml"));
    watch(&root.join("build.rs"));
    println!("cargo::rerun-if-env-changed={WRONG_ANSWERS}");
    let mut modules = String::new();
    for folder in listing(&root)? {
        let exercise = name_of(&folder)?;
        if !folder.is_dir() || !exercise.starts_with("ch") {
            continue;
        }
        let check = check(&folder)?;
        writeln!(modules, "mod {exercise} {{")?;
        for (name, path, lints) in candidates(&folder)? {
            let copy = out.join(format!("{exercise}_{name}.rs"));
            let its_own = format!("#[path = {path:?}]\nmod exercise;\n");
            fs::write(&copy, check.replacen(CANDIDATE, &its_own, 1))?;
            writeln!(modules, "    {lints}\n    #[path = {copy:?}]\n    mod {name};")?;
        }
        modules.push_str("}\n");
    }
    fs::write(out.join("candidates.rs"), modules)?;
    Ok(())
}

/// The text of an exercise's check.
fn check(folder: &Path) -> Result<String, Box<dyn Error>> {
    let path = folder.join("check.rs");
    watch(&path);
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    if !text.starts_with(CANDIDATE) {
        return Err(format!("{} does not begin with\n{CANDIDATE}", path.display()).into());
    }
    Ok(text)
}

fn candidates(folder: &Path) -> Result<Vec<Candidate>, Box<dyn Error>> {
    let mut candidates = vec![
        ("stub".to_owned(), folder.join("given.rs"), LENIENT),
        ("solution".to_owned(), folder.join("solution.rs"), STRICT),
    ];
    let Some(wrong) = env::var_os(WRONG_ANSWERS) else { return Ok(candidates) };
    let wrong = PathBuf::from(wrong).join(name_of(folder)?);
    watch(&wrong);
    // An exercise may have no wrong answer.
    for path in if wrong.exists() { listing(&wrong)? } else { Vec::new() } {
        let name = name_of(&path)?;
        let stem = name.strip_suffix(".rs").ok_or_else(|| format!("{name} is no Rust file"))?;
        candidates.push((format!("wrong_{stem}"), path, LENIENT));
    }
    Ok(candidates)
}

/// What is in a folder, by name.
fn listing(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn name_of(path: &Path) -> Result<String, Box<dyn Error>> {
    let name = path.file_name().and_then(|name| name.to_str());
    Ok(name.ok_or_else(|| format!("{} has a name that is no text", path.display()))?.to_owned())
}

fn watch(path: &Path) {
    println!("cargo::rerun-if-changed={}", path.display());
}

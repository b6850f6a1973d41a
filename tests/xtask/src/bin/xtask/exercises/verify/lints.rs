//! The findings of rustfmt and clippy in the solutions.
//!
//! The solutions are in no target that `cargo fmt` and `cargo clippy` know of.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;

use super::build::{self, Module};
use course::exercises::tree::Tree;
use course::process::{Group, How};

/// Solutions that are not formatted, and the news that clippy has warnings, which it prints on standard error.
pub(super) fn problems(
    tree: &Tree,
    folder: &Path,
    solutions: &[Module],
) -> anyhow::Result<Vec<String>> {
    let mut problems = unformatted(tree)?;
    let mut clippy = build::command(tree, "clippy", &folder.join("solutions.rs"), solutions)?;
    clippy.args(["--quiet", "--", "--deny", "warnings"]).stdout(Stdio::null());
    let how = Group::start(&mut clippy).and_then(|group| group.wait(Duration::MAX));
    if !matches!(how.context("cargo clippy")?, How::Alone(status) if status.success()) {
        problems.push("clippy has something to say of the solutions or checks, above".to_owned());
    }
    Ok(problems)
}

fn unformatted(tree: &Tree) -> anyhow::Result<Vec<String>> {
    let files: Vec<PathBuf> =
        tree.exercises.iter().flat_map(|one| [one.solution(), one.check(), one.file()]).collect();
    let output = Command::new("rustfmt")
        .current_dir(&tree.root)
        .args(["--check", "--files-with-diff", "--edition", &tree.edition])
        .args(files)
        .stdin(Stdio::null())
        .output()
        .context("rustfmt cannot be started")?;
    let changed = String::from_utf8_lossy(&output.stdout);
    let told = |file: &str| format!("{}: rustfmt would change it", tree.relative(file.as_ref()));
    let mut problems: Vec<String> = changed.lines().map(told).collect();
    problems.sort_unstable();
    if problems.is_empty() && !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        problems.push(format!("rustfmt failed: {}", why.trim()));
    }
    Ok(problems)
}

//! What rustfmt and clippy say of the exercises.
//!
//! The package's test targets are left out by `cargo test` and by `cargo clippy --all-targets`, because the
//! readers' answers are among them. Here the solutions get what all other code gets.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;

use super::super::cargo::cargo;
use super::super::tree::{PACKAGE, Tree};
use super::TARGET;
use course::process::{Group, How};

/// Files that are not formatted, and that clippy has something to say, which it tells on standard error.
pub(super) fn problems(tree: &Tree) -> anyhow::Result<Vec<String>> {
    let mut problems = unformatted(tree)?;
    let mut clippy = cargo(&tree.root);
    clippy
        .args(["clippy", "--quiet", "--release", "--package", PACKAGE, "--test", TARGET])
        .args(["--", "--deny", "warnings"])
        .stdout(Stdio::null());
    let how = Group::start(&mut clippy).and_then(|group| group.wait(Duration::MAX));
    if !matches!(how.context("cargo clippy")?, How::Alone(status) if status.success()) {
        problems.push("clippy has something to say of the solutions or checks, above".to_owned());
    }
    Ok(problems)
}

fn unformatted(tree: &Tree) -> anyhow::Result<Vec<String>> {
    let mut files: Vec<PathBuf> = Vec::new();
    for exercise in &tree.exercises {
        files.extend([exercise.given(), exercise.check(), exercise.solution()]);
    }
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

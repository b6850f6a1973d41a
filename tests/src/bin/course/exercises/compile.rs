//! A test target of the package `exercises`, compiled by cargo, which tells what does not compile.

use std::io::{BufReader, IsTerminal as _, stderr};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context as _;

use super::cargo::{Message, cargo, messages};
use super::tree::{PACKAGE, Tree};

/// Asks for a test target as the reader's own command does: what one has built, the other does not build
/// again.
pub(super) fn arguments(command: &mut Command, target: &str) {
    command.args(["test", "--release", "--package", PACKAGE, "--test", target, "--no-run"]);
}

/// Compiles a test target and returns its executable; none if it does not compile, which cargo has told on
/// standard error, in colour on a terminal.
///
/// # Errors
///
/// When cargo cannot be started or understood.
pub(super) fn compile(tree: &Tree, target: &str) -> anyhow::Result<Option<PathBuf>> {
    let mut command = cargo(&tree.root);
    arguments(&mut command, target);
    command.arg("--message-format=json-render-diagnostics");
    if !stderr().is_terminal() {
        // Lines of progress are for people.
        command.arg("--quiet");
    }
    let mut child = command.stdout(Stdio::piped()).spawn().context("cargo cannot be started")?;
    let stdout = child.stdout.take().context("cargo's answers are piped")?;
    let mut executable = None;
    for message in messages(BufReader::new(stdout)) {
        if let Message::Artifact { target: built, executable: Some(file) } = message?
            && built.name == target
        {
            executable = Some(file);
        }
    }
    let compiled = child.wait().context("cargo")?.success();
    Ok(executable.filter(|_| compiled))
}

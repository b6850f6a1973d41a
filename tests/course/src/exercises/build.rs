//! The program that checks an answer, compiled by cargo.

use std::fs::{self, DirEntry};
use std::io::{IsTerminal as _, stderr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;
use harness::machine::available_cores;
use harness::report::{counted, error_line};
use serde_json::Value;

use super::cargo::{self, Build, cargo};
use super::program::Outcome;
use super::progress::Fingerprint;
use super::tree::{Exercise, PACKAGE, Tree};
use crate::process::How;

/// The environment variable with the fingerprint of an answer and its check. An exercise reads it at compile time, so cargo compiles
/// another fingerprint again. cargo itself compares times only, and an older answer may be restored with its old time.
const FINGERPRINT: &str = "COURSE_FINGERPRINT";

/// The last lines of a failure of cargo that are shown.
const LINES: usize = 8;

/// The first build of the stages: minutes of work that the cores share, and minutes in which one core works.
const MINUTES: (usize, usize) = (9, 1);

/// How an answer is compiled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Speed {
    /// The build takes seconds, as the package's profile has it.
    OfTheBuild,
    /// The answer is optimised. Nothing else is compiled again, and both programs are kept.
    OfTheAnswer,
}

/// Compiles the program of an exercise with the answer, which have this fingerprint. Prints the messages of the compiler and
/// of cargo. Returns the program, or the outcome of a check without a program.
pub fn program_of(
    tree: &Tree,
    exercise: &Exercise,
    fingerprint: &Fingerprint,
    speed: Speed,
    wanted: &dyn Fn() -> bool,
) -> anyhow::Result<Result<PathBuf, Outcome>> {
    let target = &exercise.name;
    let mut command = cargo();
    command.args(["build", "--release", "--package", PACKAGE, "--bin", target]);
    compile(tree, command, target, &fingerprint.text(), speed, wanted)
}

/// Does the same for a `command` that builds the program `target` of answers with these fingerprints.
pub fn compile(
    tree: &Tree,
    mut command: Command,
    target: &str,
    fingerprint: &str,
    speed: Speed,
    wanted: &dyn Fn() -> bool,
) -> anyhow::Result<Result<PathBuf, Outcome>> {
    announce_the_first(tree);
    if speed == Speed::OfTheAnswer {
        command.arg("--config").arg(format!("profile.release.package.{PACKAGE}.opt-level=3"));
    }
    command.env(FINGERPRINT, fingerprint);
    let colour = if console::colors_enabled_stderr() { "-diagnostic-rendered-ansi" } else { "" };
    command.arg(format!("--message-format=json{colour}"));
    let to_terminal = stderr().is_terminal();
    if !to_terminal {
        // Only a terminal shows progress.
        command.arg("--quiet");
    }
    compiled(cargo::build(&mut command, to_terminal, wanted)?, target)
}

/// Prints how long the first build of the package takes.
fn announce_the_first(tree: &Tree) {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let of_package =
        |entry: DirEntry| entry.file_name().to_string_lossy().starts_with(&format!("{PACKAGE}-"));
    let was_built = |folder: &Path| entries(&folder.join("release/.fingerprint")).any(of_package);
    // A build for a target that the settings name has a folder of its own.
    let of_targets = || entries(&tree.build).any(|target| was_built(&target.path()));
    if !was_built(&tree.build) && !of_targets() {
        let (shared, alone) = MINUTES;
        let minutes = counted(alone + shared.div_ceil(available_cores()), "minute");
        let cores = counted(available_cores(), "core");
        error_line(format_args!(
            "The first check compiles the stages: about {minutes} on {cores}. A later check takes seconds."
        ));
    }
}

/// Prints lines of cargo and of the compiler as they are.
fn forward(lines: &str) {
    if !lines.is_empty() {
        error_line(lines.strip_suffix('\n').unwrap_or(lines));
    }
}

fn compiled(build: Build, target: &str) -> anyhow::Result<Result<PathBuf, Outcome>> {
    if let How::Interrupted = build.how {
        return Ok(Err(Outcome::Interrupted));
    }
    let (mut mistaken, mut signature) = (false, false);
    for message in &build.messages {
        let (of, message) = (&message["target"]["name"], &message["message"]);
        forward(text(&message["rendered"]));
        if of == target && text(&message["level"]).starts_with("error") {
            // A missing linker is an error without a place in the text.
            mistaken |= message["spans"].as_array().is_some_and(|spans| !spans.is_empty());
            signature |= is_about_the_signature(message);
        }
    }
    let compiled = match build.executable(target) {
        Some(executable) if build.succeeded() => Ok(executable),
        None if build.succeeded() => bail!("cargo has compiled {target} and names no executable"),
        _ if mistaken || signature => Err(Outcome::DoesNotCompile { signature }),
        // The caller prints these lines.
        _ => {
            let lines: Vec<&str> = build.said.trim().lines().collect();
            let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
            return Ok(Err(Outcome::CargoFailed(last)));
        }
    };
    forward(&build.said);
    Ok(compiled)
}

/// Whether an error is in the last line of an exercise, `exercises::check!(…)`, or the line is missing.
fn is_about_the_signature(message: &Value) -> bool {
    /// There is no `main`.
    const NO_MAIN: &str = "E0601";
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut lines = list(&message["spans"]).into_iter().flat_map(|span| list(&span["text"]));
    lines.any(|line| text(&line["text"]).trim_start().starts_with("exercises::check!"))
        || message["code"]["code"] == NO_MAIN
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

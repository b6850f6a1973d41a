//! The program that checks an answer, compiled by cargo.

use std::fs;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::UNIX_EPOCH;

use anyhow::{Context as _, bail};
use harness::report::{counted, file};

use super::cargo::{self, Build, Diagnostic, Message, cargo};
use super::progress::Fingerprint;
use super::tree::{Exercise, PACKAGE, Tree};
use crate::process::How;

/// The most builds of one check. A second build is needed when another process compiles the same program at the same time.
const TIMES: usize = 3;

/// The last lines of a failure of cargo that are shown.
const LINES: usize = 8;

/// The first build of the stages: minutes of work that the cores share, and minutes in which one core works.
const MINUTES: (usize, usize) = (9, 1);

#[derive(Clone, Debug)]
pub enum Compiled {
    To(PathBuf),
    /// The compiler has reported mistakes in the answer on standard error.
    Mistaken {
        /// Whether the check cannot call the answer.
        signature: bool,
    },
    /// cargo failed for another reason: the last lines of its output, or nothing if the terminal shows them.
    Failed(String),
    Interrupted,
}

/// Compiles the check of an exercise with the answer, which have this fingerprint.
///
/// cargo compares the times of files, and does not notice an older answer that is restored with its old time. So an
/// executable that cargo has not compiled just now counts only with a note of this fingerprint.
pub fn check_of(
    tree: &Tree,
    exercise: &Exercise,
    fingerprint: &Fingerprint,
    wanted: &dyn Fn() -> bool,
) -> anyhow::Result<Compiled> {
    announce_the_first(tree);
    let target = &exercise.name;
    for _ in 0..TIMES {
        let build = build(tree, target, wanted)?;
        let Some((executable, fresh)) = executable(&build, target) else {
            return outcome(build, target);
        };
        if fresh && !is_made_from(&executable, fingerprint) {
            forget(&executable, target)?;
            continue;
        }
        return outcome(build, target);
    }
    bail!("somebody else compiles {target} at the same time; try again")
}

/// Prints how long the first build of the package takes.
fn announce_the_first(tree: &Tree) {
    let fingerprints = tree.target.join("release").join(".fingerprint");
    let is_of_package = |name: &str| name.starts_with(&format!("{PACKAGE}-"));
    let was_built = fs::read_dir(fingerprints).is_ok_and(|folders| {
        folders.flatten().any(|folder| is_of_package(&folder.file_name().to_string_lossy()))
    });
    if !was_built {
        let cores = available_parallelism().map_or(1, NonZeroUsize::get);
        let (shared, alone) = MINUTES;
        let minutes = alone + shared.div_ceil(cores);
        // Standard error may be closed.
        let _ = writeln!(
            stderr(),
            "The first check compiles the stages: about {} on {}. A later check takes seconds.",
            counted(minutes, "minute"),
            counted(cores, "core")
        );
    }
}

/// Notes beside an executable that it is made from an answer and a check with this fingerprint.
pub fn note_made_from(executable: &Path, fingerprint: &Fingerprint) -> anyhow::Result<()> {
    let note = note(executable);
    let identity = identity(executable, fingerprint);
    identity
        .and_then(|identity| file::write(&note, |file| writeln!(file, "{identity}")))
        .with_context(|| format!("{}", note.display()))
}

fn is_made_from(executable: &Path, fingerprint: &Fingerprint) -> bool {
    let noted = fs::read_to_string(note(executable)).ok();
    noted.is_some_and(|noted| {
        identity(executable, fingerprint).is_ok_and(|identity| noted.trim_end() == identity)
    })
}

/// The fingerprint, and the time and size of the executable.
fn identity(executable: &Path, fingerprint: &Fingerprint) -> std::io::Result<String> {
    let metadata = fs::metadata(executable)?;
    let made = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    Ok(format!("{fingerprint} {made} {}", metadata.len()))
}

fn note(executable: &Path) -> PathBuf {
    executable.with_extension("made-from")
}

/// Removes the files of a target in the folder `deps`, so that cargo compiles the target again.
fn forget(executable: &Path, target: &str) -> anyhow::Result<()> {
    let folder = executable.with_file_name("deps");
    let told = || format!("{}", folder.display());
    for entry in fs::read_dir(&folder).with_context(told)? {
        let path = entry.with_context(told)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(&format!("{target}-")) && path.is_file() {
            fs::remove_file(&path).with_context(|| format!("{}", path.display()))?;
        }
    }
    Ok(())
}

fn build(tree: &Tree, target: &str, wanted: &dyn Fn() -> bool) -> anyhow::Result<Build> {
    let mut command = cargo(&tree.root);
    command.args(["build", "--release", "--package", PACKAGE, "--bin", target]);
    let colour = if console::colors_enabled_stderr() { "-diagnostic-rendered-ansi" } else { "" };
    command.arg(format!("--message-format=json{colour}"));
    if !stderr().is_terminal() {
        // Only a terminal shows progress.
        command.arg("--quiet");
    }
    cargo::build(&mut command, stderr().is_terminal(), wanted)
}

/// The executable of a build that succeeded, and whether cargo had compiled it before.
fn executable(build: &Build, target: &str) -> Option<(PathBuf, bool)> {
    let executable = |message: &Message| match message {
        Message::Artifact { target: built, executable: Some(file), fresh }
            if built.name == target =>
        {
            Some((file.clone(), *fresh))
        }
        _ => None,
    };
    build.messages.iter().rev().find_map(executable).filter(|_| build.succeeded())
}

/// Prints the messages of the compiler and of cargo, and returns the result.
fn outcome(build: Build, target: &str) -> anyhow::Result<Compiled> {
    if let How::Interrupted = build.how {
        return Ok(Compiled::Interrupted);
    }
    let (mut mistaken, mut signature) = (false, false);
    for message in &build.messages {
        let Message::Compiler { target: of, message } = message else { continue };
        // Standard error may be closed.
        let _ = stderr().write_all(message.rendered.as_deref().unwrap_or_default().as_bytes());
        if of.name == target && message.level.starts_with("error") {
            // A missing linker is an error without a place in the text.
            mistaken |= !message.spans.is_empty();
            signature |= is_about_the_signature(message);
        }
    }
    let compiled = match executable(&build, target) {
        Some((executable, _)) => Compiled::To(executable),
        None if build.succeeded() => bail!("cargo has compiled {target} and names no executable"),
        None if mistaken || signature => Compiled::Mistaken { signature },
        // The caller prints these lines.
        None => return Ok(Compiled::Failed(last_lines(&build.said))),
    };
    let _ = stderr().write_all(build.said.as_bytes());
    Ok(compiled)
}

/// Whether an error is in the last line of an exercise, `exercises::check!(…)`, or the line is missing.
fn is_about_the_signature(message: &Diagnostic) -> bool {
    /// There is no `main`.
    const NO_MAIN: &str = "E0601";
    let mut lines = message.spans.iter().flat_map(|place| &place.text);
    lines.any(|line| line.text.trim_start().starts_with("exercises::check!"))
        || message.code.as_ref().is_some_and(|code| code.code == NO_MAIN)
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

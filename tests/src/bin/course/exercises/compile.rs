//! A test target of the package `exercises`, compiled by cargo, which tells what does not compile.

use std::fs;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

use anyhow::{Context as _, bail};
use harness::report::file;

use super::cargo::{self, Build, Message, cargo};
use super::progress::Fingerprint;
use super::tree::{Exercise, PACKAGE, Tree};
use crate::process::How;

/// So often an executable that may be of another text is compiled anew. More than once only where somebody else compiles
/// the same at the same time.
const TIMES: usize = 3;

/// Of what cargo says when it fails, so many lines are kept: the last.
const LINES: usize = 8;

#[derive(Clone, Debug)]
pub(super) enum Compiled {
    To(PathBuf),
    /// The compiler found mistakes in it, and they were told on standard error, in colour on a terminal.
    Mistaken,
    /// cargo failed, and not because of what the compiler found in it: its last words. Empty where they stand on
    /// the terminal.
    Failed(String),
    Interrupted,
}

/// Asks for a test target as the reader's own command does: what one has built, the other does not build
/// again.
pub(super) fn arguments(command: &mut Command, target: &str) {
    command.args(["build", "--release", "--package", PACKAGE, "--bin", target]);
}

/// Compiles the check of an exercise, and the answer, which have this fingerprint.
///
/// cargo goes by the times of files: an older answer that is brought back with its old time is no news to it. So what
/// it has not compiled just now is believed only if it was seen to be made from this very text.
pub(super) fn check_of(
    tree: &Tree,
    exercise: &Exercise,
    fingerprint: &Fingerprint,
) -> anyhow::Result<Compiled> {
    let target = &exercise.name;
    for _ in 0..TIMES {
        let build = build(tree, target)?;
        let Some((executable, fresh)) = executable(&build, target) else {
            return outcome(build, target);
        };
        if fresh && !is_made_from(&executable, fingerprint) {
            // cargo makes what is not there.
            fs::remove_file(&executable).with_context(|| format!("{}", executable.display()))?;
            continue;
        }
        return outcome(build, target);
    }
    bail!("somebody else compiles {target} at the same time; try again")
}

/// Notes beside an executable that it is made from an answer and a check with this fingerprint.
pub(super) fn note_made_from(executable: &Path, fingerprint: &Fingerprint) -> anyhow::Result<()> {
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

/// The fingerprint, and what becomes another when the executable is made anew.
fn identity(executable: &Path, fingerprint: &Fingerprint) -> std::io::Result<String> {
    let metadata = fs::metadata(executable)?;
    let made = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    Ok(format!("{fingerprint} {made} {}", metadata.len()))
}

fn note(executable: &Path) -> PathBuf {
    executable.with_extension("made-from")
}

fn build(tree: &Tree, target: &str) -> anyhow::Result<Build> {
    let mut command = cargo(&tree.root);
    arguments(&mut command, target);
    let colour = if console::colors_enabled_stderr() { "-diagnostic-rendered-ansi" } else { "" };
    command.arg(format!("--message-format=json{colour}"));
    if !stderr().is_terminal() {
        // Lines of progress are for people.
        command.arg("--quiet");
    }
    cargo::build(&mut command, stderr().is_terminal())
}

/// The executable of a build that succeeded, and whether it was there before.
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

/// Tells what the compiler and cargo have to say, and what it comes to.
fn outcome(build: Build, target: &str) -> anyhow::Result<Compiled> {
    if let How::Interrupted = build.how {
        return Ok(Compiled::Interrupted);
    }
    let mut mistaken = false;
    for message in &build.messages {
        let Message::Compiler { target: of, message } = message else { continue };
        // In place of cargo; that nobody reads it is fine.
        let _ = stderr().write_all(message.rendered.as_deref().unwrap_or_default().as_bytes());
        // That a linker is missing is an error as well, and in no place of the text.
        let in_text = message.level.starts_with("error") && !message.spans.is_empty();
        mistaken |= in_text && of.name == target;
    }
    let compiled = match executable(&build, target) {
        Some((executable, _)) => Compiled::To(executable),
        None if build.succeeded() => bail!("cargo has compiled {target} and names no executable"),
        None if mistaken => Compiled::Mistaken,
        // Told by whoever tells the rest.
        None => return Ok(Compiled::Failed(last_lines(&build.said))),
    };
    let _ = stderr().write_all(build.said.as_bytes());
    Ok(compiled)
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

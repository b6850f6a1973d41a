//! The program that checks an answer, compiled by cargo, which reports what does not compile.

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

/// So often an executable that may be of another text is compiled anew. More than once only where somebody else compiles
/// the same at the same time.
const TIMES: usize = 3;

/// Of what cargo says when it fails, so many lines are kept: the last.
const LINES: usize = 8;

/// The first build of the stages: minutes of one core, and minutes in which only one core has work.
const MINUTES: (usize, usize) = (9, 1);

#[derive(Clone, Debug)]
pub enum Compiled {
    To(PathBuf),
    /// The compiler found mistakes in the answer, and they were reported on standard error, in colour on a terminal.
    Mistaken {
        /// One of them is that the check cannot call the answer.
        signature: bool,
    },
    /// cargo failed, and not because of the answer: its last words. Empty where they stand on the terminal.
    Failed(String),
    Interrupted,
}

/// Compiles the check of an exercise with the answer, which have this fingerprint.
///
/// cargo goes by the times of files: an older answer that is brought back with its old time is no news to it. So what
/// it has not compiled just now is believed only if it was seen to be made from this very text.
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

/// Says how long the first build of the package takes.
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
        // Beside cargo's own lines. Nobody may read them.
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

/// The fingerprint, and what becomes another when the executable is made anew.
fn identity(executable: &Path, fingerprint: &Fingerprint) -> std::io::Result<String> {
    let metadata = fs::metadata(executable)?;
    let made = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    Ok(format!("{fingerprint} {made} {}", metadata.len()))
}

fn note(executable: &Path) -> PathBuf {
    executable.with_extension("made-from")
}

/// Removes what cargo has made of a target, in its folder `deps`: cargo makes what is not there.
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
        // Lines of progress are for people.
        command.arg("--quiet");
    }
    cargo::build(&mut command, stderr().is_terminal(), wanted)
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

/// Reports what the compiler and cargo have to say, and returns what it comes to.
fn outcome(build: Build, target: &str) -> anyhow::Result<Compiled> {
    if let How::Interrupted = build.how {
        return Ok(Compiled::Interrupted);
    }
    let (mut mistaken, mut signature) = (false, false);
    for message in &build.messages {
        let Message::Compiler { target: of, message } = message else { continue };
        // In place of cargo; that nobody reads it is fine.
        let _ = stderr().write_all(message.rendered.as_deref().unwrap_or_default().as_bytes());
        if of.name == target && message.level.starts_with("error") {
            // That a linker is missing is an error as well, and in no place of the text.
            mistaken |= !message.spans.is_empty();
            signature |= is_about_the_signature(message);
        }
    }
    let compiled = match executable(&build, target) {
        Some((executable, _)) => Compiled::To(executable),
        None if build.succeeded() => bail!("cargo has compiled {target} and names no executable"),
        None if mistaken || signature => Compiled::Mistaken { signature },
        // Reported by whoever reports the rest.
        None => return Ok(Compiled::Failed(last_lines(&build.said))),
    };
    let _ = stderr().write_all(build.said.as_bytes());
    Ok(compiled)
}

/// Whether an error is in the line with which an exercise ends, `exercises::check!(…)`, or says that this line is gone.
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

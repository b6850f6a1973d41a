//! The test target `verify` of the package `exercises`: candidates in modules, in one program.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use course::exercises::cargo::{self, Build, Message, cargo};
use course::exercises::tree::{PACKAGE, Tree};

pub(crate) const TARGET: &str = "verify";

/// Names the file with the modules and their list to `verify.rs`.
const CANDIDATES: &str = "EXERCISES_CANDIDATES";

/// The attributes of the module of an answer that is no model.
const LENIENT: &str = "#[allow(warnings, clippy::all)]";

/// The attributes of the module of a solution: the lints that the package's manifest leaves out.
const STRICT: &str = "#[warn(unused_imports, unused_variables, clippy::todo)]";

/// An answer as a module of the program.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    pub(crate) exercise: String,
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Whether warnings count.
    pub(crate) strict: bool,
}

/// Has cargo compile modules into one program, or lint them: `action` is `build` or `clippy`. The file `list` is written
/// for that.
pub(crate) fn command(
    tree: &Tree,
    action: &str,
    list: &Path,
    modules: &[Module],
) -> anyhow::Result<Command> {
    let text = program(modules)?;
    let write = || {
        fs::create_dir_all(list.parent().unwrap_or(list))?;
        // cargo goes by the time of the file.
        if fs::read_to_string(list).ok().as_ref() == Some(&text) {
            return Ok(());
        }
        fs::write(list, &text)
    };
    write().with_context(|| list.display().to_string())?;
    let mut command = cargo(&tree.root);
    command.args([action, "--release", "--package", PACKAGE, "--test", TARGET]);
    command.env(CANDIDATES, list);
    Ok(command)
}

/// The text of the program, which runs the module that its arguments name.
fn program(modules: &[Module]) -> anyhow::Result<String> {
    let (mut text, mut list) = (String::new(), String::new());
    for of_exercise in modules.chunk_by(|one, next| one.exercise == next.exercise) {
        let exercise = &of_exercise[0].exercise;
        writeln!(text, "mod {exercise} {{")?;
        for Module { name, path, strict, .. } in of_exercise {
            let lints = if *strict { STRICT } else { LENIENT };
            writeln!(text, "    {lints}\n    #[path = {path:?}]\n    pub mod {name};")?;
            writeln!(list, "        ({exercise:?}, {name:?}, {exercise}::{name}::main),")?;
        }
        writeln!(text, "}}")?;
    }
    writeln!(
        text,
        "fn main() -> std::process::ExitCode {{\n    exercises::laws::choose(&[\n{list}    ])\n}}"
    )?;
    Ok(text)
}

/// The program of a build that succeeded.
pub(crate) fn executable(build: &Build) -> Option<PathBuf> {
    let executable = |message: &Message| match message {
        Message::Artifact { target, executable: Some(file), .. } if target.name == TARGET => {
            Some(file.clone())
        }
        _ => None,
    };
    build.messages.iter().find_map(executable).filter(|_| build.succeeded())
}

/// The errors of a build: the files that they are in, and the compiler's messages.
pub(crate) fn errors(build: &Build) -> (Vec<PathBuf>, String) {
    let (mut files, mut rendered) = (Vec::new(), String::new());
    for message in &build.messages {
        if let Message::Compiler { message, .. } = message
            && message.level.starts_with("error")
        {
            rendered.push_str(message.rendered.as_deref().unwrap_or_default());
            files.extend(places(message));
        }
    }
    (files, rendered)
}

/// The places of an error and of its notes: a mistake in a signature shows in the line that calls the function.
fn places(message: &cargo::Diagnostic) -> Vec<PathBuf> {
    let own = message.spans.iter().map(|span| span.file_name.clone());
    own.chain(message.children.iter().flat_map(places)).collect()
}

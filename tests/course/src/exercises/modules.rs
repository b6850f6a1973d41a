//! Several answers as modules of one program of the package `exercises`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use harness::report::file;

use super::cargo::cargo;
use super::tree::PACKAGE;

/// A program of the package, as cargo's flag names it: of all known answers, or of the learner's.
#[derive(Clone, Copy, Debug)]
pub enum Program {
    Verify,
    Mine,
}

impl Program {
    pub fn name(self) -> &'static str {
        match self {
            Self::Verify => "verify",
            Self::Mine => "mine",
        }
    }

    fn flag(self) -> &'static str {
        match self {
            Self::Verify => "--test",
            Self::Mine => "--example",
        }
    }
}

/// Names the file with the modules and `main` to the program.
const CANDIDATES: &str = "EXERCISES_CANDIDATES";

/// The attributes of the module of an answer that is no model.
pub const LENIENT: &str = "#[allow(warnings, clippy::all)]";

/// An answer that becomes the module `EXERCISE::NAME`.
#[derive(Clone, Debug)]
pub struct Module<'a> {
    pub exercise: &'a str,
    pub name: &'a str,
    pub path: PathBuf,
    /// Attributes of the module.
    pub lints: &'a str,
}

/// Makes a command that compiles answers into one program, or lints them: `action` is `build` or `clippy`. `main` is the
/// expression that the program evaluates. Writes the program to the file `list`. Modules of one exercise are neighbours.
pub fn command(
    (action, program): (&str, Program),
    list: &Path,
    modules: &[Module<'_>],
    main: &str,
) -> anyhow::Result<Command> {
    let mut text = String::new();
    for of_exercise in modules.chunk_by(|one, next| one.exercise == next.exercise) {
        writeln!(text, "mod {} {{", of_exercise[0].exercise)?;
        for Module { name, path, lints, .. } in of_exercise {
            writeln!(text, "    {lints}\n    #[path = {path:?}]\n    pub mod {name};")?;
        }
        writeln!(text, "}}")?;
    }
    writeln!(text, "fn main() -> std::process::ExitCode {{\n    {main}\n}}")?;
    // cargo would compile a file again that was only written again.
    if !fs::read_to_string(list).is_ok_and(|old| old == text) {
        fs::create_dir_all(list.parent().unwrap_or(list))
            .and_then(|()| file::write(list, |file| file.write_all(text.as_bytes())))
            .with_context(|| list.display().to_string())?;
    }
    let mut command = cargo();
    command.args([action, "--release", "--package", PACKAGE, program.flag(), program.name()]);
    command.env(CANDIDATES, list);
    Ok(command)
}

/// The expression that runs the capstone. Each exercise has the name of the module with its answer, or the reason why the answer
/// is left out.
pub fn mine<'a>(answers: impl IntoIterator<Item = (&'a str, Result<&'a str, &'a str>)>) -> String {
    let answer = |(exercise, answer): (&str, Result<&str, &str>)| match answer {
        Ok(module) => format!(
            "({exercise:?}, Ok(&{exercise}::{module}::answer_of_runs() as &dyn std::any::Any)), "
        ),
        Err(why) => format!("({exercise:?}, Err({why:?})), "),
    };
    let answers: String = answers.into_iter().map(answer).collect();
    format!("exercises::runs::mine::main(&[{answers}])")
}

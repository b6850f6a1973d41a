//! The test target `verify` of the package `exercises`: all answers as modules of one program; and what clippy says of the
//! solutions, which are in no target that `cargo clippy` knows of.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use course::exercises::cargo::cargo;
use course::exercises::tree::{PACKAGE, Tree};
use course::process::{Group, How};
use xtask::stored;

use super::answers::Answer;

pub(super) const TARGET: &str = "verify";

/// Names the file with the modules and their list to `verify.rs`.
const CANDIDATES: &str = "EXERCISES_CANDIDATES";

/// The attributes of the module of an answer that is no model.
const LENIENT: &str = "#[allow(warnings, clippy::all)]";

/// The attributes of the module of a solution: the lints that the package's manifest leaves out.
const STRICT: &str = "#[warn(unused_imports, unused_variables, clippy::todo)]";

/// Has cargo compile answers into one program, or lint them: `action` is `build` or `clippy`. The file `list` is written
/// for that.
pub(super) fn command(
    tree: &Tree,
    action: &str,
    list: &Path,
    answers: &[Answer],
) -> anyhow::Result<Command> {
    let (mut text, mut names) = (String::new(), String::new());
    for of_exercise in answers.chunk_by(|one, next| one.exercise == next.exercise) {
        let exercise = &of_exercise[0].exercise;
        writeln!(text, "mod {exercise} {{")?;
        for answer in of_exercise {
            let lints = if answer.is_solution() { STRICT } else { LENIENT };
            let Answer { name, path, .. } = answer;
            writeln!(text, "    {lints}\n    #[path = {path:?}]\n    pub mod {name};")?;
            writeln!(names, "        ({exercise:?}, {name:?}, {exercise}::{name}::main),")?;
        }
        writeln!(text, "}}")?;
    }
    writeln!(
        text,
        "fn main() -> std::process::ExitCode {{\n    exercises::laws::choose(&[\n{names}    ])\n}}"
    )?;
    stored::write(list, &text)?;
    let mut command = cargo(&tree.root);
    command.args([action, "--release", "--package", PACKAGE, "--test", TARGET]);
    command.env(CANDIDATES, list);
    Ok(command)
}

/// The news that clippy has warnings about the solutions, which it prints on standard error.
pub(super) fn lints(
    tree: &Tree,
    folder: &Path,
    mut answers: Vec<Answer>,
) -> anyhow::Result<Option<String>> {
    answers.retain(Answer::is_solution);
    let mut clippy = command(tree, "clippy", &folder.join("solutions.rs"), &answers)?;
    clippy.args(["--quiet", "--", "--deny", "warnings"]).stdout(Stdio::null());
    let how = Group::start(&mut clippy).and_then(|group| group.wait(Duration::MAX));
    let is_quiet = matches!(how.context("cargo clippy")?, How::Alone(status) if status.success());
    let problem = "clippy has something to say of the solutions or checks, above";
    Ok((!is_quiet).then(|| problem.to_owned()))
}

//! The test target `verify` of the package `exercises`: all answers as modules of one program; and what rustfmt and clippy say
//! of the solutions, which are in no target that `cargo fmt` and `cargo clippy` know of.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use course::exercises::cargo::cargo;
use course::exercises::tree::{PACKAGE, Tree};
use course::process::{Group, How};

use super::answers::{Answer, write};

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
    write(list, &text)?;
    let mut command = cargo(&tree.root);
    command.args([action, "--release", "--package", PACKAGE, "--test", TARGET]);
    command.env(CANDIDATES, list);
    Ok(command)
}

/// Solutions that are not formatted, and the news that clippy has warnings, which it prints on standard error.
pub(super) fn lints(
    tree: &Tree,
    folder: &Path,
    mut answers: Vec<Answer>,
) -> anyhow::Result<Vec<String>> {
    let mut problems = unformatted(tree)?;
    answers.retain(Answer::is_solution);
    let mut clippy = command(tree, "clippy", &folder.join("solutions.rs"), &answers)?;
    clippy.args(["--quiet", "--", "--deny", "warnings"]).stdout(Stdio::null());
    let how = Group::start(&mut clippy).and_then(|group| group.wait(Duration::MAX));
    if !matches!(how.context("cargo clippy")?, How::Alone(status) if status.success()) {
        problems.push("clippy has something to say of the solutions or checks, above".to_owned());
    }
    Ok(problems)
}

fn unformatted(tree: &Tree) -> anyhow::Result<Vec<String>> {
    let files =
        tree.exercises.iter().flat_map(|one| [one.answer("solution.rs"), one.check(), one.file()]);
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

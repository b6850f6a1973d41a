//! The runs of exercises: each with our solution, and with a mistake, which the run has to show.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use course::exercises::tree::Tree;
use course::process::{Group, How, Printed};
use harness::report::line;

/// One line for each run: `EXERCISE CANDIDATE: TEXT`, where TEXT is a part of the output that no machine changes, or several parts
/// with ` … ` between them.
const EXPECTED: &str = "runs/expected.txt";

/// Runs every line of the list, and returns the problems, also those of the list: every run needs our solution and a mistake.
pub(super) fn problems(
    tree: &Tree,
    executable: &Path,
    limit: Duration,
) -> anyhow::Result<Vec<String>> {
    let path = tree.package.join(EXPECTED);
    let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    let expected: Vec<(&str, &str, &str)> = text
        .lines()
        .filter_map(|line| line.split_once(": "))
        .filter_map(|(names, text)| names.split_once(' ').map(|(one, two)| (one, two, text)))
        .collect();
    let mut problems = Vec::new();
    for exercise in tree.exercises.iter().filter(|exercise| exercise.has_run()) {
        let of_it = || expected.iter().filter(|(name, ..)| *name == exercise.name);
        let solutions = of_it().filter(|(_, candidate, _)| *candidate == "solution").count();
        if solutions != 1 || of_it().count() < 2 {
            let name = &exercise.name;
            problems.push(format!("{EXPECTED}: {name} needs its solution and a mistake"));
        }
    }
    for (exercise, candidate, text) in expected {
        let output = Printed::nothing()?;
        let mut command = Command::new(executable);
        command.args([exercise, candidate, "run"]).env("RUST_BACKTRACE", "0");
        command.stdout(output.stream()?).stderr(output.stream()?);
        let how = Group::start(&mut command)?.wait(limit)?;
        let said = output.text()?;
        // Paragraphs are wrapped.
        let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let has_all = text.split(" … ").all(|part| words.contains(part));
        let told = format!("{exercise}, {candidate}, its run");
        match how {
            How::Alone(status) if status.success() && has_all => {
                line(format_args!("✓ {told}"))?;
            }
            How::Interrupted => break,
            how => {
                problems.push(format!("{told}: ended {how:?} without \"{text}\", but with\n{said}"))
            }
        }
    }
    Ok(problems)
}

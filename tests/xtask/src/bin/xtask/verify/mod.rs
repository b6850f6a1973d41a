//! `cargo xtask verify`: can the exercises be trusted?
//!
//! A check that accepts everything teaches nothing, so every exercise has answers that its check has to judge: the stub
//! that a learner starts from, our solution, and mistakes with the message that their author should see. All of them are
//! modules of one program, and each runs in its own process: none can hang or end another. [`runs`] are tried with solutions
//! and with mistakes.

mod answers;
mod build;
mod form;
mod mistakes;
mod runs;

use std::path::Path;
use std::time::Duration;

use answers::{Answer, Wanted};
use anyhow::bail;
use course::exercises::cargo;
use course::exercises::modules::Program;
use course::exercises::program;
use course::exercises::tree::Tree;
use course::process::How;
use harness::interrupt;
use harness::report::{counted, line};
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;

/// So many run at a time: they wait for each other's ranks more than they compute.
const AT_A_TIME: usize = 3;

/// Runs every check on every answer, and checks the files of each exercise.
pub(crate) fn run(tree: &Tree, limit: Duration) -> anyhow::Result<()> {
    interrupt::watch()?;
    let mut problems: Vec<String> = form::problems(tree)?;
    let folder = tree.target.join("verify");
    let answers = answers::all(tree, &folder, &mut problems)?;
    let mut right = Vec::new();
    let mut command = build::command(tree, "build", &folder.join("candidates.rs"), &answers)?;
    command.arg("--message-format=json-render-diagnostics");
    let built = cargo::build(&mut command, true, &|| true)?;
    if let How::Interrupted = built.how {
        return Ok(());
    }
    if let Some(executable) = built.executable(Program::Verify.name()).filter(|_| built.succeeded())
    {
        let Some(verdicts) = judge_all(tree, &executable, &answers, limit)? else { return Ok(()) };
        for (answer, verdict) in answers.iter().zip(verdicts) {
            match verdict {
                Ok(()) => right.push(&answer.wanted),
                Err(why) => problems.push(format!("{}: {why}", answer.source)),
            }
        }
        problems.extend(runs::problems(tree, &executable, limit)?);
        problems.extend(build::lints(tree, &folder, answers.clone())?);
        if interrupt::requested() {
            return Ok(());
        }
    } else {
        problems.push("the test target `verify` does not compile".to_owned());
    }
    for problem in &problems {
        line(format_args!("\n✗ {}", problem.trim_end()))?;
    }
    let count = |is: fn(&Wanted) -> bool| right.iter().filter(|wanted| is(wanted)).count();
    line(format_args!(
        "\n{}: {}, {} and {} were judged as they should be",
        counted(tree.exercises.len(), "exercise"),
        counted(count(|it| matches!(it, Wanted::Failure { .. })), "stub"),
        counted(count(|it| matches!(it, Wanted::Success)), "solution"),
        counted(count(|it| matches!(it, Wanted::Message(_))), "mistake")
    ))?;
    match problems.len() {
        0 => Ok(()),
        problems => bail!("{}, told above", counted(problems, "problem")),
    }
}

/// Runs the check on every answer, a few at a time, and prints each verdict. Returns none after Ctrl-C.
fn judge_all(
    tree: &Tree,
    executable: &Path,
    answers: &[Answer],
    limit: Duration,
) -> anyhow::Result<Option<Vec<Result<(), String>>>> {
    let judge = |answer: &Answer| {
        if interrupt::requested() {
            return None;
        }
        let words = [&*answer.exercise, &*answer.name];
        let outcome = program::run(executable, &tree.package, &words, limit, &|| true);
        let verdict = outcome.map_err(|error| format!("{error:#}"));
        let verdict = verdict.and_then(|outcome| answer.judge(&outcome));
        let told = match &verdict {
            _ if interrupt::requested() => return None,
            Ok(()) => format!("✓ {}", answer.source),
            Err(why) => format!("✗ {}: {why}", answer.source),
        };
        // Where nobody reads any more, the summary says so.
        _ = line(told.lines().next().unwrap_or_default());
        Some(verdict)
    };
    let threads = ThreadPoolBuilder::new().num_threads(AT_A_TIME).build()?;
    Ok(threads.install(|| answers.par_iter().with_max_len(1).map(judge).collect()))
}

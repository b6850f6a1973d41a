//! `cargo course check`: is the reader's answer right, and what to do next?

use std::process::ExitStatus;
use std::time::Duration;

use anyhow::bail;
use harness::interrupt;
use harness::report::{counted, line};

use super::compile::{self, Compiled};
use super::list;
use super::messages::{self, Counts, Failure};
use super::progress::{Fingerprint, Progress};
use super::run::{self, Ended};
use super::tree::{Exercise, Tree};
use crate::process::{Excess, How};

#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Passed(usize),
    Failed(Counts, Vec<Failure>),
    DoesNotCompile,
    /// cargo came to no judgement: its last words, unless a terminal has them.
    CargoFailed(String),
    /// The process ended before its tests did: by a crash, or because the answer left it.
    Crashed {
        status: ExitStatus,
        during: Option<String>,
        said: String,
    },
    OutOfTime {
        limit: Duration,
        during: Option<String>,
    },
    TooMuch {
        excess: Excess,
        during: Option<String>,
    },
    Interrupted,
}

impl Outcome {
    /// What an ended test binary means. That nothing was tested is no pass.
    pub(super) fn of(ended: Ended, limit: Duration) -> Self {
        let during = messages::running(&ended.stdout);
        match (ended.how, messages::counts(&ended.stdout)) {
            (How::Interrupted, _) => Self::Interrupted,
            (How::OutOfTime, _) => Self::OutOfTime { limit, during },
            (How::TooMuch(excess), _) => Self::TooMuch { excess, during },
            (How::Alone(status), Some(Counts { passed, failed: 0 }))
                if status.success() && passed > 0 =>
            {
                Self::Passed(passed)
            }
            (How::Alone(_), Some(counts)) if counts.failed > 0 => {
                Self::Failed(counts, messages::failures(&ended.stdout))
            }
            (How::Alone(status), _) => Self::Crashed { status, during, said: ended.stderr },
        }
    }

    /// The outcome in a few words, where the check did not pass.
    pub(super) fn verdict(&self) -> String {
        let during = |check: &Option<String>| {
            check.as_ref().map_or_else(String::new, |check| format!(" in {check}"))
        };
        match self {
            Self::Passed(_) => "passes".to_owned(),
            Self::Failed(Counts { passed, failed }, _) => {
                let fail = if *failed == 1 { "fails" } else { "fail" };
                format!("{failed} of {} {fail}", counted(passed + failed, "check"))
            }
            Self::DoesNotCompile => "it does not compile".to_owned(),
            Self::CargoFailed(_) => "cargo failed".to_owned(),
            Self::Crashed { status, during: check, .. } if status.code().is_some() => {
                let during = during(check);
                format!("the answer left the check{during} before it was done ({status})")
            }
            Self::Crashed { status, during: check, .. } => {
                format!("the check was ended by a crash{} ({status})", during(check))
            }
            Self::OutOfTime { limit, during: check } => {
                format!("the check did not end within {} s{}", limit.as_secs(), during(check))
            }
            Self::TooMuch { excess, during: check } => {
                format!("the check {excess}{}", during(check))
            }
            Self::Interrupted => "the check was interrupted".to_owned(),
        }
    }
}

/// Checks an exercise: the one that is named, or the next.
pub(super) fn run(tree: &Tree, name: Option<&str>, limit: Duration) -> anyhow::Result<()> {
    interrupt::watch()?;
    let Some(exercise) = Progress::load(tree)?.named_or_next(tree, name)? else {
        return list::all_solved(tree);
    };
    let outcome = once(tree, exercise, limit)?;
    tell(tree, exercise, &outcome)?;
    match outcome {
        Outcome::Passed(_) => list::what_is_next(tree),
        // The exit code says so.
        Outcome::Interrupted => Ok(()),
        Outcome::CargoFailed(_) => bail!("cargo failed, so {} was not checked", exercise.name),
        _ => bail!("{} does not pass yet: {}", exercise.name, outcome.verdict()),
    }
}

pub(super) fn once(tree: &Tree, exercise: &Exercise, limit: Duration) -> anyhow::Result<Outcome> {
    // For the message that says how to get it back.
    exercise.text()?;
    let checked = Fingerprint::of(exercise)?;
    let executable = match compile::check_of(tree, exercise, &checked)? {
        Compiled::To(executable) => executable,
        Compiled::Mistaken => return Ok(Outcome::DoesNotCompile),
        Compiled::Failed(said) => return Ok(Outcome::CargoFailed(said)),
        Compiled::Interrupted => return Ok(Outcome::Interrupted),
    };
    // What was saved meanwhile may be what was compiled, or not.
    let unchanged = || {
        // While an editor saves, the file may not be there: then it has changed.
        Fingerprint::of(exercise).is_ok_and(|now| now == checked)
    };
    let as_compiled = unchanged();
    if as_compiled {
        compile::note_made_from(&executable, &checked)?;
    }
    let ended = run::run(&executable, &tree.package, &[], limit)?;
    let outcome = Outcome::of(ended, limit);
    // What was saved meanwhile is not what passed.
    if let Outcome::Passed(_) = outcome
        && as_compiled
        && unchanged()
    {
        Progress::remember_passed(tree, exercise, checked)?;
    }
    Ok(outcome)
}

pub(super) fn tell(tree: &Tree, exercise: &Exercise, outcome: &Outcome) -> anyhow::Result<()> {
    let name = &exercise.name;
    match outcome {
        Outcome::Passed(checks) => {
            line(format_args!("✓ {name} passes its {}", counted(*checks, "check")))?;
            line(format_args!("  to compare with ours: cargo course solution {name}"))?;
            return Ok(());
        }
        Outcome::Interrupted => return Ok(()),
        Outcome::Failed(_, failures) => {
            // What several checks say alike is told once: a stub says the same to all of them.
            for same in failures.chunk_by(|one, next| one.message == next.message) {
                for Failure { check, .. } in same {
                    line(format_args!("✗ {check}"))?;
                }
                line(format_args!("{}\n", indented(&same[0].message)))?;
            }
        }
        Outcome::DoesNotCompile => line(format_args!("✗ {name} does not compile\n"))?,
        Outcome::CargoFailed(said) => {
            line(format_args!("✗ cargo failed before {name} could be checked"))?;
            let said = if said.is_empty() { "what it said stands above" } else { said };
            line(indented(said))?;
            // No hint helps with that.
            return Ok(());
        }
        Outcome::Crashed { status, said, .. } => {
            line(format_args!("✗ {}", outcome.verdict()))?;
            if status.code().is_some() {
                line("    does it call `std::process::exit`? A check has to get its answer back")?;
            }
            let said = indented(said.trim());
            line(format_args!("{said}{}", if said.is_empty() { "" } else { "\n" }))?;
        }
        Outcome::TooMuch { excess, .. } => {
            let what = match excess {
                Excess::Printed => "does it print without end?",
                Excess::Memory => {
                    "does a loop make something longer for ever, or print without end? What is printed \
                     is kept until the check is done"
                }
            };
            line(format_args!("✗ {}\n    {what}\n", outcome.verdict()))?;
        }
        Outcome::OutOfTime { .. } => line(format_args!(
            "✗ {}\n    does a loop go on for ever, or a rank wait for what nobody sends?\n",
            outcome.verdict()
        ))?,
    }
    line(format_args!("your answer:  {}", tree.relative(&exercise.file())))?;
    line(format_args!("a hint:       cargo course hint {name}"))?;
    if let Some(page) = tree.page(exercise) {
        line(format_args!("the chapter:  mdbook serve book --open, or {}", tree.relative(&page)))?;
    }
    Ok(())
}

fn indented(text: &str) -> String {
    let indent = |line: &str| if line.is_empty() { String::new() } else { format!("    {line}") };
    text.lines().map(indent).collect::<Vec<_>>().join("\n")
}

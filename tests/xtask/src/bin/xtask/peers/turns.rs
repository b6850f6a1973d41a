//! All sides of a comparison, one after the other, again and again.

use std::io::Write as _;

use harness::interrupt;
use itertools::Itertools as _;

use super::comparison::{Comparison, Side};
use super::report::{Outcome, Row, quantity};
use super::side::{Measured, Programs};

/// Lets all sides of a comparison take turns, and tells of each how long it took. Whoever fails is out; the others go on.
/// After Ctrl-C there are rows of those turns that are whole, if there are any.
pub(super) fn measure(
    comparison: &Comparison,
    alternations: usize,
    programs: &Programs,
) -> Vec<Row> {
    let sides = || comparison.ours.iter().chain(&comparison.peers);
    let mut outcomes: Vec<Outcome> = sides().map(silent).collect();
    'turns: for turn in 1..=alternations {
        for (side, outcome) in sides().zip(&mut outcomes) {
            if outcome.failure.is_some() {
                continue;
            }
            let measured = programs.measure(comparison, side);
            // Whoever was ended has not failed.
            if measured.is_err() && interrupt::requested() {
                break 'turns;
            }
            tell(comparison, &format!("turn {turn} of {alternations}"), side, &measured);
            match measured {
                Ok(measured) => {
                    outcome.runs.push(measured.medians);
                    outcome.note = measured.note;
                }
                Err(why) => outcome.failure = Some(why),
            }
            if interrupt::requested() {
                break 'turns;
            }
        }
    }
    let whole = outcomes.iter().filter(|outcome| outcome.failure.is_none());
    let whole = whole.map(|outcome| outcome.runs.len()).min().unwrap_or(0);
    let ended_early = interrupt::requested() && whole < alternations;
    if ended_early {
        if whole == 0 {
            return Vec::new();
        }
        // Medians are to be of the same turns.
        outcomes.iter_mut().for_each(|outcome| outcome.runs.truncate(whole));
    }
    Row::all(comparison, &outcomes, ended_early.then_some(whole))
}

fn silent(side: &Side) -> Outcome {
    Outcome { label: side.label.clone(), runs: Vec::new(), failure: None, note: None }
}

/// Whatever ends this early, so much was known. The table has its own stream, and is made of whole turns.
fn tell(comparison: &Comparison, turn: &str, side: &Side, measured: &Result<Measured, String>) {
    let Comparison { what, threads, unit, .. } = comparison;
    let told = match measured {
        Ok(Measured { medians, .. }) => {
            medians.iter().map(|median| quantity(*median, *unit)).join(", ")
        }
        Err(why) => format!("failed: {why}"),
    };
    let line = format!("{what}, threads {threads}, {turn}: {} {told}", side.label);
    // Who reads it is no reason to stop.
    let _ = writeln!(std::io::stderr(), "{line}");
}

//! `cargo course divergence A B`: finds the first difference between two recordings of stage 5's `--record`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use harness::cli::UsageError;
use harness::recording::{Entry, first_divergence, read, steps_made};
use harness::report::{line, thousands};

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// A file that `--record` wrote
    first: PathBuf,
    /// Another
    second: PathBuf,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let first = Recording::read(&arguments.first)?;
    let second = Recording::read(&arguments.second)?;
    for recording in [&first, &second] {
        if recording.entries.is_empty() {
            let told = format_args!("{}: nothing is recorded in it", recording.path.display());
            return Err(UsageError::new(told).into());
        }
    }
    let common = &first.steps & &second.steps;
    let both = &first.places & &second.places;
    let (Some(&from), Some(&end)) = (both.first(), both.last()) else {
        let told = "the two recordings have no step in common: nothing can be compared";
        return Err(UsageError::new(told).into());
    };
    let divergence = first_divergence(&first.entries, &second.entries);
    match &divergence {
        Some(divergence) => line(divergence)?,
        None => line(format_args!("no difference in {}", compared(&common, end)))?,
    }
    for (which, recording) in [("first", &first), ("second", &second)] {
        if recording.is_cut {
            let path = recording.path.display();
            line(format_args!("{path} ends in the middle of a line: its run was cut short"))?;
        }
        if let Some(steps) = span("step", recording.steps.range(..from)) {
            line(format_args!("only the {which} recording has {steps}: the other begins later"))?;
        }
        // Behind a difference, later steps do not matter.
        if divergence.is_none()
            && let Some(steps) = span("step", later(recording, &common, from))
        {
            line(format_args!("only the {which} recording has {steps}: the other ends sooner"))?;
        }
        let others = if which == "first" { &second.ranks } else { &first.ranks };
        if let Some(ranks) = span("rank", recording.ranks.difference(others)) {
            line(format_args!(
                "only the {which} recording has {ranks}: of that, nothing but images was compared"
            ))?;
        }
    }
    Ok(())
}

/// Describes the comparison: the steps of both recordings, and the weights after the last of these steps.
fn compared(common: &BTreeSet<usize>, end: usize) -> String {
    let after = end.saturating_sub(1);
    let (Some(&from), Some(&to)) = (common.first(), common.last()) else {
        return format!("the weights after step {}", thousands(after));
    };
    let weights = if to < end { ", nor in the weights after that" } else { "" };
    let (steps, from, to) = (thousands(common.len()), thousands(from), thousands(to));
    format!("{steps} steps, from step {from} to {to}{weights}")
}

/// The steps of a recording after the common steps, which begin at `from`.
fn later<'a>(
    recording: &'a Recording<'_>,
    common: &BTreeSet<usize>,
    from: usize,
) -> impl Iterator<Item = &'a usize> {
    recording.steps.range(common.last().map_or(from, |to| to + 1)..)
}

/// Describes steps or ranks. Returns `None` for an empty list.
fn span<'a>(what: &str, numbers: impl Iterator<Item = &'a usize>) -> Option<String> {
    let mut numbers = numbers.copied();
    let from = numbers.next()?;
    Some(match numbers.last() {
        None => format!("{what} {}", thousands(from)),
        Some(to) => format!("{what}s {} to {}", thousands(from), thousands(to)),
    })
}

struct Recording<'a> {
    path: &'a Path,
    entries: Vec<Entry>,
    /// The steps of the run.
    steps: BTreeSet<usize>,
    /// The steps, and the step before which the run ended.
    places: BTreeSet<usize>,
    ranks: BTreeSet<usize>,
    /// Whether the last line is incomplete.
    is_cut: bool,
}

impl<'a> Recording<'a> {
    fn read(path: &'a Path) -> Result<Self, UsageError> {
        let refused = |error| UsageError::new(format_args!("{}: {error}", path.display()));
        let text = fs::read(path).map_err(refused)?;
        let entries = read(text.as_slice()).map_err(refused)?;
        let steps = steps_made(&entries);
        let places = entries.iter().map(|entry| entry.step).collect();
        let ranks = entries.iter().map(|entry| entry.rank).collect();
        let is_cut = text.last().is_some_and(|last| *last != b'\n');
        Ok(Self { path, entries, steps, places, ranks, is_cut })
    }
}

//! `cargo course divergence A B`: finds the first difference between two recordings of stage 5's `--record`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
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
    let common = &first.steps & &second.steps;
    let both = &first.places & &second.places;
    let (Some(&from), Some(&end)) = (both.first(), both.last()) else {
        let told = "the two recordings have no step in common: nothing can be compared";
        return Err(UsageError::new(told).into());
    };
    // The first step after the common steps.
    let later = common.last().map_or(from, |to| to + 1);
    let divergence = first_divergence(&first.entries, &second.entries);
    match &divergence {
        Some(divergence) => line(divergence)?,
        None => line(format_args!("no difference in {}", compared(&common, end)))?,
    }
    for (which, this, other) in [("first", &first, &second), ("second", &second, &first)] {
        if this.is_cut {
            let path = this.path.display();
            line(format_args!("{path} ends in the middle of a line: its run was cut short"))?;
        }
        let mut only = vec![
            (span("step", this.steps.range(..from)), "the other begins later"),
            (span("step", this.steps.range(later..)), "the other ends sooner"),
            (
                span("rank", this.ranks.difference(&other.ranks)),
                "of that, nothing but images was compared",
            ),
        ];
        if divergence.is_some() {
            // Behind a difference, later steps do not matter.
            only.remove(1);
        }
        for (what, why) in only {
            if let Some(what) = what {
                line(format_args!("only the {which} recording has {what}: {why}"))?;
            }
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

/// Describes steps or ranks. Returns `None` for an empty list.
fn span<'a>(what: &str, mut numbers: impl Iterator<Item = &'a usize>) -> Option<String> {
    let from = thousands(*numbers.next()?);
    Some(match numbers.last() {
        None => format!("{what} {from}"),
        Some(&to) => format!("{what}s {from} to {}", thousands(to)),
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
        if entries.is_empty() {
            return Err(refused(io::Error::other("nothing is recorded in it")));
        }
        Ok(Self {
            path,
            steps: steps_made(&entries),
            places: entries.iter().map(|entry| entry.step).collect(),
            ranks: entries.iter().map(|entry| entry.rank).collect(),
            is_cut: text.last() != Some(&b'\n'),
            entries,
        })
    }
}

//! Where two recordings part.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io::{self, BufRead, Read};

use super::Entry;
use super::steps::{Place, Steps};

/// The first entry in which two recordings differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// What the first recording has there; `None` where it has nothing.
    pub first: Option<Entry>,
    /// What the second has.
    pub second: Option<Entry>,
    /// How many entries before it are equal.
    pub equal: usize,
    pub(super) gap: Option<Gap>,
    /// Whether one of the two had come to its end, and this is of the weights that it ended with.
    pub(super) is_over: bool,
    /// Into how many shards batches were cut, where that is because of the number of devices.
    pub(super) shards: Option<(usize, usize)>,
}

/// That one recording has nothing to compare with the other's entry says nothing of how that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Gap {
    /// This recording ends here, in the middle of a step.
    Ends(&'static str),
    /// This recording lacks this entry of the other, and goes on.
    Lacks(&'static str, Entry),
}

/// The most bytes of a line: an entry has not nearly as many, and of what is no recording the rest is not read.
const LONGEST_LINE: u64 = 1 << 20;

/// Reads a recording.
///
/// # Errors
///
/// When a line is not an entry: the message has its number. A last line that was cut short, because the run
/// was, is left out.
pub fn read(mut from: impl BufRead) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if from.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        match serde_json::from_slice(&line) {
            Ok(entry) => entries.push(entry),
            Err(error) if error.is_eof() && from.fill_buf()?.is_empty() => break,
            Err(error) => {
                let told = format!("line {number} is not of a recording: {error}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, told));
            }
        }
    }
    Ok(entries)
}

/// The steps that a recording has something of. What a run ended with is of none.
pub fn steps_made(entries: &[Entry]) -> BTreeSet<usize> {
    let Some(steps) = Steps::new(entries) else { return BTreeSet::new() };
    steps.numbers().into_iter().filter(|step| !steps.is_over(*step)).collect()
}

/// The first difference of two recordings, in the steps that both have; `None` where these are equal.
///
/// A run that was resumed begins later, one that was cut ends sooner. Steps are compared one by one. In each, what all
/// ranks had before it comes first, then what came out of it: loss and gradients are sums over all ranks, so a
/// difference on one rank shows on all others.
///
/// A run on two devices can be compared with one on four. Images are compared shard by shard, whichever rank has them,
/// and of all else ranks that only one recording has are left out. Within the steps that both have, an entry that one of
/// them lacks is a difference. Where nothing differs, but a recording ends in the middle of a step, that is told.
///
/// Where a run has come to its end there are weights, and no step: they are what the next step of a longer one begins
/// with.
pub fn first_divergence(a: &[Entry], b: &[Entry]) -> Option<Divergence> {
    let (a, b) = (Steps::new(a)?, Steps::new(b)?);
    let common = a.last_rank.min(b.last_rank);
    let shards =
        (a.last_rank != b.last_rank && a.shards() != b.shards()).then(|| (a.shards(), b.shards()));
    let both = a.first.max(b.first)..=a.last.min(b.last);
    // A rank that only one recording has is left out; and where a recording was cut, in its last step, it is what comes
    // next of a rank that tells so.
    let counts = |shard: &Entry, lacks: &Steps<'_>| shard.rank <= common && shard.step < lacks.last;
    let (mut equal, mut ended) = (0, None);
    for step in (&a.numbers() | &b.numbers()).into_iter().filter(|step| both.contains(step)) {
        let is_over = a.is_over(step) || b.is_over(step);
        let part = |first: Option<&Entry>, second: Option<&Entry>, equal, gap| {
            let (first, second) = (first.cloned(), second.cloned());
            Some(Divergence { first, second, equal, gap, is_over, shards })
        };
        let images = if is_over { Vec::new() } else { a.pairs_of_images(&b, step) };
        for (first, second) in images {
            let gap = match (first, second) {
                (Some(first), Some(second)) if first.hash == second.hash => {
                    equal += 1;
                    continue;
                }
                (Some(_), Some(_)) => None,
                (Some(shard), None) if counts(shard, &b) => {
                    Some(Gap::Lacks("second", shard.clone()))
                }
                (None, Some(shard)) if counts(shard, &a) => {
                    Some(Gap::Lacks("first", shard.clone()))
                }
                _ => continue,
            };
            return part(first, second, equal, gap);
        }
        let places: BTreeSet<Place> = a.places(step).chain(b.places(step)).collect();
        let compared = |(_, came_out, rank): &Place| *rank <= common && !(is_over && *came_out);
        for place in places.into_iter().filter(compared) {
            let (of_a, of_b) = (a.at(place), b.at(place));
            for index in 0..of_a.len().max(of_b.len()) {
                let (first, second) = (of_a.get(index).copied(), of_b.get(index).copied());
                if first == second {
                    equal += 1;
                    continue;
                }
                let gap = match (first, second) {
                    (Some(first), None) => Some(gap("second", &b, place, first)),
                    (None, Some(second)) => Some(gap("first", &a, place, second)),
                    (Some(first), Some(second)) => lacking(first, of_a, second, of_b),
                    (None, None) => None,
                };
                if !matches!(gap, Some(Gap::Ends(_))) {
                    return part(first, second, equal, gap);
                }
                // What the other ranks had made before it was cut may still differ.
                ended = ended.or_else(|| part(first, second, equal, gap));
                break;
            }
        }
    }
    ended
}

/// What it means that a recording has nothing more in a place where the other has this entry. Ranks are written one
/// after the other, so a recording that was cut has nothing of a later step, or of a later rank in this one.
fn gap(which: &'static str, steps: &Steps<'_>, place: Place, other: &Entry) -> Gap {
    match steps.is_written_beyond(place) {
        true => Gap::Lacks(which, other.clone()),
        false => Gap::Ends(which),
    }
}

/// Whether two recordings part in a place because one lacks what the other has.
fn lacking(first: &Entry, of_a: &[&Entry], second: &Entry, of_b: &[&Entry]) -> Option<Gap> {
    let called = |entry: &Entry| (entry.kind.clone(), entry.name.clone());
    let lacks = |of: &[&Entry], entry: &Entry| of.iter().all(|one| called(one) != called(entry));
    if lacks(of_b, first) {
        return Some(Gap::Lacks("second", first.clone()));
    }
    lacks(of_a, second).then(|| Gap::Lacks("first", second.clone()))
}

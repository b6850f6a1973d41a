//! Where two recordings part.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, BufRead};

use super::Entry;

/// The first entry in which two recordings differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// What the first recording has there; `None` where it has nothing.
    pub first: Option<Entry>,
    /// What the second has.
    pub second: Option<Entry>,
    /// How many entries before it are equal.
    pub equal: usize,
    gap: Option<Gap>,
}

/// That one recording has nothing to compare with the other's entry says nothing of how that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Gap {
    /// This recording ends here, in the middle of a step.
    Ends(&'static str),
    /// This recording lacks this entry of the other, and goes on.
    Lacks(&'static str, Entry),
}

/// Reads a recording.
///
/// # Errors
///
/// When a line is not an entry: the message has its number. A last line that was cut short, because the run
/// was, is left out.
pub fn read(from: impl BufRead) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut lines = (1..).zip(from.lines()).peekable();
    while let Some((number, line)) = lines.next() {
        match serde_json::from_str(&line?) {
            Ok(entry) => entries.push(entry),
            Err(error) if error.is_eof() && lines.peek().is_none() => break,
            Err(error) => {
                let told = format!("line {number} is not of a recording: {error}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, told));
            }
        }
    }
    Ok(entries)
}

/// The first difference of two recordings, in the steps that both have; `None` where these are equal.
///
/// A run that was resumed begins later, one that was cut ends sooner. Steps are compared one by one. In each, what all
/// ranks had before it comes first, then what came out of it: loss and gradients are sums over all ranks, so a
/// difference on one rank shows on all others. Ranks that only one recording has are left out: a run on two devices can
/// be compared with one on four. Within the steps that both have, an entry that one of them lacks is a difference.
pub fn first_divergence(a: &[Entry], b: &[Entry]) -> Option<Divergence> {
    let (mut a, mut b) = (by_step(a), by_step(b));
    let ranks = |steps: &Steps<'_>| steps.keys().map(|(_, _, rank)| *rank).max();
    let common = ranks(&a).min(ranks(&b))?;
    a.retain(|(_, _, rank), _| *rank <= common);
    b.retain(|(_, _, rank), _| *rank <= common);
    let (mut equal, nothing) = (0, Vec::new());
    let begins = first_step(&a).max(first_step(&b))?;
    let ends = last_step(&a).min(last_step(&b))?;
    let places: BTreeSet<&Place> = a.keys().chain(b.keys()).collect();
    for place in places.into_iter().filter(|(step, ..)| (begins..=ends).contains(step)) {
        let (of_a, of_b) = (a.get(place).unwrap_or(&nothing), b.get(place).unwrap_or(&nothing));
        for index in 0..of_a.len().max(of_b.len()) {
            let (first, second) = (of_a.get(index).copied(), of_b.get(index).copied());
            if first != second {
                let gap = match (first, second) {
                    (Some(first), None) => Some(gap("second", &b, place, first)),
                    (None, Some(second)) => Some(gap("first", &a, place, second)),
                    (Some(first), Some(second)) => lacking(first, of_a, second, of_b),
                    (None, None) => None,
                };
                let (first, second) = (first.cloned(), second.cloned());
                return Some(Divergence { first, second, equal, gap });
            }
            equal += 1;
        }
    }
    None
}

/// What it means that a recording has nothing more in a place where the other has this entry. Ranks are written one
/// after the other, so a recording that was cut has nothing of a later step, or of a later rank in this one.
fn gap(which: &'static str, steps: &Steps<'_>, place: &Place, other: &Entry) -> Gap {
    let written = |(step, came_out, rank): &Place| (*step, *rank, *came_out);
    match steps.keys().map(written).max() > Some(written(place)) {
        true => Gap::Lacks(which, other.clone()),
        false => Gap::Ends(which),
    }
}

/// Whether two recordings part in a place because one lacks what the other has. A shard's images come and go with the
/// division among the ranks, which is a difference as any other.
fn lacking(first: &Entry, of_a: &[&Entry], second: &Entry, of_b: &[&Entry]) -> Option<Gap> {
    let called = |entry: &Entry| (entry.kind.clone(), entry.name.clone());
    let lacks = |of: &[&Entry], entry: &Entry| of.iter().all(|one| called(one) != called(entry));
    if first.kind == "images" && second.kind == "images" {
        return None;
    }
    if lacks(of_b, first) {
        return Some(Gap::Lacks("second", first.clone()));
    }
    lacks(of_a, second).then(|| Gap::Lacks("first", second.clone()))
}

/// A step, before it or after it, and a rank.
type Place = (usize, bool, usize);

/// The entries of each place, in order.
type Steps<'a> = BTreeMap<Place, Vec<&'a Entry>>;

fn first_step(steps: &Steps<'_>) -> Option<usize> {
    steps.keys().map(|(step, ..)| *step).next()
}

fn last_step(steps: &Steps<'_>) -> Option<usize> {
    steps.keys().map(|(step, ..)| *step).next_back()
}

fn by_step(entries: &[Entry]) -> Steps<'_> {
    let mut steps = Steps::new();
    for entry in entries {
        let came_out = matches!(entry.kind.as_str(), "loss" | "gradient");
        steps.entry((entry.step, came_out, entry.rank)).or_default().push(entry);
    }
    steps
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, second, equal, gap } = self;
        let called = |Entry { kind, name, .. }: &Entry| match kind == name {
            true => kind.clone(),
            false => format!("{kind} {name}"),
        };
        let told = |entry: &Option<Entry>| match entry {
            Some(entry) => format!("{} {}", called(entry), entry.hash),
            None => "nothing".to_owned(),
        };
        if let Some(Entry { step, rank, .. }) = first.as_ref().or(second.as_ref()) {
            let what = match gap {
                Some(Gap::Ends(which)) => format!("the {which} recording ends here"),
                _ => "the first difference".to_owned(),
            };
            writeln!(f, "step {step}, rank {rank}: {what}, after {equal} equal tensors")?;
        }
        writeln!(f, "  first recording:  {}", told(first))?;
        write!(f, "  second recording: {}", told(second))?;
        match gap {
            Some(Gap::Ends(_)) => {
                return write!(f, "\n  in the middle of a step: nothing differs up to there");
            }
            Some(Gap::Lacks(which, entry)) => {
                return write!(f, "\n  the {which} recording lacks {} there", called(entry));
            }
            None => {}
        }
        match first.as_ref().or(second.as_ref()).map(|entry| entry.kind.as_str()) {
            Some("images") => {
                write!(f, "\n  the two have other images: compare seed, batch and sampler")
            }
            Some("parameter" | "buffer") if first.as_ref().is_some_and(|entry| entry.step > 1) => {
                write!(f, "\n  made by the update of the step before")
            }
            Some("parameter" | "buffer") => write!(f, "\n  the two began with other weights"),
            Some("loss") => write!(f, "\n  made by the forward pass"),
            Some("gradient") => {
                write!(f, "\n  made by the backward pass, or by the sum over the ranks")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(step: usize, rank: usize, kind: &str, hash: &str) -> Entry {
        Entry { step, rank, kind: kind.to_owned(), name: "w".to_owned(), hash: hash.to_owned() }
    }

    fn run() -> Vec<Entry> {
        let kinds = ["images", "parameter", "loss", "gradient"];
        let places = (1..=3).flat_map(|step| [0, 1].map(move |rank| (step, rank)));
        places.flat_map(|(step, rank)| kinds.map(|kind| entry(step, rank, kind, "00"))).collect()
    }

    #[test]
    fn equal_recordings_do_not_part_in_whatever_order_their_ranks_wrote() {
        let mut other = run();
        other.rotate_left(4);
        assert_eq!(first_divergence(&run(), &run()), None);
        other.sort_by_key(|entry| (entry.step, usize::MAX - entry.rank));
        assert_eq!(first_divergence(&run(), &other), None);
        // One ended earlier.
        assert_eq!(first_divergence(&run(), &run()[..8]), None);
        assert_eq!(first_divergence(&[], &run()), None);
    }

    #[test]
    fn the_first_step_rank_and_tensor_are_found() {
        let mut other = run();
        // The parameter of step 2 on rank 1, what came of it on both ranks, and later.
        for later in [10, 13, 14, 20] {
            other[later].hash = "ff".to_owned();
        }
        let found = first_divergence(&run(), &other).unwrap();
        assert_eq!(found.equal, 11);
        assert_eq!(found.first, Some(entry(2, 1, "parameter", "00")));
        assert_eq!(found.second, Some(entry(2, 1, "parameter", "ff")));
        let told = found.to_string();
        assert!(told.contains("step 2, rank 1: the first difference, after 11 equal"), "{told}");
        assert!(told.contains("made by the update of the step before"), "{told}");
    }

    #[test]
    fn steps_that_only_one_has_are_left_out() {
        let mut resumed = run().split_off(8);
        assert_eq!(first_divergence(&run(), &resumed), None);
        assert_eq!(first_divergence(&resumed, &run()), None);
        resumed[1].hash = "ff".to_owned();
        for found in [first_divergence(&run(), &resumed), first_divergence(&resumed, &run())] {
            assert_eq!(found.unwrap().equal, 1);
        }
    }

    #[test]
    fn ranks_that_only_one_has_are_left_out() {
        let one_rank: Vec<Entry> = run().into_iter().filter(|entry| entry.rank == 0).collect();
        assert_eq!(first_divergence(&run(), &one_rank), None);
    }

    /// What is told of a whole recording, as the first, and this one.
    fn told(of: &[Entry]) -> String {
        first_divergence(&run(), of).unwrap().to_string()
    }

    #[test]
    fn a_recording_that_ends_in_a_step_is_no_other_computation() {
        // In step 2, with fewer and fewer of its eight entries.
        for (length, place, equal) in
            [(15, "rank 1", 15), (13, "rank 1", 11), (11, "rank 1", 10), (9, "rank 0", 9)]
        {
            let cut = &run()[..length];
            let told = told(cut);
            let heading = format!("step 2, {place}: the second recording ends here, after {equal}");
            assert!(told.starts_with(&heading), "{length}: {told}");
            assert!(told.contains("nothing differs up to there"), "{told}");
            assert!(!told.contains("made by"), "{told}");
            let turned = first_divergence(cut, &run()).unwrap().to_string();
            assert!(turned.contains(": the first recording ends here, after"), "{turned}");
        }
    }

    #[test]
    fn an_entry_that_one_lacks_is_told_as_lacking() {
        // The images and the parameter of step 1, the gradients of both ranks of step 2.
        for (without, lacks) in [
            (vec![0], "step 1, rank 0: the first difference, after 0"),
            (vec![1], "step 1, rank 0: the first difference, after 1"),
            (vec![11], "step 2, rank 0: the first difference, after 13"),
            (vec![15], "step 2, rank 1: the first difference, after 15"),
            ((8..16).collect(), "step 2, rank 0: the first difference, after 8"),
            ((12..16).collect(), "step 2, rank 1: the first difference, after 10"),
        ] {
            let mut lacking = run();
            let gone: Vec<Entry> = without.iter().rev().map(|&at| lacking.remove(at)).collect();
            let Entry { kind, name, .. } = gone.last().unwrap();
            let told = told(&lacking);
            assert!(told.starts_with(lacks), "{without:?}: {told}");
            let lacks = format!("\n  the second recording lacks {kind} {name} there");
            assert!(told.ends_with(&lacks), "{told}");
            let turned = first_divergence(&lacking, &run()).unwrap().to_string();
            assert!(turned.ends_with(&lacks.replace("second", "first")), "{turned}");
        }
    }

    #[test]
    fn what_is_no_recording_is_refused_with_its_line() {
        let line = serde_json::to_string(&entry(1, 0, "loss", "00")).unwrap();
        assert_eq!(read(format!("{line}\n{line}\n").as_bytes()).unwrap().len(), 2);
        // A run that was killed in the middle of a line.
        assert_eq!(read(format!("{line}\n{}", &line[..20]).as_bytes()).unwrap().len(), 1);
        let error = read(format!("{line}\nnonsense\n").as_bytes()).unwrap_err().to_string();
        assert!(error.contains("line 2 is not of a recording"), "{error}");
    }
}

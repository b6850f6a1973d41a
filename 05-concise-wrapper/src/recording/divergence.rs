//! Where two recordings part.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead};

use super::Entry;

/// The first entry in which two recordings differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// What the first recording has there; `None` where it has ended.
    pub first: Option<Entry>,
    /// What the second has.
    pub second: Option<Entry>,
    /// How many entries before it are equal.
    pub equal: usize,
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
/// be compared with one on four.
pub fn first_divergence(a: &[Entry], b: &[Entry]) -> Option<Divergence> {
    let (mut a, mut b) = (by_step(a), by_step(b));
    let ranks = |steps: &Steps<'_>| steps.keys().map(|(_, _, rank)| *rank).max();
    let common = ranks(&a).min(ranks(&b))?;
    a.retain(|(_, _, rank), _| *rank <= common);
    b.retain(|(_, _, rank), _| *rank <= common);
    let mut equal = 0;
    let begins = first_step(&a).max(first_step(&b));
    for (place, of_a) in a.iter().filter(|((step, ..), _)| Some(*step) >= begins) {
        // The shorter recording has ended here.
        let of_b = b.get(place)?;
        for index in 0..of_a.len().max(of_b.len()) {
            let (first, second) = (of_a.get(index), of_b.get(index));
            if first != second {
                let copied = |entry: Option<&&Entry>| entry.map(|entry| (*entry).clone());
                return Some(Divergence { first: copied(first), second: copied(second), equal });
            }
            equal += 1;
        }
    }
    None
}

/// The entries of each step, before it and after it, and of each rank, in order.
type Steps<'a> = BTreeMap<(usize, bool, usize), Vec<&'a Entry>>;

fn first_step(steps: &Steps<'_>) -> Option<usize> {
    steps.keys().map(|(step, ..)| *step).next()
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
        let Self { first, second, equal } = self;
        let told = |entry: &Option<Entry>| match entry {
            Some(Entry { kind, name, hash, .. }) if kind == name => format!("{kind} {hash}"),
            Some(Entry { kind, name, hash, .. }) => format!("{kind} {name} {hash}"),
            None => "nothing".to_owned(),
        };
        if let Some(Entry { step, rank, .. }) = first.as_ref().or(second.as_ref()) {
            writeln!(
                f,
                "step {step}, rank {rank}: the first difference, after {equal} equal tensors"
            )?;
        }
        writeln!(f, "  first recording:  {}", told(first))?;
        write!(f, "  second recording: {}", told(second))?;
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

//! `--record FILE`: a hash of every tensor in every step, which shows where two runs part.
//!
//! Two runs that should be equal end with other weights. Their last losses say little: one wrong bit has changed every tensor by
//! then. But the *first* tensor that differs, in the order in which a step computes them, names the computation that differs:
//!
//! | in a step, on a rank | if it is the first to differ |
//! | --- | --- |
//! | images | another share of the data: sampler, seed, shuffle |
//! | parameters, and rank 0's buffers | the update of the step before, or the initial values |
//! | loss | the forward pass |
//! | gradients, last layer first | the backward pass of that layer, or the sum over ranks |
//!
//! A recording has one line of JSON for each of them, in that order, and [`first_divergence`] compares two recordings. After the
//! last step it has parameters and buffers once more, under the number of the next step. They show the last update, and a run
//! that resumes this one begins with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::io::{self, BufRead, Read, Write};
use std::sync::Mutex;

use base16ct::HexDisplay;
use candle_core::{Device, Tensor};
use harness::lock::locked;
use ops::weights_hash::WeightsHash;
use serde::{Deserialize, Serialize};

use crate::model::{Model, Progress};
use crate::weights::Named;
use crate::{Error, text};

/// One tensor at one time, or the loss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Counted from 1 over the whole run, also in a run that resumes another.
    pub step: usize,
    /// The rank.
    pub rank: usize,
    /// `images`, `parameter`, `buffer`, `loss` or `gradient`.
    pub kind: String,
    /// The name of the tensor. The name of images is the number of their shard.
    pub name: String,
    /// The hash of type, shape and bytes. The hash of the loss is its bits.
    pub hash: String,
}

/// The file of a recording.
pub struct Recording<W> {
    name: String,
    to: Mutex<W>,
}

impl<W: Write> Recording<W> {
    /// Makes a recording that is written step by step. Errors begin with `name`: a flag and a file.
    pub fn new(name: impl Display, to: W) -> Self {
        Self { name: name.to_string(), to: Mutex::new(to) }
    }

    fn write(&self, lines: &str) -> io::Result<()> {
        let mut to = locked(&self.to);
        let written = to.write_all(lines.as_bytes()).and_then(|()| to.flush());
        written.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.name)))
    }
}

// ANCHOR: recorder
/// Records the steps of one rank. All ranks record together, and rank 0 writes.
pub struct Recorder<'a, M, W> {
    model: &'a M,
    /// `None` on ranks other than 0.
    recording: Option<&'a Recording<W>>,
    /// The weights before the next step.
    weights: Vec<Entry>,
}

impl<'a, M: Model, W: Write> Recorder<'a, M, W> {
    /// Makes a recorder. Rank 0 passes a recording to write to.
    pub fn new(model: &'a M, recording: Option<&'a Recording<W>>) -> Self {
        Self { model, recording, weights: Vec::new() }
    }

    /// Records a step of [`train`](crate::train()). All ranks call this together. Fails when the recording cannot be
    /// written, or another rank stops or stalls.
    pub fn step(&mut self, progress: Progress<'_>) -> Result<(), Error> {
        let (steps, weights) = (progress.steps, self.model.weights());
        if let Some((batch, step)) = progress.last {
            let mut entries = Vec::new();
            for (shard, batch) in self.model.hosts().held.zip(&batch.shards) {
                let name = format!("shard {shard}");
                entries.push(self.entry(steps, "images", &name, hash(&batch.images)?));
            }
            entries.append(&mut self.weights);
            let loss = step.sums.clone().read()?.loss;
            entries.push(self.entry(steps, "loss", "loss", format!("{:016x}", loss.to_bits())));
            for (Named { name, .. }, gradient) in
                weights.parameters.iter().zip(&step.gradients).rev()
            {
                entries.push(self.entry(steps, "gradient", name, hash(gradient)?));
            }
            self.write(&entries)?;
        }
        // With local batch norms the ranks have different buffers, and before each evaluation all ranks get rank 0's.
        let buffers = if self.rank() == 0 { &weights.buffers[..] } else { &[] };
        self.weights.clear();
        for (kind, all) in [("parameter", &weights.parameters[..]), ("buffer", buffers)] {
            for Named { name, tensor } in all {
                self.weights.push(self.entry(steps + 1, kind, name, hash(tensor)?));
            }
        }
        Ok(())
    }

    /// Records the final weights. All ranks call this together, after the last step.
    pub fn end(self) -> Result<(), Error> {
        self.write(&self.weights)
    }

    fn rank(&self) -> usize {
        self.model.rank().map_or(0, |rank| rank.rank())
    }

    fn entry(&self, step: usize, kind: &str, name: &str, hash: String) -> Entry {
        Entry { step, rank: self.rank(), kind: kind.to_owned(), name: name.to_owned(), hash }
    }

    /// Writes the entries of all ranks: one line of JSON for each.
    fn write(&self, entries: &[Entry]) -> Result<(), Error> {
        let mut mine = String::new();
        for entry in entries {
            mine.push_str(&serde_json::to_string(entry).map_err(candle_core::Error::wrap)?);
            mine.push('\n');
        }
        let all = match self.model.rank() {
            Some(rank) => text::gathered(&**rank, &mine)?,
            None => vec![mine],
        };
        if let Some(recording) = self.recording {
            let written = all.iter().try_for_each(|lines| recording.write(lines));
            written.map_err(trainer::Error::from)?;
        }
        Ok(())
    }
}
// ANCHOR_END: recorder

/// Returns the first eight bytes of the hash of a tensor's type, shape and bytes.
fn hash(tensor: &Tensor) -> candle_core::Result<String> {
    let tensor = tensor.detach().to_device(&Device::Cpu)?;
    let hash = WeightsHash::new(&[(String::new(), tensor)])?;
    Ok(format!("{:x}", HexDisplay(&hash.bytes()[..8])))
}

/// The most bytes of a line. An entry has far fewer bytes, and the rest of another file is not read.
const LONGEST_LINE: u64 = 1 << 20;

/// Reads a recording. Leaves out a last line that ends early: the run was killed. Fails when a line is not an entry: the
/// message has its number.
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
                let text = format!("line {number} is not of a recording: {error}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
    }
    Ok(entries)
}

/// The kinds of entries of a step, in the order of comparison.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Images,
    Weights,
    /// Loss and gradients. They are sums over all ranks, so a difference on one rank shows on all ranks.
    Outcome,
}

/// A step, a phase, and a rank. For images it is the number of the shard, because its rank depends on the number of ranks.
type Place = (usize, Phase, usize);

/// A recording with at least one entry.
struct Run<'a> {
    places: BTreeMap<Place, Vec<&'a Entry>>,
    first: usize,
    last: usize,
    last_rank: usize,
}

impl<'a> Run<'a> {
    fn new(entries: &'a [Entry]) -> Option<Self> {
        let mut places = BTreeMap::<Place, Vec<&Entry>>::new();
        for entry in entries {
            let place = match entry.kind.as_str() {
                "images" => {
                    let shard = entry.name.rsplit(' ').next().and_then(|shard| shard.parse().ok());
                    (entry.step, Phase::Images, shard.unwrap_or(0))
                }
                "loss" | "gradient" => (entry.step, Phase::Outcome, entry.rank),
                _ => (entry.step, Phase::Weights, entry.rank),
            };
            places.entry(place).or_default().push(entry);
        }
        // If several ranks have one shard, which is a mistake, the first of them counts.
        for (_, shards) in places.iter_mut().filter(|((_, phase, _), _)| *phase == Phase::Images) {
            shards.sort_by_key(|shard| shard.rank);
            shards.truncate(1);
        }
        let (first, last) = (places.first_key_value()?.0.0, places.last_key_value()?.0.0);
        let last_rank = entries.iter().map(|entry| entry.rank).max()?;
        Some(Self { places, first, last, last_rank })
    }

    fn at(&self, place: Place) -> &[&'a Entry] {
        self.places.get(&place).map_or(&[], Vec::as_slice)
    }

    /// Whether the run ended before this step: the recording has its weights, and nothing else.
    fn is_over(&self, step: usize) -> bool {
        let of_step = (step, Phase::Images, 0)..=(step, Phase::Outcome, usize::MAX);
        let mut phases = self.places.range(of_step).map(|((_, phase, _), _)| *phase);
        step == self.last && phases.all(|phase| phase == Phase::Weights)
    }

    /// Whether the recording goes on after a place. In each step, the entries of rank 1 follow those of rank 0, and so on.
    fn goes_on_after(&self, place: Place) -> bool {
        let written = |(step, phase, rank): Place| (step, rank, phase);
        let others = self.places.keys().filter(|(_, phase, _)| *phase != Phase::Images);
        others.copied().any(|other| written(other) > written(place))
    }

    /// The number of shards of a batch.
    fn shards(&self) -> usize {
        let images = self.places.keys().filter(|(_, phase, _)| *phase == Phase::Images);
        images.map(|(_, _, shard)| shard).collect::<BTreeSet<_>>().len()
    }
}

/// Returns the steps that a recording has. The final weights belong to no step.
pub fn steps_made(entries: &[Entry]) -> BTreeSet<usize> {
    let Some(run) = Run::new(entries) else { return BTreeSet::new() };
    run.places.keys().map(|(step, ..)| *step).filter(|step| !run.is_over(*step)).collect()
}

/// The first entry in which two recordings differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The entry of the first recording, if it has one.
    pub first: Option<Entry>,
    /// The entry of the second recording, if it has one.
    pub second: Option<Entry>,
    /// The number of equal entries before it.
    pub equal: usize,
    gap: Option<Gap>,
    /// Whether one of the two runs ended before this step. Then only the final weights are compared.
    is_over: bool,
    /// The numbers of shards of a batch, if they differ with the number of devices.
    shards: Option<(usize, usize)>,
}

/// The recording that has no entry in a place, `first` or `second`, and the missing entry. Without an entry, the recording ends
/// there, in the middle of a step.
type Gap = (&'static str, Option<Entry>);

/// Finds the first difference of two recordings, in the steps that both have. Returns `None` if these are equal.
///
/// A run that resumes another begins later, and a run that was killed ends earlier. Recordings of two and of four devices can
/// be compared: images shard by shard, and everything else on the ranks that both have. An entry that one of them lacks is a
/// difference. If nothing differs, but a recording ends in the middle of a step, that is the result. The final weights of a run
/// are compared with the weights before the next step of a longer run.
pub fn first_divergence(a: &[Entry], b: &[Entry]) -> Option<Divergence> {
    let (a, b) = (Run::new(a)?, Run::new(b)?);
    let common = a.last_rank.min(b.last_rank);
    let shards = (a.shards(), b.shards());
    let shards = (a.last_rank != b.last_rank && shards.0 != shards.1).then_some(shards);
    let both = a.first.max(b.first)..=a.last.min(b.last);
    let places: BTreeSet<Place> = a.places.keys().chain(b.places.keys()).copied().collect();
    let (mut equal, mut ended) = (0, None);
    for place in places {
        let (step, phase, rank) = place;
        let (images, is_over) = (phase == Phase::Images, a.is_over(step) || b.is_over(step));
        let left_out = (!images && rank > common) || (is_over && phase != Phase::Weights);
        if !both.contains(&step) || left_out {
            continue;
        }
        let (of_a, of_b) = (a.at(place), b.at(place));
        for index in 0..of_a.len().max(of_b.len()) {
            let (first, second) = (of_a.get(index).copied(), of_b.get(index).copied());
            // The rank of a shard does not matter.
            let same = match images {
                true => first.map(|it| &it.hash) == second.map(|it| &it.hash),
                false => first == second,
            };
            if same {
                equal += 1;
                continue;
            }
            let gap = match (first, second) {
                (Some(_), Some(_)) if images => None,
                (Some(first), Some(second)) => lacking(first, of_a, second, of_b),
                (Some(first), None) => Some(missing("second", &b, place, first)),
                (None, second) => second.map(|second| missing("first", &a, place, second)),
            };
            // A shard of a rank that only one recording has, or of the last step, says nothing.
            if let (true, Some((which, Some(shard)))) = (images, &gap)
                && (shard.rank > common || step >= if *which == "first" { a.last } else { b.last })
            {
                continue;
            }
            let (first, second) = (first.cloned(), second.cloned());
            let ends = matches!(gap, Some((_, None)));
            let divergence = Divergence { first, second, equal, gap, is_over, shards };
            if !ends {
                return Some(divergence);
            }
            // The outcome of other ranks may still differ.
            ended.get_or_insert(divergence);
            break;
        }
    }
    ended
}

/// The gap in a recording that has no entry for `other` in a place, at the end of the place.
fn missing(which: &'static str, run: &Run<'_>, place: Place, other: &Entry) -> Gap {
    let goes_on = place.1 == Phase::Images || run.goes_on_after(place);
    (which, goes_on.then(|| other.clone()))
}

/// The gap in a place, if one recording lacks an entry there.
fn lacking(first: &Entry, of_a: &[&Entry], second: &Entry, of_b: &[&Entry]) -> Option<Gap> {
    let lacks = |of: &[&Entry], entry: &Entry| {
        of.iter().all(|one| (&one.kind, &one.name) != (&entry.kind, &entry.name))
    };
    if lacks(of_b, first) {
        return Some(("second", Some(first.clone())));
    }
    lacks(of_a, second).then(|| ("first", Some(second.clone())))
}

impl Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, second, equal, gap, is_over, shards } = self;
        let name = |Entry { kind, name, .. }: &Entry| match kind == name {
            true => kind.clone(),
            false => format!("{kind} {name}"),
        };
        let line = |entry: &Option<Entry>| match entry {
            Some(entry) => format!("{} {}", name(entry), entry.hash),
            None => "nothing".to_owned(),
        };
        let Some(Entry { step, rank, kind, .. }) = first.as_ref().or(second.as_ref()) else {
            return Ok(());
        };
        let difference = match gap {
            Some((which, None)) => format!("the {which} recording ends here"),
            _ => "the first difference".to_owned(),
        };
        let when = match is_over {
            true => format!("after step {}", step.saturating_sub(1)),
            false => format!("step {step}"),
        };
        writeln!(f, "{when}, rank {rank}: {difference}, after {equal} equal tensors")?;
        writeln!(f, "  first recording:  {}", line(first))?;
        writeln!(f, "  second recording: {}", line(second))?;
        let cause = match (gap, kind.as_str(), shards) {
            (Some((_, None)), ..) => "in the middle of a step: nothing differs up to there",
            (Some((which, Some(entry))), ..) => {
                let ranks = if entry.kind == "images" { ", on any rank" } else { "" };
                return write!(f, "  the {which} recording lacks {} there{ranks}", name(entry));
            }
            (None, "images", Some((first, second))) => {
                return write!(
                    f,
                    "  the two cut a batch into {first} and {second} shards: --shards makes them the same on any number of \
                     devices"
                );
            }
            (None, "images", None) => "the two have other images: compare seed, batch and sampler",
            (None, "loss", _) => "made by the forward pass",
            (None, "gradient", _) => "made by the backward pass, or by the sum over the ranks",
            _ if *is_over => "made by the update of that step",
            _ if *step > 1 => "made by the update of the step before",
            _ => "the two began with other weights",
        };
        write!(f, "  {cause}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(step: usize, rank: usize, kind: &str, hash: &str) -> Entry {
        Entry { step, rank, kind: kind.to_owned(), name: "w".to_owned(), hash: hash.to_owned() }
    }

    /// The entries of `ranks` in a step, with a shard for each.
    fn step(step: usize, ranks: usize) -> Vec<Entry> {
        let of_rank = |rank| {
            let images =
                Entry { name: format!("shard {rank}"), ..entry(step, rank, "images", "00") };
            let others =
                ["parameter", "loss", "gradient"].map(|kind| entry(step, rank, kind, "00"));
            std::iter::once(images).chain(others)
        };
        (0..ranks).flat_map(of_rank).collect()
    }

    /// Three steps on two ranks, of a run that was cut or is under way.
    fn run() -> Vec<Entry> {
        (1..=3).flat_map(|number| step(number, 2)).collect()
    }

    /// So many steps on two ranks, to the end.
    fn ended(steps: usize) -> Vec<Entry> {
        let weights = [0, 1].map(|rank| entry(steps + 1, rank, "parameter", "00"));
        (1..=steps).flat_map(|number| step(number, 2)).chain(weights).collect()
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
        // The parameter of step 2 on rank 1, then the outcome on both ranks, and a later entry.
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
            // The images of both ranks.
            assert_eq!(found.unwrap().equal, 2);
        }
    }

    #[test]
    fn ranks_that_only_one_has_are_left_out() {
        let one_rank: Vec<Entry> = run().into_iter().filter(|entry| entry.rank == 0).collect();
        assert_eq!(first_divergence(&run(), &one_rank), None);
    }

    /// The message for a whole recording and this one.
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
    fn where_a_recording_ends_in_a_step_what_came_out_before_it_is_compared() {
        // Rank 0 has written all of step 3, rank 1 nothing.
        for (at, made_by) in [(18, "forward"), (19, "backward")] {
            let mut cut = run()[..20].to_vec();
            cut[at].hash = "ff".to_owned();
            let told = told(&cut);
            assert!(told.starts_with("step 3, rank 0: the first difference, after "), "{told}");
            assert!(told.contains(&format!("made by the {made_by} pass")), "{told}");
        }
    }

    #[test]
    fn an_entry_that_one_lacks_is_told_as_lacking() {
        // The images and the parameter of step 1, the gradients of both ranks of step 2.
        for (without, lacks) in [
            (vec![0], "step 1, rank 0: the first difference, after 0"),
            (vec![1], "step 1, rank 0: the first difference, after 2"),
            (vec![11], "step 2, rank 0: the first difference, after 13"),
            (vec![15], "step 2, rank 1: the first difference, after 15"),
            ((8..16).collect(), "step 2, rank 0: the first difference, after 8"),
            ((12..16).collect(), "step 2, rank 1: the first difference, after 9"),
        ] {
            let mut lacking = run();
            let gone: Vec<Entry> = without.iter().rev().map(|&at| lacking.remove(at)).collect();
            let Entry { kind, name, .. } = gone.last().unwrap();
            let told = told(&lacking);
            assert!(told.starts_with(lacks), "{without:?}: {told}");
            let where_else = if kind == "images" { ", on any rank" } else { "" };
            let lacks = format!("\n  the second recording lacks {kind} {name} there{where_else}");
            assert!(told.ends_with(&lacks), "{told}");
            let turned = first_divergence(&lacking, &run()).unwrap().to_string();
            assert!(turned.ends_with(&lacks.replace("second", "first")), "{turned}");
        }
    }

    /// Two steps with four shards in every batch, on so many ranks, to the end.
    fn by_shard(ranks: usize) -> Vec<Entry> {
        let of_rank = |step, rank| {
            let shards = (rank * 4 / ranks..(rank + 1) * 4 / ranks).map(move |shard| Entry {
                name: format!("shard {shard}"),
                ..entry(step, rank, "images", &format!("0{shard}"))
            });
            let others =
                ["parameter", "loss", "gradient"].map(|kind| entry(step, rank, kind, "00"));
            shards.chain(others)
        };
        let steps = [1, 2].into_iter().flat_map(|step| (0..ranks).map(move |rank| (step, rank)));
        let weights = (0..ranks).map(|rank| entry(3, rank, "parameter", "00"));
        steps.flat_map(|(step, rank)| of_rank(step, rank)).chain(weights).collect()
    }

    #[test]
    fn a_shard_is_compared_whichever_rank_has_it() {
        for (one, other) in [(1, 2), (1, 4), (2, 4), (4, 2), (4, 1)] {
            let (one, mut other) = (by_shard(one), by_shard(other));
            assert_eq!(first_divergence(&one, &other), None);
            // Of a recording that was cut anywhere, nothing differs.
            for length in 0..other.len() {
                if let Some(found) = first_divergence(&one, &other[..length]) {
                    assert!(found.to_string().contains("nothing differs up to there"), "{found}");
                }
            }
            let shard = other.iter().position(|entry| entry.name == "shard 3").unwrap();
            other[shard].hash = "ff".to_owned();
            let found = first_divergence(&one, &other).unwrap();
            assert_eq!((found.equal, found.second.as_ref()), (3, Some(&other[shard])));
            assert!(found.to_string().ends_with("compare seed, batch and sampler"), "{found}");
        }
    }

    #[test]
    fn batches_that_are_cut_into_other_shards_are_told() {
        let mut four = by_shard(4);
        four[0].hash = "ff".to_owned();
        let found = first_divergence(&run(), &four).unwrap();
        assert_eq!(found.equal, 0);
        let told = "the two cut a batch into 2 and 4 shards: --shards makes them the same";
        assert!(found.to_string().contains(told), "{found}");
    }

    #[test]
    fn what_the_last_update_made_is_compared() {
        let mut other = ended(3);
        assert_eq!(first_divergence(&ended(3), &other), None);
        other[25].hash = "ff".to_owned();
        // With a run that ended there, too, and with a run that went on.
        for whole in [ended(3), ended(4)] {
            for found in [first_divergence(&whole, &other), first_divergence(&other, &whole)] {
                let told = found.unwrap().to_string();
                let heading = "after step 3, rank 1: the first difference, after 25 equal tensors";
                assert!(told.starts_with(heading), "{told}");
                assert!(told.ends_with("made by the update of that step"), "{told}");
            }
        }
    }

    #[test]
    fn a_run_that_went_on_begins_with_what_the_one_before_ended_with() {
        let longer = ended(5);
        for steps in 1..5 {
            assert_eq!(first_divergence(&ended(steps), &longer), None);
            assert_eq!(first_divergence(&longer, &ended(steps)), None);
            let mut rest = longer[steps * 8..].to_vec();
            assert_eq!(first_divergence(&ended(steps), &rest), None);
            rest[5].hash = "ff".to_owned();
            assert_eq!(first_divergence(&ended(steps), &rest).unwrap().equal, 1);
        }
        // Only the weights of one rank were written of the end.
        let cut = ended(3);
        let told = first_divergence(&cut[..25], &ended(3)).unwrap().to_string();
        assert!(told.starts_with("after step 3, rank 1: the first recording ends here"), "{told}");
    }

    #[test]
    fn what_is_no_recording_is_refused_with_its_line() {
        let line = serde_json::to_string(&entry(1, 0, "loss", "00")).unwrap();
        assert_eq!(read(format!("{line}\n{line}\n").as_bytes()).unwrap().len(), 2);
        // A run that was killed in the middle of a line.
        assert_eq!(read(format!("{line}\n{}", &line[..20]).as_bytes()).unwrap().len(), 1);
        let error = read(format!("{line}\nnonsense\n").as_bytes()).unwrap_err().to_string();
        assert!(error.contains("line 2 is not of a recording"), "{error}");
        // A file without an end: `read` reads no more than the bytes of a line.
        for endless in [b'"', 0] {
            let error = read(io::BufReader::new(io::repeat(endless))).unwrap_err().to_string();
            assert!(error.contains("line 1 is not of a recording"), "{error}");
        }
    }
}

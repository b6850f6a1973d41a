//! `cargo course divergence A B`: finds the first difference between two recordings of stage 5's `--record`.
//!
//! Two runs that should be equal end with other weights. Their last losses say little: one wrong bit has changed every tensor by
//! then. But the *first* tensor that differs, in the order in which a step computes them, names the computation that differs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::Args;
use harness::cli::UsageError;
use harness::recording::Entry;
use harness::report::{line, thousands};

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// A file that `--record` wrote
    first: PathBuf,
    /// Another
    second: PathBuf,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let paths = [&*arguments.first, &*arguments.second];
    let [(first, first_is_cut), (second, second_is_cut)] =
        [read_file(paths[0])?, read_file(paths[1])?];
    let [first, second] = [(paths[0], &first), (paths[1], &second)].map(|(path, entries)| {
        let nothing = || refused(path, &io::Error::other("nothing is recorded in it"));
        Recording::new(entries).ok_or_else(nothing)
    });
    let runs = [first?, second?];
    let [made, other_made] = runs.each_ref().map(Recording::steps_made);
    let (common, both) = (&made & &other_made, &runs[0].steps & &runs[1].steps);
    let (Some(&from), Some(&end)) = (both.first(), both.last()) else {
        let told = "the two recordings have no step in common: nothing can be compared";
        return Err(UsageError::new(told).into());
    };
    // The first step after the common steps.
    let later = common.last().map_or(from, |to| to + 1);
    let divergence = divergence(&runs);
    match &divergence {
        Some(divergence) => line(divergence)?,
        None => line(format_args!("no difference in {}", compared(&common, end)))?,
    }
    for (this, made, is_cut) in [(0, made, first_is_cut), (1, other_made, second_is_cut)] {
        if is_cut {
            let path = paths[this].display();
            line(format_args!("{path} ends in the middle of a line: its run was cut short"))?;
        }
        let ranks = runs[this].ranks.difference(&runs[1 - this].ranks);
        // Behind a difference, later steps do not matter.
        let longer = made.range(later..).filter(|_| divergence.is_none());
        for (what, why) in [
            (span("step", made.range(..from)), "the other begins later"),
            (span("step", longer), "the other ends sooner"),
            (span("rank", ranks), "of that, nothing but images was compared"),
        ] {
            if let Some(what) = what {
                line(format_args!("only the {} recording has {what}: {why}", NAMES[this]))?;
            }
        }
    }
    Ok(())
}

/// The names of two recordings in messages.
const NAMES: [&str; 2] = ["first", "second"];

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

fn refused(path: &Path, error: &io::Error) -> UsageError {
    UsageError::new(format_args!("{}: {error}", path.display()))
}

/// Reads the entries of a recording, and whether its last line is incomplete.
fn read_file(path: &Path) -> Result<(Vec<Entry>, bool), UsageError> {
    let text = fs::read(path).map_err(|error| refused(path, &error))?;
    let entries = read(&*text).map_err(|error| refused(path, &error))?;
    Ok((entries, text.last() != Some(&b'\n')))
}

/// Reads a recording, without a last line that ends early. Fails when a line is not an entry: the message has its number.
fn read(from: impl io::Read) -> io::Result<Vec<Entry>> {
    let entries = serde_json::Deserializer::from_reader(from).into_iter::<Entry>();
    let whole = entries.take_while(|entry| !entry.as_ref().is_err_and(serde_json::Error::is_eof));
    whole.collect::<Result<_, _>>().map_err(|error| {
        // At the end of a line serde_json is at column 0 of the next one.
        let number = error.line() - usize::from(error.line() > 1 && error.column() == 0);
        let text = format!("line {number} is not of a recording: {error}");
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

/// The kinds of entries of a step, in the order of comparison.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Images,
    Weights,
    /// Loss and gradients. They are sums over all ranks, so a difference on one rank shows on all ranks.
    Outcome,
}

impl Phase {
    fn of(entry: &Entry) -> Self {
        match entry.kind.as_str() {
            "images" => Self::Images,
            "loss" | "gradient" => Self::Outcome,
            _ => Self::Weights,
        }
    }
}

/// A step, a phase and a rank. For images the third number is the shard, because its rank depends on the number of ranks.
type Place = (usize, Phase, usize);

/// A recording with at least one entry.
struct Recording<'a> {
    /// The entries of each place, in the order in which a rank makes them.
    places: BTreeMap<Place, Vec<&'a Entry>>,
    /// The steps, and the step before which the run ended.
    steps: BTreeSet<usize>,
    ranks: BTreeSet<usize>,
    /// The step before which the run ended, if it did: the recording has the weights of this step, and nothing else.
    ended: Option<usize>,
    /// The step, rank and phase of the entry that was written last.
    end: (usize, usize, Phase),
    /// The number of shards of a batch.
    shards: usize,
}

impl<'a> Recording<'a> {
    fn new(all: &'a [Entry]) -> Option<Self> {
        let (mut places, mut shards) = (BTreeMap::<Place, Vec<&Entry>>::new(), BTreeSet::new());
        for entry in all {
            let (phase, mut owner) = (Phase::of(entry), entry.rank);
            if phase == Phase::Images {
                owner = entry.name.rsplit(' ').next()?.parse().unwrap_or(0);
                shards.insert(owner);
            }
            let there = places.entry((entry.step, phase, owner)).or_default();
            // If several ranks have one shard, which is a mistake, the first of them counts.
            if there.is_empty() || phase != Phase::Images {
                there.push(entry);
            }
        }
        let last = places.keys().last()?.0;
        let mut of_last = places.range((last, Phase::Images, 0)..);
        Some(Self {
            steps: all.iter().map(|entry| entry.step).collect(),
            ranks: all.iter().map(|entry| entry.rank).collect(),
            ended: of_last.all(|(place, _)| place.1 == Phase::Weights).then_some(last),
            end: all.iter().map(|entry| (entry.step, entry.rank, Phase::of(entry))).max()?,
            shards: shards.len(),
            places,
        })
    }

    /// The steps of the run. The final weights belong to no step.
    fn steps_made(&self) -> BTreeSet<usize> {
        self.steps.iter().copied().filter(|step| self.ended != Some(*step)).collect()
    }
}

/// Describes the first difference of two recordings, in the steps that both have: the step, the rank, both entries and the
/// likely cause. Returns `None` if these steps are equal.
///
/// Numbers of devices may differ: images are compared shard by shard, and everything else on the ranks that both have. A missing
/// entry is a difference, and so is an end in the middle of a step, if nothing else differs. The final weights of a run are
/// compared with the weights before the next step of a longer run.
fn divergence(runs: &[Recording<'_>; 2]) -> Option<String> {
    let [a, b] = runs;
    let steps = a.steps.first().max(b.steps.first())..=a.steps.last().min(b.steps.last());
    let common = a.ranks.last().min(b.ranks.last());
    let other_shards = a.ranks.last() != b.ranks.last() && a.shards != b.shards;
    let shards = other_shards.then_some([a.shards, b.shards]);
    let (mut equal, mut cut_short) = (0, None);
    for place in a.places.keys().chain(b.places.keys()).collect::<BTreeSet<_>>() {
        let (step, phase, owner) = place;
        let images = *phase == Phase::Images;
        let over = runs.iter().any(|run| run.ended == Some(*step));
        let is_common = (images || Some(owner) <= common) && (!over || *phase == Phase::Weights);
        if !is_common || !steps.contains(&Some(step)) {
            continue;
        }
        let of = [a, b].map(|run| run.places.get(place).map_or(&[][..], Vec::as_slice));
        for number in 0..of[0].len().max(of[1].len()) {
            let pair = of.map(|entries| entries.get(number).copied());
            let Some(entry) = pair[0].or(pair[1]) else { continue };
            let [hash, other] = pair.map(|it| it.map(|it| &it.hash));
            if pair[0] == pair[1] || (images && hash == other) {
                equal += 1;
                continue;
            }
            let mut what = "the first difference".to_owned();
            let (mut cause, mut ends) = (cause(entry, over, shards), false);
            // The recording that has no entry of this name there.
            let lacking = [1, 0].into_iter().find_map(|which| {
                let title = title(pair[1 - which]?);
                (!of[which].iter().any(|it| self::title(it) == title)).then_some((which, title))
            });
            if let Some((which, title)) = lacking {
                let (run, name) = (&runs[which], NAMES[which]);
                // A shard of a rank that only one recording has, or of the last step, says nothing.
                if images && (Some(&entry.rank) > common || Some(step) >= run.steps.last()) {
                    continue;
                }
                let ranks = if images { ", on any rank" } else { "" };
                cause = format!("the {name} recording lacks {title} there{ranks}");
                ends = !images && pair[which].is_none() && run.end <= (*step, *owner, *phase);
                if ends {
                    what = format!("the {name} recording ends here");
                    cause = "in the middle of a step: nothing differs up to there".to_owned();
                }
            }
            let (after, made) = if over { ("after ", step.saturating_sub(1)) } else { ("", *step) };
            let [first, second] = pair.map(|entry| match entry {
                Some(entry) => format!("{} {}", title(entry), entry.hash),
                None => "nothing".to_owned(),
            });
            let text = format!(
                "{after}step {made}, rank {}: {what}, after {equal} equal tensors\n  first recording:  {first}\n  second recording: \
                 {second}\n  {cause}",
                entry.rank
            );
            if !ends {
                return Some(text);
            }
            // The outcome of other ranks may still differ.
            cut_short.get_or_insert(text);
        }
    }
    cut_short
}

/// `gradient fc.weight`, or `loss`.
fn title(Entry { kind, name, .. }: &Entry) -> String {
    if kind == name { kind.clone() } else { format!("{kind} {name}") }
}

/// The likely cause of another hash. `over` says whether a run ended before this step, and `shards` are the numbers of
/// shards of a batch, if they differ with the number of devices.
fn cause(entry: &Entry, over: bool, shards: Option<[usize; 2]>) -> String {
    let cause = match (entry.kind.as_str(), shards) {
        ("images", Some([first, second])) => {
            return format!(
                "the two cut a batch into {first} and {second} shards: --shards makes them the same on any number of devices"
            );
        }
        ("images", None) => "the two have other images: compare seed, batch and sampler",
        ("loss", _) => "made by the forward pass",
        ("gradient", _) => "made by the backward pass, or by the sum over the ranks",
        _ if over => "made by the update of that step",
        _ if entry.step > 1 => "made by the update of the step before",
        _ => "the two began with other weights",
    };
    cause.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_divergence(a: &[Entry], b: &[Entry]) -> Option<String> {
        divergence(&[Recording::new(a)?, Recording::new(b)?])
    }

    fn entry(step: usize, rank: usize, kind: &str, hash: &str) -> Entry {
        Entry { step, rank, kind: kind.to_owned(), name: "w".to_owned(), hash: hash.to_owned() }
    }

    /// A recording of so many steps and ranks, with so many shards in a batch. It has the final weights if the run has `ended`.
    fn recording(steps: usize, ranks: usize, shards: usize, ended: bool) -> Vec<Entry> {
        let of_rank = |(step, rank): (usize, usize)| {
            let held = rank * shards / ranks..(rank + 1) * shards / ranks;
            let images = held.map(move |shard| Entry {
                name: format!("shard {shard}"),
                ..entry(step, rank, "images", &format!("0{shard}"))
            });
            let kinds = ["parameter", "loss", "gradient"];
            images.chain(kinds.map(|kind| entry(step, rank, kind, "00")))
        };
        let made = (1..=steps).flat_map(|step| (0..ranks).map(move |rank| (step, rank)));
        let last = (0..ranks).filter(|_| ended);
        let weights = last.map(|rank| entry(steps + 1, rank, "parameter", "00"));
        made.flat_map(of_rank).chain(weights).collect()
    }

    /// Three steps on two ranks, of a run that was cut or is under way.
    fn run() -> Vec<Entry> {
        recording(3, 2, 2, false)
    }

    /// So many steps on two ranks, to the end.
    fn ended(steps: usize) -> Vec<Entry> {
        recording(steps, 2, 2, true)
    }

    /// Two steps with four shards in every batch, on so many ranks, to the end.
    fn by_shard(ranks: usize) -> Vec<Entry> {
        recording(2, ranks, 4, true)
    }

    /// The same recording, with other hashes of these entries.
    fn other(mut entries: Vec<Entry>, changed: &[usize]) -> Vec<Entry> {
        changed.iter().for_each(|&at| entries[at].hash = "ff".to_owned());
        entries
    }

    /// The messages about two recordings, and about the same in turn.
    fn told(a: &[Entry], b: &[Entry]) -> [String; 2] {
        [(a, b), (b, a)].map(|(a, b)| first_divergence(a, b).expect("a difference"))
    }

    #[test]
    fn equal_recordings_do_not_part_and_what_only_one_has_is_left_out() {
        let mut in_other_order = run();
        in_other_order.sort_by_key(|entry| (entry.step, usize::MAX - entry.rank));
        let one_rank = run().into_iter().filter(|entry| entry.rank == 0).collect();
        let mut pairs = vec![
            (run(), run()),
            (run(), in_other_order),
            (run(), one_rank),
            // One ended earlier, or began later.
            (run(), run()[..8].to_vec()),
            (run(), run().split_off(8)),
            (Vec::new(), run()),
            (ended(3), ended(3)),
        ];
        // A run that went on begins with the weights that the one before ended with.
        for steps in 1..5 {
            pairs.push((ended(steps), ended(5)));
            pairs.push((ended(steps), ended(5).split_off(steps * 8)));
        }
        for (one, other) in [(1, 2), (1, 4), (2, 4), (4, 2), (4, 1)] {
            pairs.push((by_shard(one), by_shard(other)));
        }
        for (number, (a, b)) in pairs.iter().enumerate() {
            assert_eq!([first_divergence(a, b), first_divergence(b, a)], [None, None], "{number}");
        }
    }

    #[test]
    fn the_first_step_rank_and_tensor_are_found() {
        // The parameter of step 2 on rank 1, then the outcome on both ranks, and a later entry.
        let expected = "step 2, rank 1: the first difference, after 11 equal tensors\n  \
                        first recording:  parameter w 00\n  second recording: parameter w ff\n  \
                        made by the update of the step before";
        assert_eq!(told(&run(), &other(run(), &[10, 13, 14, 20]))[0], expected);
        // After the images of both ranks, in the first step of a run that was resumed.
        for text in told(&run(), &other(run().split_off(8), &[1])) {
            assert!(text.contains(", after 2 equal tensors"), "{text}");
        }
    }

    #[test]
    fn a_recording_that_ends_in_a_step_is_no_other_computation() {
        // In step 2, with fewer and fewer of its eight entries.
        for (length, place, equal) in
            [(15, "rank 1", 15), (13, "rank 1", 11), (11, "rank 1", 10), (9, "rank 0", 9)]
        {
            let [text, turned] = told(&run(), &run()[..length]);
            let heading = format!("step 2, {place}: the second recording ends here, after {equal}");
            assert!(text.starts_with(&heading), "{length}: {text}");
            assert!(text.contains("nothing differs up to there"), "{text}");
            assert!(!text.contains("made by"), "{text}");
            assert!(turned.contains(": the first recording ends here, after"), "{turned}");
        }
        // Rank 0 has written all of step 3, rank 1 nothing: what came out before the end is compared.
        for (at, made_by) in [(18, "forward"), (19, "backward")] {
            let [text, _] = told(&run(), &other(run()[..20].to_vec(), &[at]));
            assert!(text.starts_with("step 3, rank 0: the first difference, after "), "{text}");
            assert!(text.contains(&format!("made by the {made_by} pass")), "{text}");
        }
        // Only the weights of one rank were written of the end.
        let [text, _] = told(&ended(3)[..25], &ended(3));
        assert!(text.starts_with("after step 3, rank 1: the first recording ends here"), "{text}");
    }

    #[test]
    fn an_entry_that_one_lacks_is_told_as_lacking() {
        // The images and the parameter of step 1, the gradients of both ranks of step 2.
        for (without, begins) in [
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
            let [text, turned] = told(&run(), &lacking);
            assert!(text.starts_with(begins), "{without:?}: {text}");
            let where_else = if kind == "images" { ", on any rank" } else { "" };
            let lacks = format!("\n  the second recording lacks {kind} {name} there{where_else}");
            assert!(text.ends_with(&lacks), "{text}");
            assert!(turned.ends_with(&lacks.replace("second", "first")), "{turned}");
        }
    }

    #[test]
    fn a_shard_is_compared_whichever_rank_has_it() {
        for (one, several) in [(1, 2), (1, 4), (2, 4), (4, 2), (4, 1)] {
            let (one, several) = (by_shard(one), by_shard(several));
            // Of a recording that was cut anywhere, nothing differs.
            for length in 0..several.len() {
                if let Some(text) = first_divergence(&one, &several[..length]) {
                    assert!(text.contains("nothing differs up to there"), "{text}");
                }
            }
            let shard = several.iter().position(|entry| entry.name == "shard 3").unwrap();
            let [text, _] = told(&one, &other(several, &[shard]));
            assert!(text.contains(", after 3 equal tensors"), "{text}");
            assert!(text.contains("second recording: images shard 3 ff"), "{text}");
            assert!(text.ends_with("compare seed, batch and sampler"), "{text}");
        }
        let [text, _] = told(&run(), &other(by_shard(4), &[0]));
        assert!(text.contains(", after 0 equal tensors"), "{text}");
        let shards = "the two cut a batch into 2 and 4 shards: --shards makes them the same";
        assert!(text.contains(shards), "{text}");
    }

    #[test]
    fn what_the_last_update_made_is_compared() {
        // With a run that ended there, too, and with a run that went on.
        for whole in [ended(3), ended(4)] {
            for text in told(&whole, &other(ended(3), &[25])) {
                let heading = "after step 3, rank 1: the first difference, after 25 equal tensors";
                assert!(text.starts_with(heading), "{text}");
                assert!(text.ends_with("made by the update of that step"), "{text}");
            }
        }
        for steps in 1..5 {
            let [text, _] = told(&ended(steps), &other(ended(5).split_off(steps * 8), &[5]));
            assert!(text.contains(", after 1 equal tensors"), "{text}");
        }
    }

    #[test]
    fn what_is_no_recording_is_refused_with_its_line() {
        let line = serde_json::to_string(&entry(1, 0, "loss", "00")).unwrap();
        assert_eq!(read(format!("{line}\n{line}\n").as_bytes()).unwrap().len(), 2);
        // A run that was killed in the middle of a line.
        assert_eq!(read(format!("{line}\n{}", &line[..20]).as_bytes()).unwrap().len(), 1);
        let refused = |number, of: &mut dyn io::Read| {
            let error = read(of).unwrap_err().to_string();
            assert!(error.contains(&format!("line {number} is not of a recording")), "{error}");
        };
        refused(2, &mut format!("{line}\nnonsense\n").as_bytes());
        refused(2, &mut format!("{line}\n{}\n{line}\n", &line[..20]).as_bytes());
        // Files without an end.
        refused(1, &mut io::repeat(b'"'));
        refused(1, &mut io::repeat(0));
    }
}

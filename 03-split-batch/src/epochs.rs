//! Prints the samples of each rank in two epochs, and the samples that occur never or more than once.

use harness::cli::name_of;
use harness::report::{columns, counted, line, paragraph, shown_rows};
use split_batch::{Breakage, Sampler};

use crate::{SHOWN_DEVICES, width};

/// The seed of the example's shuffles.
const SEED: u64 = 1;

/// The largest number of samples that a list names.
const NAMED: usize = 10;

/// The most lines of a rank.
const MOST_LINES: usize = 3;

/// The samples of each rank in each step of an epoch.
type Shares = Vec<Vec<Vec<u32>>>;

/// Prints two epochs: the steps of each rank in order, and a conclusion.
pub(crate) fn show(
    samples: usize,
    global_batch: usize,
    ranks: usize,
    breakage: Option<Breakage>,
) -> anyhow::Result<()> {
    paragraph(format_args!(
        "an epoch of {samples} samples in global batches of {global_batch}, by number of sample; | separates batches"
    ))?;
    let needs_a_short_batch = matches!(breakage, Some(Breakage::DropLast | Breakage::FillUp));
    if needs_a_short_batch && samples.is_multiple_of(global_batch) {
        paragraph(
            "  note: all of its batches are full, so this bug does nothing: take --epoch-samples that --batch-size does \
             not divide",
        )?;
    }
    let shares = [0, 1].map(|epoch| -> Shares {
        let share = |rank| {
            let sampler = Sampler::new(samples, global_batch, ranks, rank, SEED);
            match breakage {
                Some(breakage) => sampler.broken_epoch(epoch, breakage),
                None => sampler.epoch(epoch).collect(),
            }
        };
        (0..ranks).map(share).collect()
    });
    let width = width(samples - 1, 3);
    for (epoch, shares_of_epoch) in shares.iter().enumerate() {
        line(format_args!("  epoch {epoch}"))?;
        for rank in shown_rows(ranks, SHOWN_DEVICES) {
            match rank {
                Some(rank) => line(rank_lines(rank, &shares_of_epoch[rank], width, columns()))?,
                None => line("    …")?,
            }
        }
        let same = epoch == 1 && breakage == Some(Breakage::SameOrder) && shares[0] == shares[1];
        let again = if same { ", in the order of the epoch before" } else { "" };
        paragraph(format_args!("    {}{again}", tally(samples, shares_of_epoch)))?;
    }
    Ok(paragraph(format_args!("\n{}", conclusion(samples, &shares, breakage)))?)
}

/// Lists the samples of a rank in lines of at most `columns` characters. The end of a long list is left out.
fn rank_lines(rank: usize, steps: &[Vec<u32>], width: usize, columns: usize) -> String {
    let name = format!("    rank {rank}:");
    let mut lines = vec![name.clone()];
    let indent = name.len();
    for (number, step) in steps.iter().enumerate() {
        let separator = (number > 0).then(|| " |".to_owned());
        for word in separator.into_iter().chain(step.iter().map(|it| format!("{it:width$}"))) {
            let last = lines.len() - 1;
            if lines[last].len() + word.len() <= columns {
                lines[last] += &word;
            } else {
                lines.push(format!("{:indent$}{word}", ""));
            }
        }
    }
    if lines.len() > MOST_LINES {
        let (all, steps) = (steps.iter().map(Vec::len).sum(), steps.len());
        lines.truncate(MOST_LINES - 1);
        let (all, steps) = (counted(all, "sample"), counted(steps, "step"));
        lines.push(format!("{:indent$} … {all} in {steps}", ""));
    }
    lines.join("\n")
}

/// Says what the two epochs mean.
fn conclusion(samples: usize, epochs: &[Shares; 2], breakage: Option<Breakage>) -> String {
    let count = |epoch: &Shares| {
        let times = times(samples, epoch);
        let of = |wanted: fn(&usize) -> bool| times.iter().copied().filter(wanted).count();
        (of(|times| *times == 0), of(|times| *times > 1))
    };
    let [(never, often), second] = [count(&epochs[0]), count(&epochs[1])];
    let once = (never, often) == (0, 0) && second == (0, 0);
    let Some(bug) = breakage else { return right(epochs, once) };
    let name = name_of(&bug);
    let what = match bug {
        Breakage::SameOrder if epochs[0] == epochs[1] => {
            "both epochs have the same batches in the same order, so a sample always meets the same samples.".to_owned()
        }
        _ if once => "every sample occurs once, so this run does not show the bug.".to_owned(),
        Breakage::DropLast if never == samples => {
            "no batch is full, so the epochs have no step, and nothing is trained.".to_owned()
        }
        Breakage::DropLast => {
            format!("each epoch leaves out {never} of {samples} samples. No rank trains on them.")
        }
        Breakage::FillUp => format!(
            "in each epoch, {often} of {samples} samples count more than once, so their gradients have too much weight."
        ),
        Breakage::OwnShuffle | Breakage::SameOrder => format!(
            "in epoch 0, {often} of {samples} samples count more than once, and {never} never. No error is reported, because all \
             shards have the right size."
        ),
    };
    format!("With --break {name}, {what}")
}

/// Says what two epochs without a bug mean.
fn right(epochs: &[Shares; 2], once: bool) -> String {
    if !once {
        return "Not every sample occurs once: this is a mistake in the program.".to_owned();
    }
    let ranks = epochs[0].len();
    let mut text = match ranks {
        1 => "One rank has every sample once in each epoch.".to_owned(),
        _ => format!("In each epoch, every sample belongs to exactly one of the {ranks} ranks."),
    };
    if epochs[0] != epochs[1] {
        text += " Epoch 1 has another order than epoch 0.";
    }
    let steps = (0..epochs[0][0].len())
        .map(|step| epochs[0].iter().map(|share| share[step].len()).collect::<Vec<_>>());
    let steps: Vec<Vec<usize>> = steps.collect();
    let without = steps.last().map_or(0, |sizes| sizes.iter().filter(|&&size| size == 0).count());
    if without > 0 {
        text += &format!(
            " In the last step, {} without a sample. Every rank takes part in the all-reduce all the same.",
            if without == 1 { "1 rank is".to_owned() } else { format!("{without} ranks are") }
        );
    } else if steps.iter().any(|sizes| sizes.iter().any(|size| size != &sizes[0])) {
        text += " Where the shards of a step are uneven, the update divides the summed gradients by the size of the whole batch.";
    }
    text
}

/// Counts how often each sample occurs in an epoch.
fn times(samples: usize, shares: &Shares) -> Vec<usize> {
    let mut times = vec![0; samples];
    for &sample in shares.iter().flatten().flatten() {
        times[sample as usize] += 1;
    }
    times
}

/// Returns `every sample once`, or the samples that occur never or more than once.
fn tally(samples: usize, shares: &Shares) -> String {
    let times = times(samples, shares);
    let of = |wanted: fn(usize) -> bool| -> Vec<usize> {
        (0..samples).filter(|&sample| wanted(times[sample])).collect()
    };
    let (never, often) = (of(|times| times == 0), of(|times| times > 1));
    let groups = [("more than once", often), ("never", never)];
    let groups: Vec<String> = groups
        .iter()
        .filter(|(_, samples)| !samples.is_empty())
        .map(|(how, samples)| format!("{how}: {}", list(samples)))
        .collect();
    if groups.is_empty() { "every sample once".to_owned() } else { groups.join("; ") }
}

/// Lists samples, as in `3, 8`. A long list ends with the number of samples.
fn list(samples: &[usize]) -> String {
    let named: Vec<String> = samples.iter().take(NAMED).map(ToString::to_string).collect();
    let named = named.join(", ");
    if samples.len() > NAMED { format!("{named} … ({} in all)", samples.len()) } else { named }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_names_repeated_and_missing_samples() {
        let once = vec![vec![vec![0, 2]], vec![vec![1], vec![3]]];
        assert_eq!(tally(4, &once), "every sample once");
        assert_eq!(tally(5, &once), "never: 4");
        let twice = vec![vec![vec![0, 2]], vec![vec![2], vec![0]]];
        assert_eq!(tally(4, &twice), "more than once: 0, 2; never: 1, 3");
        let nobody = vec![vec![], vec![]];
        assert_eq!(tally(12, &nobody), "never: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 … (12 in all)");
    }

    #[test]
    fn a_rank_keeps_its_columns_and_a_long_list_is_cut() {
        let steps = [vec![1, 2, 3], vec![4, 5]];
        assert_eq!(rank_lines(0, &steps, 3, 80), "    rank 0:  1  2  3 |  4  5");
        let narrow = "    rank 0:  1  2\n             3 |\n             4  5";
        assert_eq!(rank_lines(0, &steps, 3, 17), narrow);
        let long = rank_lines(0, &[(0..100).collect()], 3, 40);
        assert_eq!(long.lines().count(), MOST_LINES);
        assert!(long.ends_with("\n            … 100 samples in 1 step"), "{long}");
    }

    #[test]
    fn the_conclusion_without_a_bug() {
        let epochs = |first: &[&[&[u32]]], second: &[&[&[u32]]]| {
            [first, second].map(|epoch| -> Shares {
                epoch.iter().map(|rank| rank.iter().map(|step| step.to_vec()).collect()).collect()
            })
        };
        let text = |epochs: &[Shares; 2]| conclusion(4, epochs, None);
        let even = epochs(&[&[&[0, 1]], &[&[2, 3]]], &[&[&[2, 1]], &[&[0, 3]]]);
        assert_eq!(
            text(&even),
            "In each epoch, every sample belongs to exactly one of the 2 ranks. Epoch 1 has another order than epoch 0."
        );
        let uneven = epochs(&[&[&[0, 1, 2]], &[&[3]]], &[&[&[0, 1, 2]], &[&[3]]]);
        assert!(text(&uneven).contains("2 ranks. Where the shards of a step are uneven"));
        let empty = epochs(&[&[&[0], &[3]], &[&[1, 2], &[]]], &[&[&[0], &[3]], &[&[1, 2], &[]]]);
        let ends =
            "1 rank is without a sample. Every rank takes part in the all-reduce all the same.";
        assert!(text(&empty).ends_with(ends));
        let alone = epochs(&[&[&[0, 1, 2, 3]]], &[&[&[3, 1, 2, 0]]]);
        assert!(text(&alone).starts_with("One rank has every sample once"));
        let lost = epochs(&[&[&[0, 1]], &[&[2]]], &[&[&[0, 1]], &[&[2]]]);
        assert!(text(&lost).ends_with("this is a mistake in the program."));
    }

    #[test]
    fn the_conclusion_with_a_bug() {
        let text = |bug, samples, batch| {
            let epoch = |epoch| -> Shares {
                let sampler = |rank| Sampler::new(samples, batch, 2, rank, SEED);
                (0..2).map(|rank| sampler(rank).broken_epoch(epoch, bug)).collect()
            };
            conclusion(samples, &[epoch(0), epoch(1)], Some(bug))
        };
        for (bug, samples, expected) in [
            (
                Breakage::OwnShuffle,
                10,
                "in epoch 0, 3 of 10 samples count more than once, and 3 never.",
            ),
            (Breakage::SameOrder, 10, "both epochs have the same batches in the same order"),
            (Breakage::DropLast, 10, "each epoch leaves out 2 of 10 samples."),
            (Breakage::DropLast, 3, "no batch is full, so the epochs have no step"),
            (
                Breakage::DropLast,
                8,
                "With --break drop-last, every sample occurs once, so this run",
            ),
            (Breakage::FillUp, 10, "in each epoch, 2 of 10 samples count more than once"),
            (Breakage::FillUp, 8, "does not show the bug."),
        ] {
            let text = text(bug, samples, 4);
            assert!(text.contains(expected), "{expected:?} is not in {text:?}");
        }
    }
}

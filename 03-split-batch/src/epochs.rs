//! Prints the samples of each rank in two epochs, and the samples that occur never or more than once.

use harness::cli::{help_of, name_of};
use harness::report::{columns, counted, line, paragraph, shown_rows};
use split_batch::{Breakage, Sampler};

use crate::SHOWN_DEVICES;

/// The seed of the example's shuffles.
const SEED: u64 = 1;

/// The largest number of samples that a list names.
const NAMED: usize = 10;

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
    let epochs = [0, 1].map(|epoch| -> Shares {
        let sampler = |rank| Sampler::new(samples, global_batch, ranks, rank, SEED);
        let share = |sampler: Sampler| match breakage {
            Some(breakage) => sampler.broken_epoch(epoch, breakage),
            None => sampler.epoch(epoch).collect(),
        };
        (0..ranks).map(sampler).map(share).collect()
    });
    let width = (samples - 1).to_string().len().max(2) + 1;
    let tallies = epochs.each_ref().map(|epoch| tally(samples, epoch));
    let once = tallies == [ONCE; 2];
    for (number, (epoch, tally)) in epochs.iter().zip(&tallies).enumerate() {
        line(format_args!("  epoch {number}"))?;
        for rank in shown_rows(ranks, SHOWN_DEVICES).into_iter().flatten() {
            line(rank_line(rank, &epoch[rank], width, columns()))?;
        }
        paragraph(format_args!("    {tally}"))?;
    }
    let text = breakage.map_or_else(|| right(&epochs, once), |bug| broken(&epochs, once, bug));
    Ok(paragraph(format_args!("\n{text}"))?)
}

/// Lists the samples of a rank in a line of at most `columns` characters. The end of a long list is left out.
fn rank_line(rank: usize, steps: &[Vec<u32>], width: usize, columns: usize) -> String {
    let list = |step: &Vec<u32>| step.iter().map(|it| format!("{it:width$}")).collect::<String>();
    let list = steps.iter().map(list).collect::<Vec<_>>().join(" |");
    let line = format!("    rank {rank}:{list}");
    if line.len() <= columns {
        return line;
    }
    let samples = counted(steps.iter().map(Vec::len).sum(), "sample");
    let all = format!(" … {samples} in {}", counted(steps.len(), "step"));
    let shown = &line[..=columns - all.chars().count()];
    format!("{}{all}", shown[..shown.rfind(' ').unwrap_or_default()].trim_end())
}

/// Describes a bug, and says if the two epochs do not show the bug.
fn broken(epochs: &[Shares; 2], once: bool, bug: Breakage) -> String {
    let hidden = match bug {
        _ if !once || (bug == Breakage::SameOrder && epochs[0] == epochs[1]) => "",
        Breakage::DropLast | Breakage::FillUp => {
            " All batches are full, so the bug does nothing: take --epoch-samples that --batch-size does not divide."
        }
        _ => " Every sample occurs once, so this run does not show the bug.",
    };
    format!("The bug of --break {}: {}.{hidden}", name_of(&bug), help_of(&bug))
}

/// Says what two epochs without a bug mean.
fn right(epochs: &[Shares; 2], once: bool) -> String {
    let mut text = match epochs[0].len() {
        _ if !once => {
            return "Not every sample occurs once: this is a mistake in the program.".to_owned();
        }
        1 => "One rank has every sample once in each epoch.".to_owned(),
        ranks => {
            format!("In each epoch, every sample belongs to exactly one of the {ranks} ranks.")
        }
    };
    if epochs[0] != epochs[1] {
        text += " Epoch 1 has another order than epoch 0.";
    }
    let [first, .., last] = &epochs[0][..] else { return text };
    let empty = epochs[0].iter().filter(|share| share.last().is_none_or(Vec::is_empty)).count();
    if empty > 0 {
        let ranks = if empty == 1 { "1 rank is".to_owned() } else { format!("{empty} ranks are") };
        text += &format!(
            " In the last step, {ranks} without a sample. Every rank takes part in the all-reduce all the same."
        );
    } else if first.iter().zip(last).any(|(first, last)| first.len() > last.len()) {
        text += " Where the shards of a step are uneven, the update divides the summed gradients by the size of the whole batch.";
    }
    text
}

/// The tally of an epoch without a mistake.
const ONCE: &str = "every sample once";

/// Returns [`ONCE`], or the samples that occur more than once or never.
fn tally(samples: usize, shares: &Shares) -> String {
    let mut times = vec![0; samples];
    shares.iter().flatten().flatten().for_each(|&sample| times[sample as usize] += 1);
    let named = |wanted: fn(u32) -> bool| {
        let all = (0..samples).filter(|&it| wanted(times[it])).map(|it| it.to_string());
        let all: Vec<String> = all.collect();
        match all.len() {
            0..=NAMED => all.join(", "),
            many => format!("{} … ({many} in all)", all[..NAMED].join(", ")),
        }
    };
    match [named(|times| times > 1), named(|times| times == 0)].each_ref().map(String::as_str) {
        ["", ""] => ONCE.to_owned(),
        [often, ""] => format!("more than once: {often}"),
        ["", never] => format!("never: {never}"),
        [often, never] => format!("more than once: {often}; never: {never}"),
    }
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
    fn a_long_list_of_a_rank_is_cut() {
        let steps = [vec![1, 2, 3], vec![4, 5]];
        assert_eq!(rank_line(0, &steps, 3, 80), "    rank 0:  1  2  3 |  4  5");
        let long = rank_line(0, &[(0..100).collect()], 3, 40);
        assert_eq!(long, "    rank 0:  0 … 100 samples in 1 step");
    }

    #[test]
    fn the_conclusion_without_a_bug() {
        let epochs = |first: &[&[&[u32]]], second: &[&[&[u32]]]| {
            [first, second].map(|epoch| -> Shares {
                epoch.iter().map(|rank| rank.iter().map(|step| step.to_vec()).collect()).collect()
            })
        };
        let right = |epochs: &[Shares; 2]| {
            super::right(epochs, epochs.each_ref().map(|epoch| tally(4, epoch)) == [ONCE; 2])
        };
        let even = epochs(&[&[&[0, 1]], &[&[2, 3]]], &[&[&[2, 1]], &[&[0, 3]]]);
        assert_eq!(
            right(&even),
            "In each epoch, every sample belongs to exactly one of the 2 ranks. Epoch 1 has another order than epoch 0."
        );
        let uneven = epochs(&[&[&[0, 1, 2]], &[&[3]]], &[&[&[0, 1, 2]], &[&[3]]]);
        assert!(right(&uneven).contains("2 ranks. Where the shards of a step are uneven"));
        let empty = epochs(&[&[&[0], &[3]], &[&[1, 2], &[]]], &[&[&[0], &[3]], &[&[1, 2], &[]]]);
        let ends =
            "1 rank is without a sample. Every rank takes part in the all-reduce all the same.";
        assert!(right(&empty).ends_with(ends));
        let alone = epochs(&[&[&[0, 1, 2, 3]]], &[&[&[3, 1, 2, 0]]]);
        assert!(right(&alone).starts_with("One rank has every sample once"));
        let lost = epochs(&[&[&[0, 1]], &[&[2]]], &[&[&[0, 1]], &[&[2]]]);
        assert!(right(&lost).ends_with("this is a mistake in the program."));
    }

    #[test]
    fn the_conclusion_with_a_bug() {
        let does_nothing = "divide.";
        for (bug, samples, end) in [
            (Breakage::OwnShuffle, 10, "and some to none."),
            (Breakage::SameOrder, 10, "the same batches in the same order."),
            (Breakage::DropLast, 10, "no rank sees its samples in this epoch."),
            (Breakage::DropLast, 3, "no rank sees its samples in this epoch."),
            (Breakage::DropLast, 8, does_nothing),
            (Breakage::FillUp, 10, "these samples count twice."),
            (Breakage::FillUp, 8, does_nothing),
        ] {
            let epochs = [0, 1].map(|epoch| -> Shares {
                let sampler = |rank| Sampler::new(samples, 4, 2, rank, SEED);
                (0..2).map(|rank| sampler(rank).broken_epoch(epoch, bug)).collect()
            });
            let once = epochs.each_ref().map(|epoch| tally(samples, epoch)) == [ONCE; 2];
            let text = broken(&epochs, once, bug);
            let begin = format!("The bug of --break {}: ", name_of(&bug));
            assert!(text.starts_with(&begin) && text.ends_with(end), "{end:?} is not in {text:?}");
        }
        let one = [vec![vec![vec![0]], vec![vec![1]]], vec![vec![vec![1]], vec![vec![0]]]];
        assert!(broken(&one, true, Breakage::OwnShuffle).ends_with("does not show the bug."));
    }
}

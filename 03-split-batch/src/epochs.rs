//! Prints the samples of each rank in two epochs, and the samples that occur never or more than once.

use harness::report::line;
use split_batch::{Breakage, Sampler};

use crate::width;

/// The seed of the example's shuffles.
const SEED: u64 = 1;

/// The largest number of samples that a list names.
const NAMED: usize = 10;

/// Prints two epochs: one line for each rank, with its steps in order.
pub(crate) fn show(
    samples: usize,
    global_batch: usize,
    ranks: usize,
    breakage: Option<Breakage>,
) -> anyhow::Result<()> {
    line(format_args!("an epoch of {samples} samples in global batches of {global_batch}"))?;
    let needs_a_short_batch = matches!(breakage, Some(Breakage::DropLast | Breakage::FillUp));
    if needs_a_short_batch && samples.is_multiple_of(global_batch) {
        line(
            "  note: all of its batches are full, so this bug does nothing: take --epoch-samples that --batch-size does \
             not divide",
        )?;
    }
    let width = width(samples - 1, 3);
    let mut before = None;
    for epoch in [0, 1] {
        line(format_args!("  epoch {epoch}"))?;
        let share = |rank| {
            let sampler = Sampler::new(samples, global_batch, ranks, rank, SEED);
            match breakage {
                Some(breakage) => sampler.broken_epoch(epoch, breakage),
                None => sampler.epoch(epoch).collect(),
            }
        };
        let shares: Vec<Vec<Vec<u32>>> = (0..ranks).map(share).collect();
        for (rank, share) in shares.iter().enumerate() {
            let steps: Vec<String> = share
                .iter()
                .map(|step| step.iter().map(|sample| format!("{sample:width$}")).collect())
                .collect();
            line(format_args!("    rank {rank}: {}", steps.join(" |")))?;
        }
        let same = breakage == Some(Breakage::SameOrder) && before.as_ref() == Some(&shares);
        let again = if same { ", in the order of the epoch before" } else { "" };
        line(format_args!("    {}{again}", tally(samples, &shares)))?;
        before = Some(shares);
    }
    Ok(())
}

/// Returns `every sample once`, or the samples that occur never or more than once.
fn tally(samples: usize, shares: &[Vec<Vec<u32>>]) -> String {
    let mut times = vec![0; samples];
    for &sample in shares.iter().flatten().flatten() {
        times[sample as usize] += 1;
    }
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
        let once = [vec![vec![0, 2]], vec![vec![1], vec![3]]];
        assert_eq!(tally(4, &once), "every sample once");
        assert_eq!(tally(5, &once), "never: 4");
        let twice = [vec![vec![0, 2]], vec![vec![2], vec![0]]];
        assert_eq!(tally(4, &twice), "more than once: 0, 2; never: 1, 3");
        let nobody = [vec![], vec![]];
        assert_eq!(tally(12, &nobody), "never: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 … (12 in all)");
    }
}

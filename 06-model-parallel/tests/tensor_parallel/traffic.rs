//! What a step sends is what the formula says.

use params_and_allreduce::collectives::chunk_range;

use super::networks::images;
use super::{executor, on_ranks};
use crate::prelude::*;

const BATCH: usize = 5;

/// One exchange between all ranks of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exchange {
    /// Each rank brings so many numbers, and all get the sum.
    AllReduce(usize),
    /// All get all parts: so many numbers for each feature, and the features of all parts.
    AllGather(usize, usize),
}
use Exchange::{AllGather, AllReduce};

impl Exchange {
    /// The numbers that a rank sends.
    ///
    /// In a ring of n, an all-reduce of N numbers costs each rank about 2(n − 1)/n · N, and an all-gather (n − 1) times
    /// the widest part. Two ranks send each other all their numbers.
    pub fn sends(self, ranks: usize, rank: usize) -> usize {
        match self {
            AllGather(rows, features) => (ranks - 1) * rows * features.div_ceil(ranks),
            AllReduce(elements) if ranks <= 2 => (ranks - 1) * elements,
            AllReduce(elements) => {
                let chunk = |index| chunk_range(elements, ranks, index % ranks).len();
                // All chunks of the sum but its own, then all finished ones but the next rank's.
                2 * elements - chunk(rank) - chunk(rank + 1)
            }
        }
    }
}

/// The exchanges of a step of a dense stack, forward and backward.
fn of_dense(widths: &[usize]) -> Vec<Exchange> {
    let mut exchanges = Vec::new();
    for (number, pair) in widths.windows(2).enumerate() {
        if !number.is_multiple_of(2) {
            exchanges.push(AllReduce(BATCH * pair[1]));
            continue;
        }
        // Nobody wants a gradient of the data.
        if number > 0 {
            exchanges.push(AllReduce(BATCH * pair[0]));
        }
        if number + 2 == widths.len() {
            exchanges.push(AllGather(BATCH, pair[1]));
        }
    }
    exchanges
}

#[test]
fn a_step_sends_what_the_formula_says() {
    for widths in [&[PIXELS, 33, 10][..], &[PIXELS, 14, 17, 10], &[PIXELS, 12, 9, 11, 10]] {
        let layers = Layers::dense(widths).unwrap();
        for ranks in [1, 2, 3, 4] {
            let sent = on_ranks(ranks, |rank, _| {
                let mesh = Mesh::tensor(ranks);
                let (model, _) = executor(rank, mesh, &layers, (&SAMPLE, DType::F64))?;
                let shares = ShardLoader::new(&images(), BATCH, 5, DType::F64, Shards::WHOLE);
                let share = shares.epoch(1).next().unwrap().unwrap();
                let before = rank.traffic().bytes;
                model.backward(&share)?;
                Ok(rank.traffic().bytes - before)
            });
            for (rank, &sent) in sent.iter().enumerate() {
                let exchanges = of_dense(widths);
                let of_layers: usize = exchanges.iter().map(|it| it.sends(ranks, rank)).sum();
                // The loss, correct answers, samples, and whether to go on, in one shot.
                let expected = of_layers + (ranks - 1) * 4;
                assert_eq!(sent, 8 * expected as u64, "rank {rank} of {ranks}");
            }
        }
    }
}

#[test]
fn the_formulas_are_the_literatures() {
    for rank in 0..4 {
        // 2(n − 1)/n.
        assert_eq!(AllReduce(1200).sends(4, rank), 2 * 1200 * 3 / 4);
    }
    for ranks in [1, 2] {
        assert_eq!(AllReduce(1200).sends(ranks, 0), 1200 * 2 * (ranks - 1) / ranks);
    }
    // One layer by columns and one by rows: one all-reduce forward. With another pair before, one backward too.
    assert_eq!(of_dense(&[8, 6, 4]), [AllReduce(BATCH * 4)]);
    assert_eq!(of_dense(&[8, 6, 4, 6, 2]).len(), 3);
}

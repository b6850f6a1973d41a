//! What a step sends is what the formula says, for every algorithm of ours.

use params_and_allreduce::collectives::chunk_range;

use super::networks::images;
use super::{executor, on_ranks_with};
use crate::prelude::*;

const BATCH: usize = 5;

/// One exchange between all ranks of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Exchange {
    /// Each rank brings so many numbers, and all get the sum.
    AllReduce(usize),
    /// All get all parts: so many numbers for each feature of the axis that is cut.
    AllGather(usize, Cut),
}
use Exchange::{AllGather, AllReduce};

impl Exchange {
    /// The numbers that a rank sends.
    ///
    /// In a ring of n, an all-reduce of N numbers costs each rank about 2(n − 1)/n · N, and an all-gather (n − 1) times
    /// the widest part.
    fn sends(self, algorithm: Algorithm, ranks: usize, rank: usize) -> usize {
        let elements = match self {
            AllGather(rows, cut) => return (ranks - 1) * rows * cut.widest(ranks),
            AllReduce(elements) => elements,
        };
        match algorithm {
            Algorithm::OneShot => (ranks - 1) * elements,
            Algorithm::Naive if rank == 0 => (ranks - 1) * elements,
            Algorithm::Naive => elements,
            Algorithm::Tree => (usize::from(rank > 0) + children(ranks, rank)) * elements,
            Algorithm::Ring => {
                let chunk = |index| chunk_range(elements, ranks, index % ranks).len();
                // All chunks of the sum but its own, then all finished ones but the next rank's.
                2 * elements - chunk(rank) - chunk(rank + 1)
            }
            Algorithm::Native => panic!("the library that connects the ranks decides"),
        }
    }
}

/// The number of ranks that get their sum from this one in a binomial tree.
fn children(ranks: usize, rank: usize) -> usize {
    let distances = std::iter::successors(Some(1), |distance| Some(distance * 2));
    let reached = distances
        .take_while(|distance| *distance < ranks && rank.is_multiple_of(2 * distance))
        .filter(|distance| rank + distance < ranks);
    reached.count()
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
            exchanges.push(AllGather(BATCH, Cut::new(1, pair[1])));
        }
    }
    exchanges
}

/// The exchanges of a step of LeNet: 20 channels of 13·13 pixels, 50 of 9·9, which pooling makes 4·4, and 128 outputs.
fn of_lenet(channels: Channels) -> Vec<Exchange> {
    let all_reduce = |features| AllReduce(BATCH * features);
    match channels {
        Channels::Gathered => vec![
            AllGather(BATCH * 13 * 13, Cut::new(1, 20)),
            all_reduce(128),
            AllGather(BATCH, Cut::new(1, CLASSES)),
            // Backward: the inputs of the last layer, and of the second convolution.
            all_reduce(128),
            all_reduce(20 * 13 * 13),
        ],
        Channels::Summed => vec![
            all_reduce(50 * 9 * 9),
            all_reduce(CLASSES),
            // Backward: the input of the first dense layer.
            all_reduce(50 * 4 * 4),
        ],
    }
}

fn check(exchanges: &[Exchange], ranks: usize, layers: &Layers) {
    for algorithm in Algorithm::OURS {
        let sent = on_ranks_with(ranks, algorithm, |rank, _| {
            let mesh = Mesh::tensor(ranks);
            let (model, _) = executor(rank, mesh, algorithm, layers, (&SAMPLE, DType::F64))?;
            let shares = ShardLoader::new(&images(), BATCH, 5, DType::F64, Shards::WHOLE);
            let share = shares.epoch(1).next().unwrap().unwrap();
            let before = rank.traffic().bytes;
            model.backward(&share)?;
            Ok(rank.traffic().bytes - before)
        });
        for (rank, &sent) in sent.iter().enumerate() {
            let of_layers = exchanges.iter().map(|it| it.sends(algorithm, ranks, rank));
            // The loss, correct answers, samples, and whether to go on.
            let sums = AllReduce(4).sends(Algorithm::OneShot, ranks, rank);
            let expected = of_layers.sum::<usize>() + sums;
            assert_eq!(sent, 8 * expected as u64, "rank {rank} of {ranks}, {algorithm}");
        }
    }
}

#[test]
fn a_step_sends_what_the_formula_says() {
    for ranks in [1, 2, 3, 4] {
        for channels in [Channels::Gathered, Channels::Summed] {
            check(&of_lenet(channels), ranks, &Layers::lenet_with(channels));
        }
        for widths in [&[PIXELS, 33, 10][..], &[PIXELS, 14, 17, 10], &[PIXELS, 12, 9, 11, 10]] {
            check(&of_dense(widths), ranks, &Layers::dense(widths).unwrap());
        }
    }
}

#[test]
fn the_formulas_are_the_literatures() {
    for rank in 0..4 {
        // 2(n − 1)/n.
        assert_eq!(AllReduce(1200).sends(Algorithm::Ring, 4, rank), 2 * 1200 * 3 / 4);
        assert_eq!(AllReduce(1200).sends(Algorithm::Ring, 1, 0), 0);
    }
    // One layer by columns and one by rows: one all-reduce forward. With another pair before, one backward too.
    assert_eq!(of_dense(&[8, 6, 4]), [AllReduce(BATCH * 4)]);
    assert_eq!(of_dense(&[8, 6, 4, 6, 2]).len(), 3);
}

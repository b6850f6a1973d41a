//! What a step sends is what the formula says.

use params_and_allreduce::collectives::chunk_range;

use super::on_ranks;
use crate::gpt::{SIZES, texts};
use crate::pipelines::training::{checked_on, on_the_mesh};
use crate::prelude::*;

const BATCH: usize = 5;

/// One exchange between all ranks of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Exchange {
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
    fn sends(self, ranks: usize, rank: usize) -> usize {
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

/// The exchanges of a step of a GPT: four all-reduces of an activation in each block, and the collectives of the vocabulary.
fn of_gpt(tokens: usize, ranks: usize) -> Vec<Exchange> {
    let activation = AllReduce(tokens * SIZES.width);
    // g and f of the attention and of the MLP.
    let of_blocks = vec![activation; 4 * SIZES.blocks];
    // g of the embedding, f of the head, and four statistics of each row of logits.
    let of_vocabulary = vec![activation, activation, AllGather(tokens, 4 * ranks)];
    [of_blocks, of_vocabulary].concat()
}

/// Checks the bytes that each rank sends in a step.
fn sends(layers: &Layers, batch: &LocalBatch, ranks: usize, exchanges: &[Exchange]) {
    let (mesh, sample) = (Mesh::tensor(ranks), &batch.shards[0].images.dims()[1..]);
    let (checked, settings) = (checked_on(mesh, Kind::Naive, 1), Settings::of(layers));
    let sent = on_ranks(ranks, |rank, _| {
        let (layers, sample) = ((layers, ""), (sample, DType::F64));
        let (model, _) = on_the_mesh(rank, mesh, &checked, layers, sample, settings)?;
        let before = rank.traffic().bytes;
        model.backward(batch)?;
        Ok(rank.traffic().bytes - before)
    });
    for (rank, &sent) in sent.iter().enumerate() {
        let of_layers: usize = exchanges.iter().map(|it| it.sends(ranks, rank)).sum();
        // The loss, correct answers, samples, and whether to go on, in one shot.
        let expected = of_layers + (ranks - 1) * 4;
        assert_eq!(sent, 8 * expected as u64, "rank {rank} of {ranks}");
    }
}

#[test]
fn a_step_sends_what_the_formula_says() {
    for widths in [&[PIXELS, 33, 10][..], &[PIXELS, 14, 17, 10], &[PIXELS, 12, 9, 11, 10]] {
        let layers = Layers::dense(widths).unwrap();
        let batch = crate::layers::batch((&SAMPLE, DType::F64), 0, BATCH, 1).unwrap();
        (1..=4).for_each(|ranks| sends(&layers, &batch, ranks, &of_dense(widths)));
    }
    let (layers, batch) = (Layers::gpt(&SIZES).unwrap(), texts(0, 1));
    for ranks in [1, 2, 4] {
        sends(&layers, &batch, ranks, &of_gpt(batch.samples, ranks));
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

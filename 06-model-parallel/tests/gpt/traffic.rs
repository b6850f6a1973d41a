//! A step of a GPT in parts sends the bytes of the formula.

use super::{SIZES, Way, gpt, on_ranks, texts};
use crate::prelude::*;
use crate::tensor_parallel::traffic::Exchange::{self, AllGather, AllReduce};

/// The exchanges of a step: four all-reduces of an activation in each block, and the collectives of the vocabulary.
fn exchanges(tokens: usize, ranks: usize) -> Vec<Exchange> {
    let activation = AllReduce(tokens * SIZES.width);
    // g and f of the attention and of the MLP.
    let of_blocks = vec![activation; 4 * SIZES.blocks];
    // g of the embedding, f of the head, and four statistics of each row of logits.
    let of_vocabulary = vec![activation, activation, AllGather(tokens, 4 * ranks)];
    [of_blocks, of_vocabulary].concat()
}

#[test]
fn a_step_sends_what_the_formula_says() {
    let layers = gpt();
    for ranks in [1, 2, 4] {
        let sent = on_ranks(ranks, |rank| {
            let (executor, _) = Way::parts(&layers, ranks).executor(rank)?;
            let before = rank.traffic().bytes;
            executor.backward(&texts(0, 1))?;
            Ok(rank.traffic().bytes - before)
        });
        for (rank, &sent) in sent.unwrap().iter().enumerate() {
            let exchanges = exchanges(texts(0, 1).samples, ranks).into_iter();
            let of_layers: usize = exchanges.map(|it| it.sends(ranks, rank)).sum();
            // The loss, correct answers, tokens, and whether to go on, in one shot.
            let expected = of_layers + (ranks - 1) * 4;
            assert_eq!(sent, 8 * expected as u64, "rank {rank} of {ranks}");
        }
    }
}

/// All other parameters are in a single part.
#[test]
fn a_rank_of_k_holds_a_kth_and_the_norms_positions_and_biases_of_rows() {
    let layers = gpt();
    let parameters = layers.parameters(0..layers.len()).unwrap();
    let whole: usize = parameters.iter().map(|it| it.elements()).sum();
    let is_whole = |name: &str| {
        ["norm.", "output.bias", "down.bias", "positions"].iter().any(|part| name.contains(part))
    };
    for spec in &parameters {
        assert_eq!(spec.cut.is_none(), is_whole(&spec.name), "{}", spec.name);
    }
    let everywhere = parameters.iter().filter(|it| it.cut.is_none());
    let everywhere: usize = everywhere.map(|it| it.elements()).sum();
    for ranks in [1, 2, 4] {
        let held = on_ranks(ranks, |rank| {
            let (executor, _) = Way::parts(&layers, ranks).executor(rank)?;
            Ok(executor.weights().parameter_bytes() / 8)
        });
        let expected = (whole - everywhere) / ranks + everywhere;
        assert!(held.unwrap().iter().all(|&held| held == expected), "{ranks} ranks");
    }
}

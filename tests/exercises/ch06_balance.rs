//! Chapter 6a, `book/src/ch06a-better-lists.md`: a list of layers, cut into stages.
//!
//! Check your answer: `cargo course check ch06_balance`

use std::ops::Range;

/// The layers of each stage, with the smallest possible largest stage.
///
/// `costs` has a number for each layer: the time for one micro-batch, forward and backward, in µs. A layer may cost 0. The
/// stages take runs of layers, in order: the first stage begins at layer 0, and the last stage ends at the last layer. In a
/// pipeline every stage waits for the slowest stage:
///
/// ```text
/// costs       3  3  3  3  3  1          three stages
/// by share    3 |3 |3  3  3  1          10 µs for each micro-batch
/// best        3  3 |3  3 |3  1          6 µs: → [0..2, 2..4, 4..6]
/// ```
///
/// | name | what |
/// | --- | --- |
/// | `costs` | the costs of the n layers; n is at least 1, and may be some hundreds; their sum fits into u64 |
/// | `stages` | the number of stages p, from 1 to n |
/// | result | a range of layers for each stage, in order, none of them empty |
///
/// The size of a stage is the sum of its costs. If several cuts have the smallest largest stage, return any of them. Hundreds of
/// layers have too many cuts to try all of them.
///
/// Do not use stage 6's `model_parallel::partition::cut`.
pub fn balance(costs: &[u64], stages: usize) -> Vec<Range<usize>> {
    // TODO: how large is the largest stage at least, and where does each stage begin then?
    todo!("the layers of each stage")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch06_balance, balance, run);

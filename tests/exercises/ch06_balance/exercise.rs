//! Chapter 6, `book/src/ch06-model-parallel.md`: a list of layers, cut into stages.
//!
//! Check your answer: `cargo course check ch06_balance`

use std::ops::Range;

/// Which layers each stage gets, so that the largest stage is as small as it can be.
///
/// `costs` has a number for each layer: what it takes of each micro-batch, forward and backward, in µs. A layer may
/// cost 0. The stages take runs of layers, in order: the first stage from layer 0 on, the last one to the last
/// layer. All of them work on something all the time, so each waits for the one that takes longest:
///
/// ```text
/// costs       3  3  3  3  3  1          three stages
/// by share    3 |3 |3  3  3  1          10 µs for each micro-batch
/// best        3  3 |3  3 |3  1          6 µs: → [0..2, 2..4, 4..6]
/// ```
///
/// | name | what |
/// | --- | --- |
/// | `costs` | what each of the n layers costs; n is at least 1, and may be some hundreds |
/// | `stages` | how many stages there are, p: from 1 to n |
/// | result | a range of layers for each stage, in order, none of them empty |
///
/// The size of a stage is the sum of its costs. If several cuts have the smallest largest stage, any of them will
/// do. With hundreds of layers there are too many cuts to try them all.
///
/// Stage 6's `model_parallel::partition::cut` is not to be used.
pub fn balance(costs: &[u64], stages: usize) -> Vec<Range<usize>> {
    // TODO: how large is the largest stage at least, and where does each stage begin then?
    todo!("the layers of each stage")
}

//! 1F1B: one forward, one backward in turn, so that a micro-batch comes back as soon as it can.
//!
//! A stage first goes forward as often as there are stages after it, so that work reaches the last one.
//! From then on it goes forward once, then backward once. Three stages, four micro-batches:
//!
//! ```text
//! stage 0   F0  F1  F2  ··  ··  B0  F3  B1  ··  B2  ··  B3
//! stage 1   ··  F0  F1  ··  B0  F2  B1  F3  B2  ··  B3  ··
//! stage 2   ··  ··  F0  B0  F1  B1  F2  B2  F3  B3  ··  ··
//! ```
//!
//! The bubble is GPipe's, (p − 1)/(m + p − 1) of the time. What is won is memory: stage r keeps the
//! activations of at most p − r micro-batches, however many there are.
//!
//! Source: Narayanan et al., *Memory-Efficient Pipeline-Parallel DNN Training*, 2021, arXiv 2006.09503,
//! where it is called PipeDream-Flush; and *Efficient Large-Scale Language Model Training on GPU Clusters
//! Using Megatron-LM*, 2021, arXiv 2104.04473, section 2.2.1. The order of one forward and one backward is
//! PipeDream's, 2019, which updates weights without waiting for the end of a batch.

use super::Action::{self, Backward, Forward};

// ANCHOR: order
/// In which order a stage computes.
pub fn order(stage: usize, stages: usize, micro_batches: usize) -> Vec<Action> {
    let ahead = (stages - stage - 1).min(micro_batches);
    let warm_up = (0..ahead).map(Forward);
    let in_turn = (ahead..micro_batches).flat_map(|i| [Forward(i), Backward(i - ahead)]);
    let drain = (micro_batches - ahead..micro_batches).map(Backward);
    warm_up.chain(in_turn).chain(drain).collect()
}
// ANCHOR_END: order

//! GPipe: all micro-batches forward, then all of them backward.
//!
//! A stage takes up the next micro-batch while the one before is further along. Backward runs in the
//! opposite order, from the micro-batch whose loss was computed last. Three stages, four micro-batches:
//!
//! ```text
//! stage 0   F0  F1  F2  F3  ··  ··  ··  ··  B3  B2  B1  B0
//! stage 1   ··  F0  F1  F2  F3  ··  ··  B3  B2  B1  B0  ··
//! stage 2   ··  ··  F0  F1  F2  F3  B3  B2  B1  B0  ··  ··
//! ```
//!
//! With p stages and m micro-batches, a device is idle for (p − 1)/(m + p − 1) of the time: the bubble
//! shrinks as m grows. But a stage keeps the activations of all m micro-batches until they come back.
//!
//! Source: Huang et al., *GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism*,
//! 2019, arXiv 1811.06965, section 2.3 (there the bubble is O((K − 1)/(M + K − 1))) and figure 2c. They
//! throw activations away as well, and compute them a second time in the backward pass; that is left out
//! here.

use super::Action::{self, Backward, Forward};

// ANCHOR: order
/// In which order a stage computes.
pub fn order(_stage: usize, _stages: usize, micro_batches: usize) -> Vec<Action> {
    let forward = (0..micro_batches).map(Forward);
    let backward = (0..micro_batches).rev().map(Backward);
    forward.chain(backward).collect()
}
// ANCHOR_END: order

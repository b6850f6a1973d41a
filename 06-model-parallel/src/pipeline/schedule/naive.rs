//! One device works at a time: what happens when a model is split and nothing else is done.
//!
//! A micro-batch goes all the way forward and all the way back before the next one begins. Three stages,
//! two micro-batches:
//!
//! ```text
//! stage 0   F0  ··  ··  ··  ··  B0  F1  ··  ··  ··  ··  B1
//! stage 1   ··  F0  ··  ··  B0  ··  ··  F1  ··  ··  B1  ··
//! stage 2   ··  ··  F0  B0  ··  ··  ··  ··  F1  B1  ··  ··
//! ```
//!
//! With p stages, every device is idle for (p − 1)/p of the time, however many micro-batches there are.
//! So this is usually run with the whole batch as the only one.

use super::Action::{self, Backward, Forward};

/// In which order a stage computes.
pub fn order(_stage: usize, _stages: usize, micro_batches: usize) -> Vec<Action> {
    (0..micro_batches).flat_map(|i| [Forward(i), Backward(i)]).collect()
}

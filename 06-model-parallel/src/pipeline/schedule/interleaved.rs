//! Interleaved 1F1B: several chunks of the model on each stage, so that the pipeline fills sooner.
//!
//! With v chunks a stage, a micro-batch passes every stage v times, and each time takes a v-th of the
//! work. Micro-batches go in groups, one for each stage: a group passes the first chunks, then the second
//! ones, … Two stages with two chunks, four micro-batches; the letter is the chunk:
//!
//! ```text
//! stage 0   F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a ··  B2b ··  B3b B2a B3a
//! stage 1   ··  F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a ··
//! ```
//!
//! Filling and draining take a v-th of the time: with p stages and m micro-batches, the bubble is
//! (p − 1)/(v·m + p − 1) of the whole. Paid for with v times as many messages, and with more activations
//! alive than in 1F1B.
//!
//! Source: Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters Using
//! Megatron-LM*, 2021, arXiv 2104.04473, section 2.2.2, which asks for a multiple of p micro-batches and has
//! the bubble as (p − 1)/(v·m) of the time without it.

use super::Action::{Backward, Forward};
use super::Instruction;

/// In which order a stage computes. The number of micro-batches is a multiple of the number of stages.
pub fn order(stage: usize, stages: usize, chunks: usize, micro_batches: usize) -> Vec<Instruction> {
    // The k-th visit of a micro-batch to this stage, forward: which one it is, and to which chunk.
    let visit = |k: usize| {
        let (group, within) = (k / (stages * chunks), k % (stages * chunks));
        (group * stages + within % stages, within / stages)
    };
    let forward = |k| {
        let (micro_batch, chunk) = visit(k);
        Instruction { chunk, action: Forward(micro_batch) }
    };
    let backward = |k| {
        let (micro_batch, chunk) = visit(k);
        Instruction { chunk: chunks - 1 - chunk, action: Backward(micro_batch) }
    };
    let visits = chunks * micro_batches;
    // A first group through all chunks but the last; then two for every stage that comes after, as its
    // forward and its backward pass take a turn each before the first gradient is back.
    let ahead = ((chunks - 1) * stages + 2 * (stages - stage - 1)).min(visits);
    let warm_up = (0..ahead).map(forward);
    let in_turn = (ahead..visits).flat_map(|k| [forward(k), backward(k - ahead)]);
    let drain = (visits - ahead..visits).map(backward);
    warm_up.chain(in_turn).chain(drain).collect()
}

//! Chapter 6b, `book/src/ch06b-tensor-parallel.md`: causal attention on k ranks, each with some of the heads.
//!
//! Check your answer: `cargo course check ch06_attention`

use candle_core::{DType, Device, Result, Tensor};
use exercises::attention::Attention;
use exercises::two_layers::Layer;
use model_parallel::tensor_parallel::{by_column, by_row, copy, reduce};
use ops::softmax;
use params_and_allreduce::communicator::SharedCommunicator;
use split_batch::shard_range;

/// One rank's heads of attention over C features.
///
/// A head has `size = C / heads` columns of queries, keys and values, one run of columns after the other. A head is never cut:
/// rank r has the heads `shard_range(heads, ranks, r)`. With h columns in these heads, its part is
///
/// | tensor | whole | part |
/// | --- | --- | --- |
/// | `query`, `value`: weight, bias | `[C, C]`, `[C]` | `[C, h]`, `[h]` |
/// | `key` | `[C, C]` | `[C, h]` |
/// | `out`: weight, bias | `[C, C]`, `[C]` | `[h, C]`, and the whole `[C]` |
///
/// `heads` is at least as large as `ranks`, and need not be a multiple of it.
///
/// Fails when a tensor operation fails.
pub fn part(whole: &Attention, heads: usize, rank: usize, ranks: usize) -> Result<Attention> {
    // TODO: the three functions, from here on. Which columns belong to this rank?
    todo!("whole heads")
}

/// Causal attention in each of `heads` heads: queries, keys and values `[B, T, h]` → `[B, T, h]`.
///
/// In a head, token t has the scores `query(t) · key(s) / √size` with each token s ≤ t, and none with later tokens. Softmax makes
/// weights of these scores, and the result of token t is the sum of the tokens' values times these weights.
///
/// Do not call `ops::causal_attention`. `reshape` and `transpose` give each head its columns, `matmul` multiplies matrices in
/// batches, which are `contiguous`, and `softmax(&scores)` works along the last axis. A score of −∞ gets the weight 0. Add a mask:
/// a product of 0 and −∞ is NaN.
///
/// Fails when a tensor operation fails.
pub fn attend(query: &Tensor, key: &Tensor, value: &Tensor, heads: usize) -> Result<Tensor> {
    todo!("scores, mask, softmax, values")
}

/// The layer on all ranks: `x` `[B, T, C]`, the same on every rank → `[B, T, C]`, the same on every rank, to the last bit.
///
/// All ranks call this together, each with its part, and the number of its own heads. The backward pass of the course computes
/// the gradients, so use f and g, or `by_column` and `by_row`. Forward and backward, the ranks send no more than one all-reduce of
/// a tensor like `x`. `x.broadcast_matmul(&weight)` multiplies each token.
///
/// Fails when a tensor operation fails, or another rank stops or stalls.
pub fn forward(
    group: &SharedCommunicator,
    part: &Attention,
    heads: usize,
    x: &Tensor,
) -> Result<Tensor> {
    todo!("projections, the own heads, and the projection back")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch06_attention, Answer { part, attend, forward }, run);

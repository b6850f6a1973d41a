//! Chapter 6b, `book/src/ch06b-tensor-parallel.md`: two dense layers on k ranks, one cut by columns, one by rows.
//!
//! Check your answer: `cargo course check ch06_tensor_parallel`

use candle_core::{DType, Tensor};
use exercises::two_layers::{Gradients, Layer, TwoLayers};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use split_batch::shard_range;

/// One rank's part of two dense layers.
///
/// On one device, H = relu(X·A + a) and Y = H·B + b. Each column of H belongs to one rank, with its column of A, its number of a
/// and its row of B. b belongs to all columns of H together, so every rank has the whole b.
///
/// | tensor | whole | the part of a rank with h columns of H |
/// | --- | --- | --- |
/// | A, `first.weight` | `[in, hidden]` | `[in, h]`, columns |
/// | a, `first.bias` | `[hidden]` | `[h]` |
/// | B, `second.weight` | `[hidden, out]` | `[h, out]`, rows |
/// | b, `second.bias` | `[out]` | `[out]`, the whole |
///
/// Ranks take runs in their order, as in chapter 3: `shard_range(hidden, ranks, rank)`. `hidden` is at least as
/// large as `ranks`, and need not be a multiple of it.
///
/// Fails when a tensor operation fails.
pub fn part(whole: &TwoLayers, rank: usize, ranks: usize) -> Result<TwoLayers, Error> {
    // TODO: the three functions, from here on. Which columns of H belong to this rank?
    todo!("the columns of the first layer and the rows of the second")
}

/// H and Y of a batch: this rank's columns of H, `[B, h]`, and all of Y, `[B, out]`, the same on every rank, to the
/// last bit.
///
/// All ranks call this together, each with its part and the same `x`, `[B, in]`. They send no more than one
/// all-reduce of a tensor like Y.
///
/// Fails when a tensor operation fails, or another rank stops or stalls.
pub fn forward(
    rank: &impl Communicator,
    part: &TwoLayers,
    x: &Tensor,
) -> Result<(Tensor, Tensor), Error> {
    todo!("H and Y")
}

/// The gradients of the input, `[B, in]`, the same on every rank to the last bit, and of this rank's part:
/// `Gradients { x, layers: TwoLayers { first, second } }`, each layer with a `weight` and a `bias`.
///
/// All ranks call this together, each with its part, the same `x`, its own columns of H, and `dy`, `[B, out]`: the
/// gradient of Y. All ranks have computed the same loss from the same Y, so `dy` is the same on all of them.
/// Gradients are sums over the batch, as everywhere here. Write them out: `backward` of a tensor is not to be
/// called.
///
/// Where H is greater than 0, relu lets the gradient pass; elsewhere nothing passes.
///
/// The ranks send no more than one all-reduce of a tensor like X.
///
/// Fails when a tensor operation fails, or another rank stops or stalls.
pub fn backward(
    rank: &impl Communicator,
    part: &TwoLayers,
    x: &Tensor,
    hidden: &Tensor,
    dy: &Tensor,
) -> Result<Gradients, Error> {
    todo!("the gradients")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch06_tensor_parallel, Answer { part, forward, backward }, run);

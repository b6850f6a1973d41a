//! Chapter 6b, `book/src/ch06b-tensor-parallel.md`: the MLP of a GPT on k ranks, one layer by columns, one by rows.
//!
//! Check your answer: `cargo course check ch06_tensor_parallel`

use candle_core::{DType, Tensor};
use exercises::two_layers::{Gradients, Layer, TwoLayers, gelu, gelu_slope};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use split_batch::shard_range;

/// One rank's part of the MLP of a block.
///
/// On one device, Z = X·A + a and Y = gelu(Z)·B + b. Each column of Z belongs to one rank, with its column of A, its number of a
/// and its row of B. b belongs to all columns of Z together, so every rank has the whole b.
///
/// | tensor | whole | the part of a rank with h columns of Z |
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
    // TODO: the three functions, from here on. Which columns of Z belong to this rank?
    todo!("the columns of the first layer and the rows of the second")
}

/// Z and Y of N tokens: this rank's columns of Z, `[N, h]`, and all of Y, `[N, out]`, the same on every rank, to the
/// last bit. `gelu` works on each number of a tensor alone.
///
/// All ranks call this together, each with its part and the same `x`, `[N, in]`. They send no more than one
/// all-reduce of a tensor like Y.
///
/// Fails when a tensor operation fails, or another rank stops or stalls.
pub fn forward(
    rank: &impl Communicator,
    part: &TwoLayers,
    x: &Tensor,
) -> Result<(Tensor, Tensor), Error> {
    todo!("Z and Y")
}

/// The gradients of the input, `[N, in]`, the same on every rank to the last bit, and of this rank's part:
/// `Gradients { x, layers: TwoLayers { first, second } }`, each layer with a `weight` and a `bias`.
///
/// All ranks call this together, each with its part, the same `x`, its own columns of Z, and `dy`, `[N, out]`: the
/// gradient of Y. All ranks have computed the same loss from the same Y, so `dy` is the same on all of them.
/// Gradients are sums over the tokens, as everywhere here. Write them out: `backward` of a tensor is not to be
/// called. `gelu_slope(z)` is GELU's derivative at each number of Z.
///
/// The ranks send no more than one all-reduce of a tensor like X.
///
/// Fails when a tensor operation fails, or another rank stops or stalls.
pub fn backward(
    rank: &impl Communicator,
    part: &TwoLayers,
    x: &Tensor,
    z: &Tensor,
    dy: &Tensor,
) -> Result<Gradients, Error> {
    todo!("the gradients")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch06_tensor_parallel, Answer { part, forward, backward }, run);

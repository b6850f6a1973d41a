//! Forward, every rank has a term of Y; backward, every rank has a term of dX. Those two are added up, and nothing
//! else.

use candle_core::Tensor;
use exercises::two_layers::{Gradients, Layer, TwoLayers, gelu, gelu_slope};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use split_batch::shard_range;

pub fn part(whole: &TwoLayers, rank: usize, ranks: usize) -> Result<TwoLayers, Error> {
    let TwoLayers { first, second } = whole;
    let mine = shard_range(first.bias.elem_count(), ranks, rank);
    let cut = |tensor: &Tensor, axis: usize| tensor.narrow(axis, mine.start, mine.len());
    Ok(TwoLayers {
        first: Layer { weight: cut(&first.weight, 1)?, bias: cut(&first.bias, 0)? },
        second: Layer { weight: cut(&second.weight, 0)?, bias: second.bias.clone() },
    })
}

/// Z and Y of N tokens: this rank's columns of Z, `[N, h]`, and all of Y, `[N, out]`, the same on every rank.
pub fn forward(
    rank: &impl Communicator,
    part: &TwoLayers,
    x: &Tensor,
) -> Result<(Tensor, Tensor), Error> {
    let TwoLayers { first, second } = part;
    let z = x.matmul(&first.weight)?.broadcast_add(&first.bias)?;
    let term = gelu(&z)?.matmul(&second.weight)?;
    // After the sum: in every term, the bias would count k times.
    let y = rank.all_reduce(&term, Algorithm::default())?.broadcast_add(&second.bias)?;
    Ok((z, y))
}

/// The gradients of the input, `[N, in]`, the same on every rank, and of this rank's part.
pub fn backward(
    rank: &impl Communicator,
    part: &TwoLayers,
    x: &Tensor,
    z: &Tensor,
    dy: &Tensor,
) -> Result<Gradients, Error> {
    // Y is a sum, so each of its terms has the gradient of Y: whole, and here already.
    let second = Layer { weight: gelu(z)?.t()?.matmul(dy)?, bias: dy.sum(0)? };
    let dz = (dy.matmul(&part.second.weight.t()?)? * gelu_slope(z)?)?;
    let first = Layer { weight: x.t()?.matmul(&dz)?, bias: dz.sum(0)? };
    // X is used on all ranks, and its gradient is the sum over all uses.
    let term = dz.matmul(&part.first.weight.t()?)?;
    let x = rank.all_reduce(&term, Algorithm::default())?;
    Ok(Gradients { x, layers: TwoLayers { first, second } })
}

exercises::check!(ch06_tensor_parallel, Answer { part, forward, backward }, run);

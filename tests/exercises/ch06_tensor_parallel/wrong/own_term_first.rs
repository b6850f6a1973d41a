// expect: law: all ranks add in the same order

use candle_core::Tensor;
use exercises::two_layers::{Gradients, Layer, TwoLayers};
use params_and_allreduce::communicator::{Communicator, Error};
use split_batch::shard_range;

/// One rank's part of two dense layers.
pub fn part(whole: &TwoLayers, rank: usize, ranks: usize) -> Result<TwoLayers, Error> {
    let TwoLayers { first, second } = whole;
    let mine = shard_range(first.bias.elem_count(), ranks, rank);
    let cut = |tensor: &Tensor, axis: usize| tensor.narrow(axis, mine.start, mine.len());
    Ok(TwoLayers {
        first: Layer { weight: cut(&first.weight, 1)?, bias: cut(&first.bias, 0)? },
        second: Layer { weight: cut(&second.weight, 0)?, bias: second.bias.clone() },
    })
}

/// H and Y of a batch: this rank's columns of H, `[B, h]`, and all of Y, `[B, out]`, the same on every rank.
pub fn forward(
    rank: &impl Communicator,
    part: &TwoLayers,
    x: &Tensor,
) -> Result<(Tensor, Tensor), Error> {
    let TwoLayers { first, second } = part;
    let hidden = x.matmul(&first.weight)?.broadcast_add(&first.bias)?.relu()?;
    let term = hidden.matmul(&second.weight)?;
    let y = sum(rank, &term)?.broadcast_add(&second.bias)?;
    Ok((hidden, y))
}

/// The gradients of the input, `[B, in]`, the same on every rank, and of this rank's part.
pub fn backward(
    rank: &impl Communicator,
    part: &TwoLayers,
    x: &Tensor,
    hidden: &Tensor,
    dy: &Tensor,
) -> Result<Gradients, Error> {
    let second = Layer { weight: hidden.t()?.matmul(dy)?, bias: dy.sum(0)? };
    let passed = hidden.gt(0.0)?.to_dtype(dy.dtype())?;
    let before_relu = (dy.matmul(&part.second.weight.t()?)? * passed)?;
    let first = Layer { weight: x.t()?.matmul(&before_relu)?, bias: before_relu.sum(0)? };
    let term = before_relu.matmul(&part.first.weight.t()?)?;
    let x = sum(rank, &term)?;
    Ok(Gradients { x, layers: TwoLayers { first, second } })
}

/// The sum over all ranks: every rank adds in an order of its own.
fn sum(rank: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    let others = || (0..rank.world_size()).filter(|&other| other != rank.rank());
    others().try_for_each(|other| rank.send(other, tensor))?;
    let mut sum = tensor.clone();
    for other in others() {
        sum = (sum + rank.recv(other, tensor.shape(), tensor.dtype())?)?;
    }
    Ok(sum)
}

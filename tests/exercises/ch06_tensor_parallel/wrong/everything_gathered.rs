// expect: forward, more is sent than an all-reduce like Y

use candle_core::Tensor;
use exercises::two_layers::{Gradients, Layer, TwoLayers};
use params_and_allreduce::Algorithm;
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

/// Puts H and B together on every rank, then computes the second layer as one device would: right, and no less
/// work than there.
pub fn forward(
    rank: &impl Communicator,
    part: &TwoLayers,
    x: &Tensor,
) -> Result<(Tensor, Tensor), Error> {
    let TwoLayers { first, second } = part;
    let hidden = x.matmul(&first.weight)?.broadcast_add(&first.bias)?.relu()?;
    let ranks = rank.world_size();
    let count = Tensor::new(&[hidden.dim(1)? as f64], x.device())?;
    let counts = rank.all_gather(&count, ranks)?.to_vec1::<f64>()?;
    let widest = counts.iter().fold(0.0, |widest: f64, count| widest.max(*count)) as usize;
    let whole = |part: &Tensor| {
        let padded = part.pad_with_zeros(0, 0, widest - part.dim(0)?)?;
        let numbers = padded.elem_count();
        let all = rank.all_gather(&padded.flatten_all()?, numbers * ranks)?;
        let of_rank = |(other, count): (usize, &f64)| {
            let rows = all.narrow(0, other * numbers, numbers)?.reshape(padded.shape())?;
            rows.narrow(0, 0, *count as usize)
        };
        let rows = counts.iter().enumerate().map(of_rank);
        Ok::<_, Error>(Tensor::cat(&rows.collect::<candle_core::Result<Vec<_>>>()?, 0)?)
    };
    let all_of_h = whole(&hidden.t()?.contiguous()?)?.t()?.contiguous()?;
    let y = all_of_h.matmul(&whole(&second.weight)?)?.broadcast_add(&second.bias)?;
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
    // Y is a sum, so each of its terms has the gradient of Y: whole, and here already.
    let second = Layer { weight: hidden.t()?.matmul(dy)?, bias: dy.sum(0)? };
    let passed = hidden.gt(0.0)?.to_dtype(dy.dtype())?;
    let before_relu = (dy.matmul(&part.second.weight.t()?)? * passed)?;
    let first = Layer { weight: x.t()?.matmul(&before_relu)?, bias: before_relu.sum(0)? };
    // X is used on all ranks, and its gradient is the sum over all uses.
    let term = before_relu.matmul(&part.first.weight.t()?)?;
    let x = rank.all_reduce(&term, Algorithm::default())?;
    Ok(Gradients { x, layers: TwoLayers { first, second } })
}

//! A head needs no other head: a rank attends with its own heads, and sends terms of the result.

use candle_core::{DType, Result, Tensor};
use exercises::attention::Attention;
use exercises::two_layers::Layer;
use model_parallel::tensor_parallel::{by_column, by_row};
use ops::softmax;
use params_and_allreduce::communicator::SharedCommunicator;
use split_batch::shard_range;

pub fn part(whole: &Attention, heads: usize, rank: usize, ranks: usize) -> Result<Attention> {
    let (size, mine) = (whole.key.dim(1)? / heads, shard_range(heads, ranks, rank));
    let cut =
        |tensor: &Tensor, axis: usize| tensor.narrow(axis, mine.start * size, mine.len() * size);
    let columns = |layer: &Layer| {
        Ok::<_, candle_core::Error>(Layer {
            weight: cut(&layer.weight, 1)?,
            bias: cut(&layer.bias, 0)?,
        })
    };
    Ok(Attention {
        query: columns(&whole.query)?,
        key: cut(&whole.key, 1)?,
        value: columns(&whole.value)?,
        out: Layer { weight: cut(&whole.out.weight, 0)?, bias: whole.out.bias.clone() },
    })
}

/// Causal attention in each of `heads` heads: queries, keys and values `[B, T, h]` → `[B, T, h]`.
pub fn attend(query: &Tensor, key: &Tensor, value: &Tensor, heads: usize) -> Result<Tensor> {
    let (batch, tokens, features) = query.dims3()?;
    let size = features / heads;
    // [B, heads, T, size]
    let by_head = |x: &Tensor| {
        let columns = x.reshape((batch, tokens, heads, size))?;
        columns.transpose(1, 2)?.contiguous()
    };
    let (query, key, value) = (by_head(query)?, by_head(key)?, by_head(value)?);
    let scores = (query.matmul(&key.t()?)? / (size as f64).sqrt())?;
    // The logarithm of 1 is 0, and that of 0 is −∞.
    let mask = Tensor::tril2(tokens, DType::F32, query.device())?.log()?.to_dtype(query.dtype())?;
    let weights = softmax(&scores.broadcast_add(&mask)?)?;
    weights.matmul(&value)?.transpose(1, 2)?.reshape((batch, tokens, features))
}

/// The layer on all ranks: `x` `[B, T, C]`, the same on every rank → `[B, T, C]`, the same on every rank.
pub fn forward(
    group: &SharedCommunicator,
    part: &Attention,
    heads: usize,
    x: &Tensor,
) -> Result<Tensor> {
    let Attention { query, key, value, out } = part;
    let mixed = by_column(x, group, |x| {
        let query = x.broadcast_matmul(&query.weight)?.broadcast_add(&query.bias)?;
        let value = x.broadcast_matmul(&value.weight)?.broadcast_add(&value.bias)?;
        attend(&query, &x.broadcast_matmul(key)?, &value, heads)
    })?;
    let term = |mixed: &Tensor| mixed.broadcast_matmul(&out.weight);
    // After the sum: in every term, the bias would count k times.
    by_row(&mixed, group, term, &out.bias)
}

exercises::check!(ch06_attention, Answer { part, attend, forward }, run);

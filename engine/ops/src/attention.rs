//! Causal attention: each token is a weighted mean of the values of the tokens up to itself.

use candle_core::{Result, Tensor};

use crate::softmax::softmax;

/// Causal attention by heads: queries, keys and values `[B, tokens, heads · size]` → `[B, tokens, heads · size]`.
///
/// In each head `softmax(q · kᵀ / √size, causal) · v`, as PyTorch's `scaled_dot_product_attention(is_causal=True)`.
pub fn causal_attention(q: &Tensor, k: &Tensor, v: &Tensor, heads: usize) -> Result<Tensor> {
    let (batch, tokens, features) = q.dims3()?;
    let size = features / heads;
    let by_head =
        |x: &Tensor| x.reshape((batch, tokens, heads, size))?.transpose(1, 2)?.contiguous();
    let (q, k, v) = (by_head(q)?, by_head(k)?, by_head(v)?);
    let scores = (q.matmul(&k.t()?)? * (1.0 / (size as f64).sqrt()))?;
    let mask = (0..tokens * tokens)
        .map(|at| if at % tokens > at / tokens { f64::NEG_INFINITY } else { 0.0 });
    let mask =
        Tensor::from_iter(mask, q.device())?.reshape((tokens, tokens))?.to_dtype(q.dtype())?;
    let mixed = softmax(&scores.broadcast_add(&mask)?)?.matmul(&v)?;
    mixed.transpose(1, 2)?.reshape((batch, tokens, features))
}

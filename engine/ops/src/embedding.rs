//! The embedding: a row of a table for each token.

use std::ops::Range;

use candle_core::{Result, Tensor};

/// Looks up rows of a table: tokens (u32, of any shape), `[vocabulary, features]` → `[…, features]`. Fails when a token is outside
/// the table.
pub fn embedding(tokens: &Tensor, table: &Tensor) -> Result<Tensor> {
    let shape = [tokens.dims(), &[table.dim(1)?]].concat();
    table.index_select(&tokens.flatten_all()?, 0)?.reshape(shape)
}

/// [`embedding()`] on one rank of several: `table` has the rows `mine` of a table of `vocabulary` rows. A token of another rank
/// gets a row of zeros, so the sum over all ranks is the embedding.
pub fn embedding_of_part(
    tokens: &Tensor,
    table: &Tensor,
    mine: Range<usize>,
    _vocabulary: usize,
) -> Result<Tensor> {
    let is_mine = tokens.ge(mine.start as u32)?.mul(&tokens.lt(mine.end as u32)?)?;
    let rows = is_mine.where_cond(&(tokens - mine.start as f64)?, &tokens.zeros_like()?)?;
    let found = embedding(&rows, table)?;
    let last = is_mine.dims().len();
    found.broadcast_mul(&is_mine.to_dtype(table.dtype())?.unsqueeze(last)?)
}

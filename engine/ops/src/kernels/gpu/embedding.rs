//! Rows of a table by token, and the gradient of the table.

use candle_core::{DType, Result, Storage, Tensor};

use super::kernel::Source;
use super::launch::{Launch, blocks_of};
use crate::kernels::element::tensor;

/// Looks up a row of the table for each token. The table has the rows from `first` on of a vocabulary.
pub(crate) fn embedding(
    tokens: &Tensor,
    table: &Tensor,
    first: usize,
    vocabulary: usize,
) -> Result<Storage> {
    let ((rows, features), count) = (table.dims2()?, tokens.elem_count());
    let n = count * features;
    let launch = Launch::new(Source::Embedding, "embedding", table).count(n).count(features);
    let launch = launch.count(rows).count(first).count(vocabulary);
    let launch = launch.memory_as(DType::U32, [tokens], count).memory([table], rows * features);
    // SAFETY: `embedding(n, features, rows, first, vocabulary, tokens, table, y)` reads one of n / `features` tokens for each of
    // the n results, and one of `rows` rows if the token has one.
    unsafe { launch.compute(n, blocks_of(n)) }
}

/// Adds up the gradients of each token's places, in their order.
pub(crate) fn embedding_gradient(
    tokens: &Tensor,
    dy: &Tensor,
    (rows, features): (usize, usize),
    first: usize,
) -> Result<Tensor> {
    let (n, count) = (rows * features, tokens.elem_count());
    let launch = Launch::new(Source::Embedding, "embedding_gradient", dy).count(n).count(features);
    let launch = launch.count(count).count(first).memory_as(DType::U32, [tokens], count);
    let launch = launch.memory([dy], count * features);
    // SAFETY: `embedding_gradient(n, features, count, first, tokens, dy, dtable)` reads `count` tokens and as many rows of
    // `features` gradients, and writes n gradients.
    let dtable = unsafe { launch.compute(n, blocks_of(n)) };
    Ok(tensor(dtable?, (rows, features)))
}

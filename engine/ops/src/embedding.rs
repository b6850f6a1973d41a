//! The embedding: a row of a table for each token.
//!
//! Backward, a row of the table gets the sum over all places of its token, in the order of the places. A task computes some
//! rows of the gradient, so the number of threads never changes the bits. Cost: every element is read and written once.

use std::ops::Range;

use candle_core::{DType, Result, Tensor, bail};

use crate::backward::record;
use crate::copies::{is_rounded, rounded};
use crate::kernels::element::{Element, cpu_memory, tensor, with_elements};
use crate::kernels::gpu;
use crate::kernels::memory::made_by_row;

/// Looks up rows of a table: tokens (u32, of any shape), `[vocabulary, features]` → `[…, features]`. Fails when shapes or types do
/// not fit, and when a token is outside the table. A GPU cannot report such a token: there its row becomes NaN.
pub fn embedding(tokens: &Tensor, table: &Tensor) -> Result<Tensor> {
    let vocabulary = table.dim(0)?;
    embedding_of_part(tokens, table, 0..vocabulary, vocabulary)
}

/// [`embedding()`] on one rank of several: `table` has the rows `mine` of a table of `vocabulary` rows. A token of another rank
/// gets a row of zeros, so the sum over all ranks is the embedding. Fails like `embedding`.
pub fn embedding_of_part(
    tokens: &Tensor,
    table: &Tensor,
    mine: Range<usize>,
    vocabulary: usize,
) -> Result<Tensor> {
    let (rows, features) = table.dims2()?;
    if tokens.dtype() != DType::U32 || mine.len() != rows || mine.end > vocabulary {
        let (dtype, dims) = (tokens.dtype(), table.dims());
        bail!(
            "embedding: rows {mine:?} of {vocabulary} and tokens of U32 were expected, got {dims:?} and {dtype:?}"
        );
    }
    if is_rounded(table) {
        let in_f32 = |of: &[Tensor]| embedding_of_part(tokens, &of[0], mine, vocabulary);
        return rounded("embedding", &[table], in_f32);
    }
    let shape = [tokens.dims(), &[features]].concat();
    let (tokens, table) = (tokens.flatten_all()?.contiguous()?, &table.contiguous()?);
    if table.device().is_cuda() {
        let y = gpu::embedding(&tokens, table, mine.start, vocabulary)?;
        return record("embedding", y, shape, [table], move |_, dy| {
            let dy = dy.contiguous()?;
            Ok([Some(gpu::embedding_gradient(&tokens, &dy, (rows, features), mine.start)?)])
        });
    }
    let tokens = tokens.to_vec1::<u32>()?;
    if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
        bail!("embedding: token {token} is not in a vocabulary of {vocabulary}");
    }
    // A token of another rank is beyond the last row.
    let tokens = tokens.into_iter().map(|token| (token as usize).wrapping_sub(mine.start));
    let tokens: Vec<usize> = tokens.collect();
    let y = with_elements!("embedding", |table| cpu_memory(looked_up(&tokens, table, features)));
    record("embedding", y, shape, [table], move |_, dy| {
        let dy = &dy.contiguous()?;
        let dtable =
            with_elements!("embedding", |dy| cpu_memory(gradient(&tokens, dy, [rows, features])));
        Ok([Some(tensor(dtable, (rows, features)))])
    })
}

/// Copies a row of the table for each token, or zeros for a token beyond the table.
fn looked_up<T: Element>(tokens: &[usize], table: &[T], features: usize) -> Vec<T> {
    made_by_row(tokens.len(), features, |place, columns, y| {
        if tokens[place] < table.len() / features {
            y.copy_from_slice(&table[tokens[place] * features..][columns]);
        }
    })
}

/// Adds up the gradients of each token's places.
fn gradient<T: Element>(tokens: &[usize], dy: &[T], [rows, features]: [usize; 2]) -> Vec<T> {
    // The places of each token, token by token: first where the places of each token begin, then where they end.
    let (mut ends, mut places) = (vec![0; rows + 1], vec![0; tokens.len()]);
    let mine = || tokens.iter().enumerate().filter(|&(_, &token)| token < rows);
    mine().for_each(|(_, token)| ends[token + 1] += 1);
    for token in 0..rows {
        ends[token + 1] += ends[token];
    }
    for (place, &token) in mine() {
        places[ends[token]] = place;
        ends[token] += 1;
    }
    made_by_row(rows, features, |token, columns, sums| {
        let start = token.checked_sub(1).map_or(0, |before| ends[before]);
        for place in &places[start..ends[token]] {
            let dy = &dy[place * features..][columns.clone()];
            for (sum, &dy) in sums.iter_mut().zip(dy) {
                *sum += dy;
            }
        }
    })
}

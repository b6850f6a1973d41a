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
            Ok([Some(gpu::embedding_gradient(&tokens, dy, (rows, features), mine.start)?)])
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
        let dtable =
            with_elements!("embedding", |dy| cpu_memory(gradient(&tokens, dy, [rows, features])));
        Ok([Some(tensor(dtable, (rows, features)))])
    })
}

/// Copies a row of the table for each token, or zeros for a token beyond the table.
fn looked_up<T: Element>(tokens: &[usize], table: &[T], features: usize) -> Vec<T> {
    made_by_row(tokens.len(), features, |place, y| {
        if tokens[place] < table.len() / features {
            y.copy_from_slice(&table[tokens[place] * features..][..features]);
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
    made_by_row(rows, features, |token, sums| {
        let start = token.checked_sub(1).map_or(0, |before| ends[before]);
        for place in &places[start..ends[token]] {
            for (sum, &dy) in sums.iter_mut().zip(&dy[place * features..]) {
                *sum += dy;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::tests::agreement::{FEW, assert_agree, device, noise, noises, numbers};

    /// Tokens of two texts, on the device of the tests. Some are there many times.
    fn tokens(count: usize, vocabulary: usize) -> Tensor {
        let tokens: Vec<u32> = (0..count).map(|at| (at * at % vocabulary) as u32).collect();
        Tensor::from_vec(tokens, (2, count / 2), &device()).unwrap()
    }

    #[test]
    fn it_is_its_formula_in_every_type() {
        for (count, vocabulary, features) in
            [(10, 5, 3), (600, 7, 67), (40, 300, 5), (6, 90, 600), (4000, 90, 500)]
        {
            let tokens = tokens(count, vocabulary);
            let formula = |table: &Tensor| {
                let tokens = tokens.to_device(&Device::Cpu)?;
                table.index_select(&tokens.flatten_all()?, 0)?.reshape((2, (), features))
            };
            let table = noises([&[vocabulary, features]]);
            assert_agree(&FEW, &table, &|t| embedding(&tokens, t[0]), &|t| formula(t[0]));
            // One rank's rows are a part of the table. The sum over ranks has the same rows.
            let cut = vocabulary / 3;
            assert_agree(
                &FEW,
                &table,
                &|t| {
                    let part = |rows: Range<usize>| {
                        let part = t[0].narrow(0, rows.start, rows.len())?;
                        embedding_of_part(&tokens, &part, rows, vocabulary)
                    };
                    part(0..cut)? + part(cut..vocabulary)?
                },
                &|t| formula(t[0]),
            );
        }
    }

    #[test]
    fn no_tokens_and_no_features_are_nothing() {
        for (count, features) in [(0, 3), (4, 0)] {
            let table = noise("table", &[5, features]);
            let y = embedding(&tokens(count, 5).to_device(&Device::Cpu).unwrap(), &table).unwrap();
            assert_eq!(y.dims(), [2, count / 2, features]);
            let gradients = y.sum_all().unwrap().backward().unwrap();
            assert_eq!(numbers(gradients.get(&table).unwrap()), vec![0.0; 5 * features]);
        }
    }

    #[test]
    fn what_is_not_in_the_vocabulary_is_refused_and_nan_on_a_gpu() {
        let table = noise("table", &[3, 2]).to_device(&device()).unwrap();
        for (token, mine) in [(3u32, 0..3), (9, 4..7), (u32::MAX, 1..4)] {
            let vocabulary = if mine.start == 0 { 3 } else { 9 };
            let tokens = Tensor::new(&[1u32, token], &device()).unwrap();
            match embedding_of_part(&tokens, &table, mine, vocabulary) {
                // A GPU cannot report an error.
                Ok(y) => assert!(device().is_cuda() && numbers(&y)[2..].iter().all(|y| y.is_nan())),
                Err(error) => {
                    let words = format!("token {token} is not in a vocabulary of {vocabulary}");
                    assert!(error.to_string().contains(&words), "{error}");
                }
            }
        }
        let tokens = Tensor::new(&[1u32], &device()).unwrap();
        for (mine, vocabulary) in [(0..2, 3), (1..4, 3)] {
            let error = embedding_of_part(&tokens, &table, mine, vocabulary).unwrap_err();
            assert!(error.to_string().contains("were expected, got [3, 2]"), "{error}");
        }
        let tokens = tokens.to_dtype(DType::I64).unwrap();
        let error = embedding(&tokens, &table).unwrap_err().to_string();
        assert!(error.contains("tokens of U32 were expected, got [3, 2] and I64"), "{error}");
    }
}

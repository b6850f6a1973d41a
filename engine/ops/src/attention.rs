//! Causal attention: each token is a weighted mean of the values of the tokens up to itself.
//!
//! On a CPU, forward and backward work as FlashAttention (Dao et al., 2022). A task computes one head of one sample. It holds the
//! scores of four queries at a time forward, and of sixteen backward. Forward keeps one number for each query, the logarithm of
//! the sum of its exponentials, and backward computes the scores again. Cost for each head: 2 · T² · size operations forward, and
//! 5 · T² · size backward. On a GPU, candle's operations hold the scores of all heads.
//!
//! A query reads nothing of the keys, values and gradients of later tokens, so their NaNs do not reach it.

use std::ops::Range;

use candle_core::{Result, Tensor, Var, WithDType, bail};
use rayon::prelude::*;

use crate::backward::{record, record_copy};
use crate::copies::{is_rounded, rounded};
use crate::kernels::element::{Element, cpu_memory, tensor, with_elements};
use crate::kernels::functions::exp;
use crate::kernels::memory::{Scratch, parts_of_rows, zeros};
use crate::kernels::simd::{LANES, vectorised};
use crate::kernels::sums::largest;
use crate::kernels::tiles::{
    COLUMNS, HIGH, Line, Panels, Tile, add_products, lines, lines_mut, no_sums,
};
use crate::softmax::softmax;

/// The number of queries whose scores are in memory at a time.
const BLOCK: usize = 16;

/// Causal attention by heads: queries, keys and values `[B, tokens, heads · size]` → `[B, tokens, heads · size]`.
///
/// In each head `softmax(q · kᵀ / √size, causal) · v`, as PyTorch's `scaled_dot_product_attention(is_causal=True)`. Fails when
/// shapes or types differ, when the heads do not divide the features, without tokens, and on dtypes but f32, f64 and bf16.
pub fn causal_attention(q: &Tensor, k: &Tensor, v: &Tensor, heads: usize) -> Result<Tensor> {
    let &[batch, tokens, features] = q.dims() else {
        bail!("causal_attention: queries [B, tokens, features] were expected, got {:?}", q.dims());
    };
    if k.shape() != q.shape() || v.shape() != q.shape() {
        let (q, k, v) = (q.dims(), k.dims(), v.dims());
        bail!("causal_attention: queries {q:?} need keys and values like them, got {k:?}, {v:?}");
    }
    if tokens == 0 || features == 0 || heads == 0 || features % heads != 0 {
        bail!(
            "causal_attention: {heads} heads of at least one feature and one token need \
             [B, tokens, heads · size], got {:?}",
            q.dims()
        );
    }
    if is_rounded(q) {
        return rounded("causal_attention", &[q, k, v], |of| {
            causal_attention(&of[0], &of[1], &of[2], heads)
        });
    }
    let (q, k, v) = (&q.contiguous()?, &k.contiguous()?, &v.contiguous()?);
    let inputs = [q.clone(), k.clone(), v.clone()];
    if q.device().is_cuda() {
        let y = by_operations([q, k, v].map(Tensor::detach).each_ref(), heads)?;
        return record_copy("causal_attention", &y, [q, k, v], move |_, dy| {
            let [q, k, v] = inputs.each_ref().map(Var::from_tensor);
            let of = [q?, k?, v?];
            let y = by_operations(of.each_ref().map(Var::as_tensor), heads)?;
            let mut found = (y * dy)?.sum_all()?.backward()?;
            Ok(of.map(|of| found.remove(&of)))
        });
    }
    let shape = Attention { batch, tokens, heads, size: features / heads };
    let (y, sums) = with_elements!("causal_attention", |q, k, v| {
        let (y, sums) = shape.forward(q, k, v);
        (cpu_memory(y), tensor(cpu_memory(sums), (batch, heads, tokens)))
    });
    record("causal_attention", y, q.shape(), [q, k, v], move |y, dy| {
        let ([q, k, v], sums) = (inputs.each_ref(), &sums);
        let gradients = with_elements!("causal_attention", |q, k, v, sums, y, dy| {
            shape.backward([q, k, v], sums, y, dy).map(cpu_memory)
        });
        Ok(gradients.map(|of| Some(tensor(of, q.shape()))))
    })
}

/// Computes attention by candle's operations, with the scores of all heads in memory.
fn by_operations([q, k, v]: [&Tensor; 3], heads: usize) -> Result<Tensor> {
    let (batch, tokens, features) = q.dims3()?;
    let size = features / heads;
    let by_head =
        |x: &Tensor| x.reshape((batch, tokens, heads, size))?.transpose(1, 2)?.contiguous();
    let (q, k, v) = (by_head(q)?, by_head(k)?, by_head(v)?);
    let scores = (q.matmul(&k.t()?.contiguous()?)? * (1.0 / (size as f64).sqrt()))?;
    let mask = (0..tokens * tokens)
        .map(|at| if at % tokens > at / tokens { f64::NEG_INFINITY } else { 0.0 });
    let mask =
        Tensor::from_iter(mask, q.device())?.reshape((tokens, tokens))?.to_dtype(q.dtype())?;
    let mixed = softmax(&scores.broadcast_add(&mask)?)?.matmul(&v)?;
    mixed.transpose(1, 2)?.reshape((batch, tokens, features))
}

#[derive(Clone, Copy)]
struct Attention {
    batch: usize,
    tokens: usize,
    heads: usize,
    size: usize,
}

impl Attention {
    /// The distance from a head's row to its next.
    fn stride(&self) -> usize {
        self.heads * self.size
    }

    fn scale<T: Element>(&self) -> T {
        <T as WithDType>::from_f64(1.0 / (self.size as f64).sqrt())
    }

    /// The place of the first row of a sample's head.
    fn first(&self, task: usize) -> usize {
        task / self.heads * self.tokens * self.stride() + task % self.heads * self.size
    }

    /// Numbers of a row of scores, in whole lines.
    fn width(&self) -> usize {
        self.tokens.next_multiple_of(COLUMNS)
    }

    /// Splits memory into the rows of each sample's heads.
    fn by_head<'a, T>(&self, memory: &'a mut [T]) -> Vec<Vec<&'a mut [T]>> {
        let samples = memory.chunks_exact_mut(self.tokens * self.stride());
        samples.flat_map(|sample| parts_of_rows(sample, self.stride(), self.size)).collect()
    }

    /// Returns the results and the logarithms of the sums of exponentials.
    fn forward<T: Element>(&self, q: &[T], k: &[T], v: &[T]) -> (Vec<T>, Vec<T>) {
        let (mut y, mut sums) = (zeros(q.len()), zeros(self.batch * self.heads * self.tokens));
        let tasks = self.by_head(&mut y).into_par_iter().zip(sums.par_chunks_mut(self.tokens));
        tasks.enumerate().for_each(|(task, (mut y, sums))| {
            let [q, k, v] = [q, k, v].map(|of| &of[self.first(task)..]);
            vectorised(
                #[inline(always)]
                || self.forward_of_head([q, k, v], &mut y, sums),
            );
        });
        (y, sums)
    }

    #[inline(always)]
    fn forward_of_head<T: Element>(
        &self,
        [q, k, v]: [&[T]; 3],
        y: &mut [&mut [T]],
        sums: &mut [T],
    ) {
        let Self { tokens, size, .. } = *self;
        let (width, scale) = (self.width(), self.scale::<T>());
        let keys = Panels::transposed(k, tokens, size, self.stride());
        let values = Panels::of(v, tokens, size, self.stride());
        let mut scores = Scratch::<T>::new(HIGH * width);
        for first in (0..tokens).step_by(HIGH) {
            for panel in 0..=(first + HIGH - 1).min(tokens - 1) / COLUMNS {
                let tile = self.row_products(q, first, keys.panel(panel));
                store(&mut scores, width, panel, &tile);
            }
            let mut shares = [T::zero(); HIGH];
            for row in 0..HIGH.min(tokens - first) {
                let query = first + row;
                let scores = &mut scores[row * width..][..(query / LANES + 1) * LANES];
                scores[query + 1..].fill(T::neg_infinity());
                let largest = largest(scores);
                let (scores, _) = scores.as_chunks_mut::<LANES>();
                let mut sum = [T::zero(); LANES];
                for scores in scores {
                    for (sum, score) in sum.iter_mut().zip(scores) {
                        *score = exp((*score - largest) * scale);
                        *sum += *score;
                    }
                }
                let sum: T = sum.into_iter().sum();
                shares[row] = T::one() / sum;
                sums[query] = largest * scale + sum.ln();
            }
            for panel in 0..size.div_ceil(COLUMNS) {
                let tile = self.up_to_query(&scores, first, values.panel(panel));
                write(y, first, panel, tile, shares);
            }
        }
    }

    /// The products of rows of a head, from `first` on, with the columns of a panel.
    #[inline(always)]
    fn row_products<T: Element>(&self, rows: &[T], first: usize, panel: &[Line<T>]) -> Tile<T> {
        // A tile that is larger than the rest repeats the last row.
        let rows: [&[T]; HIGH] = std::array::from_fn(
            #[inline(always)]
            |row| &rows[(first + row).min(self.tokens - 1) * self.stride()..][..self.size],
        );
        add_products(
            no_sums(),
            #[inline(always)]
            |at| [rows[0][at], rows[1][at], rows[2][at], rows[3][at]],
            panel,
            0..self.size,
            (0..0, |_, _| false),
        )
    }

    /// For queries from `first` on, the sums of weight · row over the tokens up to the query.
    #[inline(always)]
    fn up_to_query<T: Element>(&self, weights: &[T], first: usize, panel: &[Line<T>]) -> Tile<T> {
        let width = self.width();
        let weights = &weights[..HIGH * width];
        add_products(
            no_sums(),
            #[inline(always)]
            |at| {
                [weights[at], weights[width + at], weights[2 * width + at], weights[3 * width + at]]
            },
            panel,
            0..first + 1,
            (
                first + 1..(first + HIGH).min(self.tokens),
                #[inline(always)]
                |row, at| at <= first + row,
            ),
        )
    }

    /// Returns the gradients of queries, keys and values.
    fn backward<T: Element>(
        &self,
        inputs: [&[T]; 3],
        sums: &[T],
        y: &[T],
        dy: &[T],
    ) -> [Vec<T>; 3] {
        let mut gradients = inputs.map(|of| zeros(of.len()));
        let [dq, dk, dv] = gradients.each_mut().map(|of| self.by_head(of));
        let tasks = (dq, dk, dv, sums.par_chunks(self.tokens)).into_par_iter().enumerate();
        tasks.for_each(|(task, (dq, dk, dv, sums))| {
            let first = self.first(task);
            let inputs = inputs.map(|of| &of[first..]);
            vectorised(
                #[inline(always)]
                || self.backward_of_head(inputs, sums, &y[first..], &dy[first..], [dq, dk, dv]),
            );
        });
        gradients
    }

    #[inline(always)]
    fn backward_of_head<T: Element>(
        &self,
        [q, k, v]: [&[T]; 3],
        sums: &[T],
        y: &[T],
        dy: &[T],
        [mut dq, mut dk, mut dv]: [Vec<&mut [T]>; 3],
    ) {
        let Self { tokens, size, .. } = *self;
        let (width, stride, scale) = (self.width(), self.stride(), self.scale::<T>());
        let [queries, keys, upstream] = [q, k, dy].map(|of| Panels::of(of, tokens, size, stride));
        let [of_keys, of_values] = [k, v].map(|of| Panels::transposed(of, tokens, size, stride));
        let [mut weights, mut dscores] = [(); 2].map(|()| Scratch::<T>::new(BLOCK * width));
        // The sums of a panel's tile lie together.
        let (panels, height) = (size.div_ceil(COLUMNS), tokens.next_multiple_of(HIGH));
        let [mut all_dk, mut all_dv] = [(); 2].map(|()| {
            let mut sums = Scratch::new(panels * height * COLUMNS);
            sums.fill(T::zero());
            sums
        });
        for start in (0..tokens).step_by(BLOCK) {
            let end = (start + BLOCK).min(tokens);
            for first in (start..end).step_by(HIGH) {
                let rows: [usize; HIGH] = std::array::from_fn(|row| (first + row).min(tokens - 1));
                let of_rows = rows.map(|row| sums[row]);
                let dots = rows.map(
                    #[inline(always)]
                    |row| dot(&y[row * stride..][..size], &dy[row * stride..][..size]),
                );
                let at = (first - start) * width;
                for panel in 0..=(first + HIGH - 1).min(tokens - 1) / COLUMNS {
                    let mut tile = self.row_products(q, first, of_keys.panel(panel));
                    let mut dtile = self.row_products(dy, first, of_values.panel(panel));
                    for row in 0..HIGH {
                        let [scores, dscores] = [&mut tile[row], &mut dtile[row]];
                        let dscores = dscores.as_flattened_mut();
                        for (score, dscore) in scores.as_flattened_mut().iter_mut().zip(dscores) {
                            *score = exp(*score * scale - of_rows[row]);
                            *dscore = *score * (*dscore - dots[row]);
                        }
                    }
                    store(&mut weights[at..], width, panel, &tile);
                    store(&mut dscores[at..], width, panel, &dtile);
                }
                for panel in 0..panels {
                    let tile = self.up_to_query(&dscores[at..], first, keys.panel(panel));
                    write(&mut dq, first, panel, tile, [scale; HIGH]);
                }
            }
            let of_sums = [(&weights, &upstream, &mut all_dv), (&dscores, &queries, &mut all_dk)];
            for (weights, rows, all) in of_sums {
                for (panel, sums) in lines_mut(all).chunks_exact_mut(height).enumerate() {
                    let (tiles, _) = sums.as_chunks_mut::<HIGH>();
                    for (nth, tile) in tiles.iter_mut().take(end.div_ceil(HIGH)).enumerate() {
                        self.add_from_key(tile, nth * HIGH, start..end, weights, rows.panel(panel));
                    }
                }
            }
        }
        for (rows, all, factor) in [(&mut dk, &all_dk, scale), (&mut dv, &all_dv, T::one())] {
            for (panel, sums) in lines(all).chunks_exact(height).enumerate() {
                for (nth, tile) in sums.as_chunks::<HIGH>().0.iter().enumerate() {
                    write(rows, nth * HIGH, panel, *tile, [factor; HIGH]);
                }
            }
        }
    }

    /// For keys from `first` on, adds weight · row over a block's queries from the key on.
    #[inline(always)]
    fn add_from_key<T: Element>(
        &self,
        tile: &mut Tile<T>,
        first: usize,
        block: Range<usize>,
        weights: &[T],
        panel: &[Line<T>],
    ) {
        let width = self.width();
        let whole = block.end.min(block.start.max(first + HIGH - 1));
        *tile = add_products(
            *tile,
            #[inline(always)]
            |at| {
                let keys = &weights[(at - block.start) * width + first..][..HIGH];
                [keys[0], keys[1], keys[2], keys[3]]
            },
            panel,
            whole..block.end,
            (
                block.start.max(first)..whole,
                #[inline(always)]
                |row, at| at >= first + row,
            ),
        );
    }
}

/// The sum of products of two rows, in lanes.
#[inline(always)]
fn dot<T: Element>(a: &[T], b: &[T]) -> T {
    let mut sums = [T::zero(); LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.into_iter().sum()
}

/// Stores a tile into rows of `width` numbers.
#[inline(always)]
fn store<T: Element>(rows: &mut [T], width: usize, panel: usize, tile: &Tile<T>) {
    for (row, line) in tile.iter().enumerate() {
        lines_mut(&mut rows[row * width..])[panel] = *line;
    }
}

/// Writes a tile, each row times a factor, to the rows from `first` on.
#[inline(always)]
fn write<T: Element>(
    rows: &mut [&mut [T]],
    first: usize,
    panel: usize,
    tile: Tile<T>,
    factors: [T; HIGH],
) {
    for ((row, line), factor) in rows[first..].iter_mut().zip(&tile).zip(factors) {
        for (to, &sum) in row[panel * COLUMNS..].iter_mut().zip(line.as_flattened()) {
            *to = sum * factor;
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use itertools::iproduct;

    use super::*;
    use crate::backward::{backward_from, is_recorded};
    use crate::tests::agreement::{
        MANY, assert_agree, assert_empty_batch_is_nothing, noise, noises, numbers,
    };

    #[test]
    fn it_is_its_formula_in_every_type() {
        // One tile and several, parts of a tile, of a block and of a panel.
        for [batch, tokens, heads, size] in [
            [2, 7, 3, 5],
            [1, 1, 2, 3],
            [2, 64, 2, 32],
            [1, 37, 2, 33],
            [1, 70, 1, 64],
            [3, 37, 2, 10],
        ] {
            let shape: &[usize] = &[batch, tokens, heads * size];
            assert_agree(
                &MANY,
                &noises([shape; 3]),
                &|t| causal_attention(t[0], t[1], t[2], heads),
                &|t| by_operations([t[0], t[1], t[2]], heads),
            );
        }
        let [q, k, v] = ["q", "k", "v"].map(|name| noise(name, &[2, 7, 15]));
        assert!(is_recorded(&causal_attention(&q, &k, &v, 3).unwrap()));
    }

    /// No token reads a later one: neither its numbers nor the gradient of its result.
    #[test]
    fn a_nan_reaches_the_tokens_from_its_own_on() {
        /// Whether a NaN of a token, the second, reaches another.
        type Reaches = fn(usize, usize) -> bool;
        // From a query, a key, a value and a gradient to the results and to the gradients of the values.
        let all: [[Reaches; 2]; 4] = [
            [|token, place| token == place, |token, place| token <= place],
            [|token, place| token >= place, |_, _| true],
            [|token, place| token >= place, |_, _| false],
            [|_, _| false, |token, place| token <= place],
        ];
        let (tokens, features) = (37, 10);
        for (place, (nth, reaches)) in iproduct!([0, 3, 17, 36], all.into_iter().enumerate()) {
            let mut operands = noises([&[1, tokens, features]; 4]).map(|of| numbers(&of));
            operands[nth][place * features] = f64::NAN;
            let [q, k, v, dy] = operands.map(|of| {
                let of = Tensor::from_vec(of, (1, tokens, features), &Device::Cpu).unwrap();
                Var::from_tensor(&of).unwrap()
            });
            let y = causal_attention(&q, &k, &v, 2).unwrap();
            let gradients = backward_from(&y, &dy).unwrap();
            let nans = |of: &Tensor| -> Vec<bool> {
                let of_first_head = |row: &[f64]| row[..5].iter().any(|of| of.is_nan());
                numbers(of).chunks(features).map(of_first_head).collect()
            };
            for (found, reaches) in [&y, gradients.get(&v).unwrap()].into_iter().zip(reaches) {
                let expected: Vec<bool> = (0..tokens).map(|token| reaches(token, place)).collect();
                assert_eq!(nans(found), expected, "operand {nth}, token {place}");
            }
            if nth == 3 {
                let dq = nans(gradients.get(&q).unwrap());
                assert!(dq.iter().enumerate().all(|(token, nan)| !nan || token == place));
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_an_empty_batch_is_nothing() {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
        for (q, k, heads, complaint) in [
            (&[2, 3, 4][..], &[2, 3, 4][..], 3, "3 heads of at least one feature and one token"),
            (&[2, 3, 4], &[2, 3, 4], 0, "0 heads of at least one feature and one token"),
            (&[2, 0, 4], &[2, 0, 4], 2, "2 heads of at least one feature and one token"),
            (&[2, 3, 0], &[2, 3, 0], 2, "2 heads of at least one feature and one token"),
            (&[2, 3, 4], &[2, 4, 4], 2, "queries [2, 3, 4] need keys and values like them"),
            (&[2, 4], &[2, 4], 2, "queries [B, tokens, features] were expected, got [2, 4]"),
        ] {
            let error = causal_attention(&zeros(q), &zeros(k), &zeros(k), heads).unwrap_err();
            let error = error.to_string();
            assert!(error.starts_with(&format!("causal_attention: {complaint}")), "{error}");
        }
        assert_empty_batch_is_nothing(&[7, 6], &[7, 6], &[], |x| causal_attention(x, x, x, 2));
    }
}

//! A bound for the rounding error of Winograd's convolution in f32, and a test of this bound.
//!
//! An output is a sum of products of sums of products. The *magnitude* of an output is the result of the same computation
//! with the absolute values of all inputs and of all matrix entries. The magnitude includes all terms, even if they cancel
//! in the output. Rounding each operation to a relative error of at most u = 2⁻²⁴ then moves the result by at most
//!
//! ```text
//! |computed − true| ≤ γₙ · magnitude        γₙ = n·u / (1 − n·u)
//! ```
//!
//! n is the number of roundings that a single term passes through (N. Higham, *Accuracy and Stability of Numerical
//! Algorithms*, §3.1). A product with a small matrix of L columns adds L + 1 roundings: one of the matrix entry, one of the
//! multiplication, and L − 1 of additions. A transform consists of two such products. The sum over K channels or columns
//! adds at most K + 1 roundings. The input gradient adds one rounding for each tile that covers a pixel.
//!
//! The bound holds for the worst case, in which all errors have the same sign. In practice, the
//! largest error stays below [`TYPICAL`] times the largest entry. The test prints this ratio. It
//! ranges from 2e-7 for 2×2 tiles to 1.6e-5 for the gradient of the weights of 5×5 kernels with many
//! channels. A plain convolution has about 5e-7.
//!
//! The error of the weights' gradient grows with the number of columns that one product adds up. Sums
//! of 480 columns reached 3.7e-5, so 5×5 kernels have shorter sums: `Winograd::SUMMED`.

use crate::backward::Wanted;
use crate::conv2d::epilogue::Epilogue;
use crate::conv2d::geometry::Geometry;
use crate::conv2d::im2col::Im2col;
use crate::conv2d::results::{Gradients, Output, Upstream};
use crate::conv2d::tests::formula::{Operands, geometry};

use crate::conv2d::winograd::Winograd;

/// An upper limit of the error of f32 in practice, relative to a tensor's largest entry.
const TYPICAL: f64 = 2e-5;

type Results = [Vec<f64>; 3];

fn sandwich<const I: usize, const O: usize>(
    matrix: &[[f64; I]; O],
    tile: &[[f64; I]; I],
) -> [[f64; O]; O] {
    std::array::from_fn(|row| {
        std::array::from_fn(|col| {
            let terms =
                |i: usize| (0..I).map(move |j| matrix[row][i] * tile[i][j] * matrix[col][j]);
            (0..I).flat_map(terms).sum()
        })
    })
}

fn absolute<const I: usize, const O: usize>(matrix: [[f64; I]; O]) -> [[f64; I]; O] {
    matrix.map(|row| row.map(f64::abs))
}

impl<const M: usize, const R: usize, const A: usize> Winograd<'_, M, R, A> {
    #[expect(clippy::needless_range_loop, reason = "the formulas have indices")]
    fn magnitudes(&self, operands: &Operands) -> Results {
        let g = self.geometry;
        let (padded, out) = (self.padded_input(), self.padded_output());
        let at = |plane: &[f64], height: usize, width: usize, row: isize, col: isize| {
            let inside =
                |place: isize, size: usize| usize::try_from(place).ok().filter(|&p| p < size);
            match (inside(row, height), inside(col, width)) {
                (Some(row), Some(col)) => plane[row * width + col].abs(),
                _ => 0.0,
            }
        };
        let mut y = vec![0.0; g.batch * g.out_image()];
        let mut dw = vec![0.0; operands.weight.len()];
        let mut dx = vec![0.0; operands.x.len()];
        let kernel = |output: usize, channel: usize| -> [[f64; R]; R] {
            let start = (output * g.in_channels + channel) * R * R;
            std::array::from_fn(|i| {
                std::array::from_fn(|j| operands.weight[start + i * R + j].abs())
            })
        };
        let weights = |o, c| sandwich(&absolute(Self::WEIGHTS), &kernel(o, c));
        for image in 0..g.batch {
            for tile in 0..self.tiles() {
                let (top, left) = (tile / self.across * M, tile % self.across * M);
                let inputs = |channel: usize| {
                    let start = (image * g.in_channels + channel) * padded.inner();
                    let plane = &operands.x[start..][..padded.inner()];
                    let pixel = |i: usize, j: usize| {
                        let (row, col) = ((top + i) as isize, (left + j) as isize);
                        let padding = g.padding as isize;
                        at(plane, g.height, g.width, row - padding, col - padding)
                    };
                    let tile: [[f64; A]; A] =
                        std::array::from_fn(|i| std::array::from_fn(|j| pixel(i, j)));
                    sandwich(&absolute(Self::INPUTS), &tile)
                };
                let gradients = |output: usize| {
                    let start = (image * g.out_channels + output) * out.inner();
                    let plane = &operands.grad[start..][..out.inner()];
                    let pixel =
                        |i, j| at(plane, g.out_h, g.out_w, (top + i) as isize, (left + j) as isize);
                    let tile: [[f64; M]; M] =
                        std::array::from_fn(|i| std::array::from_fn(|j| pixel(i, j)));
                    sandwich(&absolute(Self::OUTPUTS_BACK), &tile)
                };
                let all_inputs: Vec<_> = (0..g.in_channels).map(inputs).collect();
                let all_gradients: Vec<_> = (0..g.out_channels).map(gradients).collect();
                for output in 0..g.out_channels {
                    let mut products = [[0.0; A]; A];
                    for channel in 0..g.in_channels {
                        let (weights, inputs) = (weights(output, channel), &all_inputs[channel]);
                        let mut both = [[0.0; A]; A];
                        for i in 0..A {
                            for j in 0..A {
                                products[i][j] += weights[i][j] * inputs[i][j];
                                both[i][j] = all_gradients[output][i][j] * inputs[i][j];
                            }
                        }
                        let back = sandwich(&absolute(Self::WEIGHTS_BACK), &both);
                        let start = (output * g.in_channels + channel) * R * R;
                        for (sum, term) in dw[start..].iter_mut().zip(back.as_flattened()) {
                            *sum += term;
                        }
                    }
                    let sums = sandwich(&absolute(Self::OUTPUTS), &products);
                    for (i, sums) in sums.iter().enumerate() {
                        for (j, sum) in sums.iter().enumerate() {
                            if top + i < g.out_h && left + j < g.out_w {
                                let plane = (image * g.out_channels + output) * out.inner();
                                y[plane + (top + i) * g.out_w + left + j] = *sum;
                            }
                        }
                    }
                }
                for channel in 0..g.in_channels {
                    let mut tiles = [[0.0; A]; A];
                    for output in 0..g.out_channels {
                        let weights = weights(output, channel);
                        for i in 0..A {
                            for j in 0..A {
                                tiles[i][j] += weights[i][j] * all_gradients[output][i][j];
                            }
                        }
                    }
                    let back = sandwich(&absolute(Self::INPUTS_BACK), &tiles);
                    for (i, back) in back.iter().enumerate() {
                        for (j, term) in back.iter().enumerate() {
                            let row = (top + i).checked_sub(g.padding).filter(|&r| r < g.height);
                            let col = (left + j).checked_sub(g.padding).filter(|&c| c < g.width);
                            if let (Some(row), Some(col)) = (row, col) {
                                let plane = (image * g.in_channels + channel) * padded.inner();
                                dx[plane + row * g.width + col] += term;
                            }
                        }
                    }
                }
            }
        }
        [y, dw, dx]
    }

    /// Returns the number of roundings that a term passes through, for each result.
    fn roundings(&self) -> [usize; 3] {
        let g = self.geometry;
        let transform = |columns: usize| 2 * (columns + 1);
        let columns = g.batch * self.tiles();
        let overlapping = A.div_ceil(M).pow(2);
        [
            transform(R) + transform(A) + g.in_channels + 1 + transform(A),
            transform(M) + transform(A) + columns + 1 + transform(A),
            transform(R) + transform(M) + g.out_channels + 1 + transform(A) + overlapping,
        ]
    }

    fn in_f32(&self, operands: &Operands) -> Results {
        let g = self.geometry;
        let single =
            |values: &[f64]| values.iter().map(|&value| value as f32).collect::<Vec<f32>>();
        let (x, weight, grad) =
            (single(&operands.x), single(&operands.weight), single(&operands.grad));
        let mut output = Output::new(g, &Epilogue::Plain, None);
        self.forward(&x, &weight, &mut output);
        let upstream =
            Upstream { geometry: g, epilogue: &Epilogue::Plain, grad: &grad, relu_masks: &[] };
        let mut gradients = Gradients::new(g, Wanted { input: true, weights: true }, false);
        self.backward(&x, &weight, &upstream, &mut gradients);
        let double = |values: Vec<f32>| values.into_iter().map(f64::from).collect();
        [
            double(output.y),
            double(gradients.weight.unwrap()),
            double(gradients.x.unwrap_or_default()),
        ]
    }
}

fn stays_within_its_bound<const M: usize, const R: usize, const A: usize>(g: &Geometry) {
    let winograd = Winograd::<M, R, A>::new(g);
    // The operands are f32 numbers, so both computations start from the same numbers.
    let operands = Operands::in_f32(g);
    let truth = operands.by_the_formula(g);
    let truth = [truth.y, truth.dweight, truth.dx];
    let computed = winograd.in_f32(&operands);
    let magnitudes = winograd.magnitudes(&operands);
    for (nth, name) in ["output", "weight gradient", "input gradient"].into_iter().enumerate() {
        let n = winograd.roundings()[nth] as f64 * 2f64.powi(-24);
        let gamma = n / (1.0 - n);
        let largest = truth[nth].iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
        let mut worst = 0.0f64;
        for ((computed, truth), magnitude) in
            computed[nth].iter().zip(&truth[nth]).zip(&magnitudes[nth])
        {
            let error = (computed - truth).abs();
            assert!(
                error <= gamma * magnitude,
                "F({M}, {R}), {name}: {error} > {gamma} · {magnitude}"
            );
            worst = worst.max(error / largest);
        }
        assert!(worst < TYPICAL, "F({M}, {R}), {name}: {worst:.1e} of the largest entry");
        println!("F({M}, {R}), {name}: {worst:.1e} of the largest entry");
    }
}

#[test]
fn f32_stays_within_the_derived_bound() {
    // batch, in, height, width, out, kernel height, kernel width, stride, padding
    stays_within_its_bound::<2, 3, 4>(&geometry([17, 24, 9, 7, 20, 3, 3, 1, 1]));
    stays_within_its_bound::<4, 3, 6>(&geometry([17, 24, 9, 14, 20, 3, 3, 1, 1]));
    stays_within_its_bound::<3, 5, 7>(&geometry([17, 20, 13, 13, 24, 5, 5, 1, 0]));
}

/// Compares the weights' gradient in f32 with im2col in f64. Half of the images have sixteen times the
/// contrast of the others, which gives larger errors than equal images.
#[test]
fn long_sums_keep_the_digits_of_the_weight_gradient() {
    for sizes in [[16, 64, 15, 18, 64, 5, 5, 1, 2], [16, 24, 12, 24, 96, 5, 5, 1, 2]] {
        let g = &geometry(sizes);
        let mut operands = Operands::in_f32(g);
        let half = operands.x.len() / 2;
        operands.x[..half].iter_mut().for_each(|x| *x *= 16.0);
        let [_, found, _] = Winograd::<3, 5, 7>::new(g).in_f32(&operands);
        let Operands { x, weight, grad } = &operands;
        let upstream = Upstream { geometry: g, epilogue: &Epilogue::Plain, grad, relu_masks: &[] };
        let mut truth = Gradients::new(g, Wanted { input: false, weights: true }, false);
        Im2col(g).backward(x, weight, &upstream, &mut truth);
        let truth = truth.weight.unwrap();
        let largest = truth.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
        let errors = found.iter().zip(&truth).map(|(found, truth)| (found - truth).abs());
        let worst = errors.fold(0.0, f64::max) / largest;
        println!("{sizes:?}: {worst:.1e} of the largest entry");
        assert!(worst < TYPICAL, "{sizes:?}: {worst:.1e} of the largest entry");
    }
}

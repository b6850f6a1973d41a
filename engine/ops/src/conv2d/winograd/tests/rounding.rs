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

use itertools::Itertools as _;

use crate::conv2d::Algorithm;
use crate::conv2d::geometry::Geometry;
use crate::conv2d::results::Epilogue;
use crate::conv2d::tests::formula::{Operands, Results, geometry};
use crate::conv2d::winograd::Winograd;

/// An upper limit of the error of f32 in practice, relative to a tensor's largest entry.
const TYPICAL: f64 = 2e-5;

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

/// A square of numbers.
type Tile<const N: usize> = [[f64; N]; N];

/// Reads the absolute values of a tile of the nth plane, which begins at row `top` and column `left`, with zeros outside.
fn read<const N: usize>(
    planes: &[f64],
    nth: usize,
    (height, width): (usize, usize),
    (top, left): (isize, isize),
) -> Tile<N> {
    let inside = |first: isize, place: usize, size: usize| {
        first
            .checked_add_unsigned(place)
            .and_then(|place| usize::try_from(place).ok())
            .filter(|&place| place < size)
    };
    std::array::from_fn(|i| {
        std::array::from_fn(|j| match (inside(top, i, height), inside(left, j, width)) {
            (Some(row), Some(col)) => planes[(nth * height + row) * width + col].abs(),
            _ => 0.0,
        })
    })
}

/// Adds a tile to the nth plane where [`read`] reads it.
fn add_to<const N: usize>(
    planes: &mut [f64],
    nth: usize,
    (height, width): (usize, usize),
    (top, left): (isize, isize),
    tile: &Tile<N>,
) {
    for (i, row) in (top..).zip(tile) {
        for (j, term) in (left..).zip(row) {
            if (0..height as isize).contains(&i) && (0..width as isize).contains(&j) {
                planes[(nth * height + i as usize) * width + j as usize] += term;
            }
        }
    }
}

fn add_products<const N: usize>(sums: &mut Tile<N>, a: &Tile<N>, b: &Tile<N>) {
    let factors = a.as_flattened().iter().zip(b.as_flattened());
    for (sum, (a, b)) in sums.as_flattened_mut().iter_mut().zip(factors) {
        *sum += a * b;
    }
}

impl<const M: usize, const R: usize, const A: usize> Winograd<'_, M, R, A> {
    /// Returns the magnitudes of the output and of the gradients of weight and input.
    fn magnitudes(&self, operands: &Operands) -> [Vec<f64>; 3] {
        let g = self.geometry;
        let (size, out) = ((g.height, g.width), (g.out_h, g.out_w));
        let mut y = vec![0.0; operands.grad.len()];
        let mut dw = vec![0.0; operands.weight.len()];
        let mut dx = vec![0.0; operands.x.len()];
        let transform = |nth| {
            sandwich(&absolute(Self::WEIGHTS), &read::<R>(&operands.weight, nth, (R, R), (0, 0)))
        };
        let weights: Vec<_> = (0..g.out_channels * g.in_channels).map(transform).collect();
        for (image, tile) in (0..g.batch).cartesian_product(0..self.tiles()) {
            let (top, left) = (tile / self.across * M, tile % self.across * M);
            let place = (top as isize, left as isize);
            let padded = (place.0 - g.padding as isize, place.1 - g.padding as isize);
            let inputs = |channel: usize| {
                let tile = read::<A>(&operands.x, image * g.in_channels + channel, size, padded);
                sandwich(&absolute(Self::INPUTS), &tile)
            };
            let gradients = |output: usize| {
                let tile = read::<M>(&operands.grad, image * g.out_channels + output, out, place);
                sandwich(&absolute(Self::OUTPUTS_BACK), &tile)
            };
            let inputs: Vec<_> = (0..g.in_channels).map(inputs).collect();
            let gradients: Vec<_> = (0..g.out_channels).map(gradients).collect();
            let mut products = vec![[[0.0; A]; A]; g.out_channels];
            let mut tiles = vec![[[0.0; A]; A]; g.in_channels];
            for (output, channel) in (0..g.out_channels).cartesian_product(0..g.in_channels) {
                let nth = output * g.in_channels + channel;
                add_products(&mut products[output], &weights[nth], &inputs[channel]);
                add_products(&mut tiles[channel], &weights[nth], &gradients[output]);
                let mut both = [[0.0; A]; A];
                add_products(&mut both, &gradients[output], &inputs[channel]);
                let back = sandwich(&absolute(Self::WEIGHTS_BACK), &both);
                add_to(&mut dw, nth, (R, R), (0, 0), &back);
            }
            for (output, products) in products.iter().enumerate() {
                let sums = sandwich(&absolute(Self::OUTPUTS), products);
                add_to(&mut y, image * g.out_channels + output, out, place, &sums);
            }
            for (channel, tile) in tiles.iter().enumerate() {
                let terms = sandwich(&absolute(Self::INPUTS_BACK), tile);
                add_to(&mut dx, image * g.in_channels + channel, size, padded, &terms);
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
}

/// Computes the output and the gradients of weight and input in f32.
fn in_f32(algorithm: Algorithm, g: &Geometry, operands: &Operands) -> [Vec<f64>; 3] {
    let Results { y, dweight, dx, .. } =
        operands.by::<f32>(algorithm, g, (&Epilogue::Plain, None), true);
    [y, dweight, dx]
}

fn stays_within_its_bound<const M: usize, const R: usize, const A: usize>(
    algorithm: Algorithm,
    sizes: [usize; 9],
) {
    let g = &geometry(sizes);
    let winograd = Winograd::<M, R, A>::new(g);
    // The operands are f32 numbers, so both computations start from the same numbers.
    let operands = Operands::in_f32(g);
    let truth = operands.by_the_formula(g);
    let truth = [truth.y, truth.dweight, truth.dx];
    let computed = in_f32(algorithm, g, &operands);
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
    stays_within_its_bound::<2, 3, 4>(Algorithm::Winograd2, [17, 24, 9, 7, 20, 3, 3, 1, 1]);
    stays_within_its_bound::<4, 3, 6>(Algorithm::Winograd4, [17, 24, 9, 14, 20, 3, 3, 1, 1]);
    stays_within_its_bound::<3, 5, 7>(Algorithm::Winograd3, [17, 20, 13, 13, 24, 5, 5, 1, 0]);
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
        let [_, found, _] = in_f32(Algorithm::Winograd3, g, &operands);
        let plain = (&Epilogue::Plain, None);
        let truth = operands.by::<f64>(Algorithm::Im2col, g, plain, false).dweight;
        let largest = truth.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
        let errors = found.iter().zip(&truth).map(|(found, truth)| (found - truth).abs());
        let worst = errors.fold(0.0, f64::max) / largest;
        println!("{sizes:?}: {worst:.1e} of the largest entry");
        assert!(worst < TYPICAL, "{sizes:?}: {worst:.1e} of the largest entry");
    }
}

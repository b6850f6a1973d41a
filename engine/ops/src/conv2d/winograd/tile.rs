//! The transform of one tile of sixteen images, from pixels to products and back.

use candle_core::WithDType;

use crate::Element;
use crate::lanes::{LANES, Lane, add_product};

/// Computes `matrix` · d · `matrix`ᵀ of a tile d, [I, I] → [O, O], for sixteen images at once.
///
/// The function first multiplies every column of d, and then every row of the intermediate result.
/// The matrices are constants with many zeros, and zeros cost nothing.
#[inline(always)]
pub(super) fn sandwich<T: Element, const I: usize, const O: usize>(
    matrix: &[[f64; I]; O],
    read: impl Fn(usize, usize) -> Lane<T>,
    mut write: impl FnMut(usize, usize, &Lane<T>),
) {
    let mut half = [[[T::zero(); LANES]; I]; O];
    for column in 0..I {
        let product = multiply(matrix, &std::array::from_fn(|row| read(row, column)));
        for (half, product) in half.iter_mut().zip(&product) {
            half[column] = *product;
        }
    }
    for (row, half) in half.iter().enumerate() {
        let product = multiply(matrix, half);
        for (column, product) in product.iter().enumerate() {
            write(row, column, product);
        }
    }
}

/// Computes `matrix` · `vector`.
#[inline(always)]
fn multiply<T: Element, const I: usize, const O: usize>(
    matrix: &[[f64; I]; O],
    vector: &[Lane<T>; I],
) -> [Lane<T>; O] {
    let mut product = [[T::zero(); LANES]; O];
    for (product, row) in product.iter_mut().zip(matrix) {
        for (input, &entry) in vector.iter().zip(row) {
            if entry != 0.0 {
                let entry = <T as WithDType>::from_f64(entry);
                *product = add_product(*product, *input, [entry; LANES]);
            }
        }
    }
    product
}

//! Where the matrices of Winograd's convolution come from.
//!
//! A convolution in one dimension is a product of polynomials. A polynomial of degree A − 1 is known when
//! its values at A points are, and the *value* of a product is the product of the values: one multiplication
//! a point, where the coefficients would need M · R. So: evaluate both factors at A = M + R − 1 points,
//! multiply point by point, and go back. Read backwards (transposed), the same steps compute M outputs of a
//! correlation of A inputs with R weights:
//!
//! ```text
//! y = Aᵀ [ (G w) ⊙ (Bᵀ d) ]        d: A inputs   w: R weights   y: M outputs
//! ```
//!
//! | matrix | shape | row i |
//! | --- | --- | --- |
//! | A | A × M | 1, p, p², … at the point pᵢ |
//! | G | A × R | the same, divided by Nᵢ = Π (pᵢ − pⱼ) over the other points |
//! | Bᵀ | A × A | the coefficients of Π (x − pⱼ) over the other points |
//!
//! The last point is infinity: there a polynomial's "value" is its highest coefficient, and the last row of
//! Bᵀ is the product over all points. (S. Winograd, *Arithmetic Complexity of Computations*, 1980; A. Lavin
//! and S. Gray, *Fast Algorithms for Convolutional Neural Networks*, 2016.)
//!
//! The points decide how much is lost to rounding: small ones with short reciprocals keep the matrices'
//! entries near 1. These lose less than the customary 0, ±1, ±2 (B. Barabasz et al., *Error Analysis and
//! Improving the Accuracy of Winograd Convolution for Deep Neural Networks*, 2020).

/// The points, best first; a convolution that needs fewer takes the first ones.
const POINTS: [f64; 6] = [0.0, 1.0, -1.0, 0.5, -2.0, 2.0];

/// Matrix A, transposed: from the `A` products to `M` outputs.
pub(super) const fn outputs<const M: usize, const A: usize>() -> [[f64; A]; M] {
    transposed(powers::<M, A>())
}

/// Matrix G: `R` weights, evaluated at `A` points.
pub(super) const fn weights<const R: usize, const A: usize>() -> [[f64; R]; A] {
    let mut matrix = powers::<R, A>();
    let mut i = 0;
    // The last row, infinity's, is not divided.
    while i + 1 < A {
        let mut scale = 1.0;
        let mut other = 0;
        while other + 1 < A {
            if other != i {
                scale *= POINTS[i] - POINTS[other];
            }
            other += 1;
        }
        let mut j = 0;
        while j < R {
            matrix[i][j] /= scale;
            j += 1;
        }
        i += 1;
    }
    matrix
}

/// Matrix B, transposed: `A` inputs, made ready for the product with the weights.
pub(super) const fn inputs<const A: usize>() -> [[f64; A]; A] {
    let mut matrix = [[0.0; A]; A];
    let mut i = 0;
    while i < A {
        // Multiply 1 by (x − p) for every point p but the row's own.
        matrix[i][0] = 1.0;
        let mut factor = 0;
        while factor + 1 < A {
            if factor != i {
                let mut power = A - 1;
                while power > 0 {
                    matrix[i][power] = matrix[i][power - 1] - POINTS[factor] * matrix[i][power];
                    power -= 1;
                }
                matrix[i][0] *= -POINTS[factor];
            }
            factor += 1;
        }
        i += 1;
    }
    matrix
}

/// Row i: 1, p, p², … at point i; the last row is infinity's, the highest power alone.
const fn powers<const N: usize, const A: usize>() -> [[f64; N]; A] {
    let mut matrix = [[0.0; N]; A];
    let mut i = 0;
    while i + 1 < A {
        let mut power = 1.0;
        let mut j = 0;
        while j < N {
            matrix[i][j] = power;
            power *= POINTS[i];
            j += 1;
        }
        i += 1;
    }
    matrix[A - 1][N - 1] = 1.0;
    matrix
}

/// The same matrix with rows and columns exchanged: a gradient walks every step backwards.
pub(super) const fn transposed<const I: usize, const O: usize>(
    matrix: [[f64; I]; O],
) -> [[f64; O]; I] {
    let mut transposed = [[0.0; O]; I];
    let mut row = 0;
    while row < O {
        let mut column = 0;
        while column < I {
            transposed[column][row] = matrix[row][column];
            column += 1;
        }
        row += 1;
    }
    transposed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One output of the formula for each place where input i and weight j should and should not meet.
    #[expect(clippy::needless_range_loop, reason = "the formula has indices")]
    fn correlates<const M: usize, const R: usize, const A: usize>() {
        let (a, g, b) = (outputs::<M, A>(), weights::<R, A>(), inputs::<A>());
        for output in 0..M {
            for weight in 0..R {
                for input in 0..A {
                    let met: f64 = (0..A).map(|p| a[output][p] * g[p][weight] * b[p][input]).sum();
                    let expected = if input == output + weight { 1.0 } else { 0.0 };
                    assert!(
                        (met - expected).abs() < 1e-14,
                        "F({M}, {R}): output {output}, weight {weight}, input {input}: {met}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_output_is_the_sum_of_its_weights_times_inputs() {
        correlates::<2, 3, 4>();
        correlates::<4, 3, 6>();
        correlates::<2, 5, 6>();
        correlates::<3, 5, 7>();
    }
}

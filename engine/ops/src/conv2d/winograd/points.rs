//! The transform matrices of Winograd's convolution.
//!
//! A convolution in one dimension is a product of polynomials. A polynomial of degree A − 1 is determined by its values at A
//! points, and the *value* of a product is the product of the values: one multiplication per point. The product of the
//! coefficients would need M · R. The algorithm evaluates both factors at A = M + R − 1 points, multiplies the values, and
//! computes the product's coefficients. Transposed, the steps compute M outputs of a correlation of A inputs with R weights:
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
//! The last point is infinity. A polynomial's "value" at infinity is its highest coefficient, and the last row of Bᵀ is the
//! product over all points. The sources are S. Winograd, *Arithmetic Complexity of Computations*, 1980, and A. Lavin and S.
//! Gray, *Fast Algorithms for Convolutional Neural Networks*, 2016. The points below are more precise than the usual 0, ±1,
//! ±2 (B. Barabasz et al., *Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks*, 2020).

/// The points, best first. A convolution with fewer points uses the first ones.
const POINTS: [f64; 6] = [0.0, 1.0, -1.0, 0.5, -2.0, 2.0];

/// Returns Aᵀ, which transforms `A` products to `M` outputs.
pub(super) const fn outputs<const M: usize, const A: usize>() -> [[f64; A]; M] {
    transposed(powers::<M, A>())
}

/// Returns G, which evaluates `R` weights at `A` points.
pub(super) const fn weights<const R: usize, const A: usize>() -> [[f64; R]; A] {
    let mut matrix = powers::<R, A>();
    let mut i = 0;
    // The last row belongs to infinity and is not divided.
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

/// Returns Bᵀ, which transforms `A` inputs for the product with the weights.
pub(super) const fn inputs<const A: usize>() -> [[f64; A]; A] {
    let mut matrix = [[0.0; A]; A];
    let mut i = 0;
    while i < A {
        // Multiply 1 by (x − p) for every point p except the row's own.
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

/// Returns a matrix with 1, p, p², … at point i in row i, and a 1 at the highest power at infinity.
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

/// Returns the transposed matrix. The backward pass uses the transpose of every transform.
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

    /// Checks the coefficient of input i times weight j in every output. It is 1 if i = output + j, and 0 otherwise.
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

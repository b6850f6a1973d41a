//! The relu, max(x, 0).
//!
//! Its derivative at exactly 0 is a choice: 0, as in PyTorch. The choice matters, because the black border of an image and a
//! bias that starts at zero put many activations at exactly 0.
//!
//! Cost: every element is read and written once. Convolutions, dense layers and the sum at the end of a shortcut
//! ([`add_relu`](crate::add_relu)) have variants with a relu, which save this pass.

use candle_core::{Result, Tensor};

use crate::backward::record;
use crate::copies::{is_rounded, rounded};
use crate::kernels::element::{Element, tensor};
use crate::kernels::elementwise::by_element;
use crate::kernels::gpu;

/// Computes max(x, 0) by element, for any shape. Fails when `x` is none of f32, f64 and bf16.
pub fn relu(x: &Tensor) -> Result<Tensor> {
    if is_rounded(x) {
        return rounded("relu", &[x], |x| relu(&x[0]));
    }
    let x = x.contiguous()?;
    let y = by_element!(gpu::RELU, [&x], |[x]| rectified(x));
    record("relu", y, x.shape(), [&x], |y, dy| Ok([Some(gradient(y, dy)?)]))
}

/// Returns the part of a contiguous `grad` that passes the relu with output `y`, by element.
pub(super) fn gradient(y: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let dx = by_element!(gpu::RELU_GRADIENT, [y, grad], |[y, grad]| passed(y, grad));
    Ok(tensor(dx, y.shape()))
}

/// Does the same for the sum of two gradients, contiguous and of the shape and type of `y`.
pub(super) fn gradient_of_sum(y: &Tensor, [a, b]: [&Tensor; 2]) -> Result<Tensor> {
    let dx = by_element!(gpu::RELU_GRADIENT_OF_SUM, [y, a, b], |[y, a, b]| passed(y, a + b));
    Ok(tensor(dx, y.shape()))
}

/// Returns max(x, 0) of one number. A NaN stays a NaN and is found where it arises.
#[inline(always)]
pub(super) fn rectified<T: Element>(x: T) -> T {
    if x <= T::zero() { T::zero() } else { x }
}

/// Returns the gradient if it passes the relu with output `y`, else 0. At a NaN the gradient passes.
#[inline(always)]
pub(super) fn passed<T: Element>(y: T, grad: T) -> T {
    if y <= T::zero() { T::zero() } else { grad }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::tests::agreement::{
        EXACT, FEW, MANY, assert_agree, assert_close, device, has, noises, there, whole,
    };
    use crate::{add_relu, sum};

    /// Numbers of elements with whole vectors only, and with a partial vector.
    const COUNTS: [usize; 2] = [5 * 68, 5 * 67];

    /// Selection gives derivative 0 at 0, but candle's own relu has 1.
    fn composed(x: &Tensor) -> Result<Tensor> {
        x.detach().le(0.0)?.where_cond(&x.zeros_like()?, x)
    }

    #[test]
    fn it_is_its_formula_in_every_type() {
        for count in COUNTS {
            let x = whole(&noises([&[count]]));
            assert_agree(&EXACT, &x, &|x| relu(x[0]), &|x| composed(x[0]));
            // An aligned start, and a start one element later.
            for from in [0, 1] {
                let view = |x: &Tensor| x.narrow(0, from, 68);
                assert_agree(&EXACT, &x, &|x| relu(&view(x[0])?), &|x| composed(&view(x[0])?));
            }
        }
        let x = whole(&noises([&[70, 31]]));
        assert_agree(&EXACT, &x, &|x| relu(&x[0].t()?), &|x| composed(&x[0].t()?));
    }

    #[test]
    fn a_sum_is_rectified_in_every_type() {
        let formula = |x: &Tensor, y: &Tensor| composed(&(x + y)?);
        for (count, from) in COUNTS.into_iter().flat_map(|count| [(count, 0), (count, 1)]) {
            let inputs = noises([&[count + from], &[count]]);
            let view = |x: &Tensor| x.narrow(0, from, count);
            for (bounds, inputs) in [(&FEW, inputs.to_vec()), (&EXACT, whole(&inputs))] {
                assert_agree(bounds, &inputs, &|t| add_relu(&view(t[0])?, t[1]), &|t| {
                    formula(&view(t[0])?, t[1])
                });
            }
        }
    }

    #[test]
    fn gradients_that_meet_are_added_in_every_type() {
        for shape in [&[70, 31][..], &[3, 31, 4, 4]] {
            let two = noises([shape, shape]);
            // The sum is 2 · x: the gradient of each use is rounded, and so is their sum.
            assert_agree(&MANY, &two[..1], &|x| add_relu(x[0], x[0]), &|x| {
                composed(&(x[0] * 2.0)?)
            });
            assert_agree(&MANY, &two, &|x| add_relu(&relu(x[0])?, &add_relu(x[0], x[1])?), &|x| {
                composed(&(composed(x[0])? + composed(&(x[0] + x[1])?)?)?)
            });
            // Both operands derive from one relu's output, and the gradient of this relu takes both gradients at once.
            let behind = |y: Tensor| add_relu(&y, &relu(&y)?);
            assert_agree(&MANY, &two, &|x| behind(add_relu(x[0], x[1])?), &|x| {
                let y = composed(&(x[0] + x[1])?)?;
                composed(&(&y + composed(&y)?)?)
            });
        }
    }

    #[test]
    fn gradients_are_added_at_once_to_the_last_bit_in_every_type() {
        // On the CPU bf16 is computed in f32.
        let types = EXACT.map(|(dtype, _)| dtype);
        let types =
            types.into_iter().filter(|&it| has(it) && (device().is_cuda() || it != DType::BF16));
        for (dtype, count) in types.flat_map(|dtype| COUNTS.map(|count| (dtype, count))) {
            let [y, a, b] = noises([&[count][..]; 3]).map(|tensor| there(&tensor, dtype));
            let apart = gradient(&y, &sum(&a, &b).unwrap()).unwrap();
            assert_close("gradient", &gradient_of_sum(&y, [&a, &b]).unwrap(), &apart, 0.0);
        }
    }
}

//! GELU: x times the probability that a normal number is below x (Hendrycks, Gimpel, "Gaussian error linear units", 2016).
//!
//! Backward computes the derivative from the input, so forward writes nothing but the result. Cost: one pass over memory each way,
//! and some twenty operations for each element, a division among them.

use candle_core::{DType, Result, Tensor};

use crate::backward::{record, record_copy};
use crate::copies::rounded;
use crate::kernels::element::{Element, cpu_memory, tensor, with_elements};
use crate::kernels::elementwise::map;
use crate::kernels::functions::{Functions as _, exp};

/// `x · Φ(x)`, exactly, of any shape: PyTorch's `gelu`. Fails when `x` is none of f32, f64 and bf16.
pub fn gelu(x: &Tensor) -> Result<Tensor> {
    recorded::<false>(x)
}

/// GELU by its approximation with a hyperbolic tangent, of any shape: PyTorch's `gelu(approximate="tanh")`. Fails like [`gelu`].
pub fn gelu_tanh(x: &Tensor) -> Result<Tensor> {
    recorded::<true>(x)
}

/// The factor of x³ in the approximation.
const CUBIC: f64 = 0.044_715;

fn recorded<const TANH: bool>(x: &Tensor) -> Result<Tensor> {
    if x.dtype() == DType::BF16 {
        return rounded("gelu", &[x], |of| recorded::<TANH>(&of[0]));
    }
    let x = &x.contiguous()?;
    let of_x = x.clone();
    if x.device().is_cuda() {
        let y = on_gpu::<TANH>(&x.detach())?.0;
        return record_copy("gelu", &y, [x], move |_, dy| {
            Ok([Some((dy * on_gpu::<TANH>(&of_x.detach())?.1)?)])
        });
    }
    let y = with_elements!("gelu", |x| cpu_memory(map(
        [x],
        #[inline(always)]
        |[x]| if TANH { by_tanh(x).0 } else { x * T::below(x) }
    )));
    record("gelu", y, x.shape(), [x], move |_, dy| {
        let x = &of_x;
        let dx = with_elements!("gelu", |x, dy| cpu_memory(map(
            [x, dy],
            #[inline(always)]
            |[x, dy]| dy * if TANH { by_tanh(x).1 } else { T::gelu_slope(x) }
        )));
        Ok([Some(tensor(dx, x.shape()))])
    })
}

/// Returns x · (1 + tanh u) / 2 for u = √(2 / π) · (x + [`CUBIC`] · x³), and its derivative. (1 + tanh u) / 2 is 1 / (1 + exp(−2 · u)).
#[inline(always)]
fn by_tanh<T: Element>(x: T) -> (T, T) {
    let double = T::FRAC_2_SQRT_PI() * T::SQRT_2();
    let [cubic, thrice] = [CUBIC, 3.0 * CUBIC].map(T::from_f64);
    let square = x * x;
    let below = T::one() / (T::one() + exp(-(double * (x + cubic * square * x))));
    let slope = double * (T::one() + thrice * square);
    (x * below, below + x * (below * (T::one() - below)) * slope)
}

/// Does the same on a GPU, by candle's operations. The gradients of candle's own GELUs have constants of seven digits.
fn on_gpu<const TANH: bool>(x: &Tensor) -> Result<(Tensor, Tensor)> {
    use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};
    let (square, double) = (x.sqr()?, FRAC_2_SQRT_PI * SQRT_2);
    let (below, rising) = if TANH {
        let tanh = ((x + ((&square * x)? * CUBIC)?)? * (double / 2.0))?.tanh()?;
        let slope = square.affine(3.0 * CUBIC * double, double)?;
        let steep = (tanh.sqr()?.affine(-0.25, 0.25)? * slope)?;
        (tanh.affine(0.5, 0.5)?, steep)
    } else {
        let bell = ((&square * -0.5)?.exp()? * (FRAC_2_SQRT_PI * FRAC_1_SQRT_2 / 2.0))?;
        ((x * FRAC_1_SQRT_2)?.erf()?.affine(0.5, 0.5)?, bell)
    };
    Ok(((x * &below)?, (below + (x * rising)?)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backward::is_recorded;
    use crate::tests::agreement::{FEW, assert_agree, noise, noises};

    #[test]
    fn both_are_their_formulas_in_every_type() {
        type OfOne = fn(&Tensor) -> Result<Tensor>;
        let formulas =
            [|x: &Tensor| Ok(on_gpu::<false>(x)?.0), |x: &Tensor| Ok(on_gpu::<true>(x)?.0)];
        for (ours, formula) in [gelu as OfOne, gelu_tanh].into_iter().zip(formulas) {
            // Numbers for one thread and for several.
            for shape in [&[1][..], &[5, 7], &[3, 5, 67], &[257, 131]] {
                let x = noises([shape]);
                assert_agree(&FEW, &x, &|x| ours(x[0]), &|x| formula(x[0]));
                let wide = [(&x[0] * 3.0).unwrap()];
                assert_agree(&FEW, &wide, &|x| ours(x[0]), &|x| formula(x[0]));
            }
            let ours = |x: &[&Tensor]| ours(&x[0].t()?);
            assert_agree(&FEW, &noises([&[70, 31]]), &ours, &|x| formula(&x[0].t()?));
        }
        let x = noise("x", &[3]);
        assert!(is_recorded(&gelu(&gelu_tanh(&x).unwrap()).unwrap()));
        let error = gelu(&x.to_dtype(DType::U8).unwrap()).unwrap_err().to_string();
        assert!(error.contains("gelu: works on f32 and f64, not on U8"), "{error}");
    }
}

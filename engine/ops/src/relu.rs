//! The relu, max(x, 0).
//!
//! Its derivative at exactly 0 is a choice. The derivative here is 0, the same as in PyTorch. The
//! choice matters: the black border of an image and a bias that starts at zero put many activations
//! at exactly 0.
//!
//! Cost: the speed of memory limits a relu. All threads together read and write every element once.
//! Convolutions and dense layers have variants with a relu, which save this pass.

use candle_core::{Result, Storage, Tensor};

use super::element::{Element, cpu_memory, for_dtype, lock};
use super::rounded::{is_rounded, rounded};
use super::zeros::{made, of_three, of_two};
use crate::backward::record;
#[cfg(feature = "cuda")]
use crate::gpu::{self, elementwise, on_gpu};

/// Computes max(x, 0) by element, for any shape.
///
/// # Errors
///
/// When `x` is none of f32, f64 and bf16.
pub fn relu(x: &Tensor) -> Result<Tensor> {
    if is_rounded(x) {
        return rounded("relu", [x], |[x]| relu(&x));
    }
    let x = x.contiguous()?;
    record("relu", forward(&x)?, x.shape(), [&x], |y, dy| Ok([Some(gradient(y, dy)?)]))
}

/// Computes max(x, 0) by element, for contiguous x.
fn forward(x: &Tensor) -> Result<Storage> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return on_gpu([x], |operands| elementwise("relu", operands)).map(Storage::Cuda);
    }
    for_dtype!(x.dtype(), "relu", T => {
        let locked = lock(&[x]);
        let [x] = locked.elements::<T, 1>()?;
        Ok(cpu_memory(made(x.len(), |places, y| {
            for (y, &x) in y.iter_mut().zip(&x[places]) {
                *y = rectified(x);
            }
        })))
    })
}

/// Returns the part of `grad` that passes the relu with output `y`, by element.
pub(super) fn gradient(y: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let grad = grad.contiguous()?;
    #[cfg(feature = "cuda")]
    if grad.device().is_cuda() {
        let dx = on_gpu([y, &grad], |operands| elementwise("relu_gradient", operands))?;
        return Ok(gpu::tensor(dx, y.shape()));
    }
    for_dtype!(y.dtype(), "relu", T => {
        let locked = lock(&[y, &grad]);
        let [of_y, grad] = locked.elements::<T, 2>()?;
        Tensor::from_vec(of_two(of_y, grad, passed), y.shape(), y.device())
    })
}

/// Does the same for the sum of two gradients. All tensors are contiguous, of the shape and type of
/// `y`.
pub(super) fn gradient_of_sum(y: &Tensor, [a, b]: [&Tensor; 2]) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if y.device().is_cuda() {
        let dx = on_gpu([y, a, b], |operands| elementwise("relu_gradient_of_sum", operands))?;
        return Ok(gpu::tensor(dx, y.shape()));
    }
    for_dtype!(y.dtype(), "relu", T => {
        let locked = lock(&[y, a, b]);
        let [of_y, a, b] = locked.elements::<T, 3>()?;
        let dx = of_three(of_y, a, b, |y, a, b| passed(y, a + b));
        Tensor::from_vec(dx, y.shape(), y.device())
    })
}

/// Returns max(x, 0) of one number, for every operation that ends in a relu.
///
/// The code compares with "not above zero", so a NaN stays a NaN and is found where it arises.
#[inline(always)]
pub(super) fn rectified<T: Element>(x: T) -> T {
    if x <= T::zero() { T::zero() } else { x }
}

/// Returns the gradient if it passes the relu with output `y`, else 0. At a NaN, the gradient
/// passes.
#[inline(always)]
pub(super) fn passed<T: Element>(y: T, grad: T) -> T {
    if y <= T::zero() { T::zero() } else { grad }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::tests::agreement::{assert_agree, noise};
    use crate::{add_bias_relu, add_relu, linear_relu};

    /// Selection gives derivative 0 at 0, but candle's own relu has 1.
    fn composed(x: &Tensor) -> Result<Tensor> {
        x.detach().le(0.0)?.where_cond(&x.zeros_like()?, x)
    }

    #[test]
    fn a_nan_stays_one_and_lets_its_gradient_pass() {
        let x = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, 1.0];
        let x = Var::from_tensor(&Tensor::new(&[x], &Device::Cpu).unwrap()).unwrap();
        let zeros = Var::zeros((1, 6), DType::F64, &Device::Cpu).unwrap();
        let zero = zeros.get(0).unwrap();
        let identity = Tensor::eye(1, DType::F64, &Device::Cpu).unwrap();
        let columns = x.t().unwrap();
        // The list has every operation that ends in a relu, each with this x as its only term.
        for y in [
            relu(&x).unwrap(),
            add_relu(&x, &zeros).unwrap(),
            add_bias_relu(&x, &zero).unwrap(),
            linear_relu(&columns, &identity, &zero.get(0).unwrap().reshape(1).unwrap()).unwrap(),
        ] {
            let gradients = (y.sum_all().unwrap() * 3.0).unwrap().backward().unwrap();
            let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f64>().unwrap();
            let y = values(&y);
            assert!(y[0].is_nan(), "{y:?}");
            assert_eq!(y[1..], [f64::INFINITY, 0.0, 0.0, 0.0, 1.0]);
            let dx = values(gradients.get(&x).unwrap());
            assert_eq!(dx, [3.0, 3.0, 0.0, 0.0, 0.0, 3.0]);
        }
    }

    #[test]
    fn composed_of_candles_operations_it_is_the_same() {
        let x = noise("x", &[3, 7]);
        // Rounding gives some zeros, where the derivative is a choice.
        x.set(&(x.as_detached_tensor() * 2.0).unwrap().round().unwrap()).unwrap();
        assert_agree(&[&x], || relu(&x), || composed(&x));
    }
}

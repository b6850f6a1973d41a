//! The sum of two tensors and its relu, as at the end of a shortcut.
//!
//! Two separate operations would write the sum and read it again. Forward and backward would each
//! make one more pass over memory.
//!
//! Cost: forward reads two elements and writes one. Backward costs the same for both inputs
//! together, because their gradients are the same tensor. At the start of the next shortcut two
//! gradients arrive, and the same pass adds them up.

use candle_core::{Result, Storage, Tensor, bail};

use super::element::{cpu_memory, for_dtype, lock};
use super::relu::{gradient, gradient_of_sum, rectified};
use super::rounded::{is_rounded, rounded};
use super::zeros::of_two;
use crate::backward::record_with_two;
#[cfg(feature = "cuda")]
use crate::gpu::{elementwise, on_gpu};

/// Computes max(x + y, 0) by element, for tensors of the same type and of the same shape, any
/// shape.
///
/// # Errors
///
/// When shapes or types differ, or are none of f32, f64 and bf16.
pub fn add_relu(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    if x.shape() != y.shape() || x.dtype() != y.dtype() {
        bail!(
            "add_relu: {:?} {:?} and {:?} {:?} cannot be added",
            x.dtype(),
            x.dims(),
            y.dtype(),
            y.dims()
        );
    }
    if is_rounded(x) {
        return rounded("add_relu", [x, y], |[x, y]| add_relu(&x, &y));
    }
    let (x, y) = (x.contiguous()?, y.contiguous()?);
    let sum = forward(&x, &y)?;
    let gradients = |sum: &Tensor, grad: &Tensor| {
        let gradient = gradient(sum, grad)?;
        Ok([Some(gradient.clone()), Some(gradient)])
    };
    record_with_two("add_relu", sum, x.shape(), [&x, &y], gradients, gradient_of_sum)
}

/// Computes max(x + y, 0) by element, for contiguous tensors.
fn forward(x: &Tensor, y: &Tensor) -> Result<Storage> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return on_gpu([x, y], |operands| elementwise("add_relu", operands)).map(Storage::Cuda);
    }
    for_dtype!(x.dtype(), "add_relu", T => {
        let locked = lock(&[x, y]);
        let [x, y] = locked.elements::<T, 2>()?;
        Ok(cpu_memory(of_two(x, y, |x, y| rectified(x + y))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relu;
    use crate::tests::agreement::{assert_agree, noise};

    #[test]
    fn together_they_are_what_they_are_apart() {
        let (x, y) = (noise("x", &[3, 7]), noise("y", &[3, 7]));
        // Rounding gives some sums of zero, where the derivative is a choice.
        for x in [&x, &y] {
            x.set(&x.as_detached_tensor().round().unwrap()).unwrap();
        }
        assert_agree(&[&x, &y], || add_relu(&x, &y), || relu(&(x.as_tensor() + y.as_tensor())?));
    }

    #[test]
    fn what_cannot_be_added_is_refused() {
        let error = add_relu(&noise("x", &[3, 7]), &noise("y", &[7])).unwrap_err().to_string();
        assert!(error.contains("F64 [3, 7] and F64 [7] cannot be added"), "{error}");
    }
}

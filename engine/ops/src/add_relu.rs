//! The sum of two tensors and its relu, as at the end of a shortcut.
//!
//! Two separate operations would write the sum and read it again. Forward and backward would each
//! make one more pass over memory.
//!
//! Cost: forward reads two elements and writes one. Backward costs the same for both inputs
//! together, because their gradients are the same tensor. At the start of the next shortcut two
//! gradients arrive, and the same pass adds them up.

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, WithDType, bail};

use super::element::{cpu_elements, for_dtype};
use super::relu::{gradient, gradient_of_sum, rectified};
use super::room::of_two;
use super::rounded::{is_rounded, rounded};
use crate::backward::apply2_by_two;
#[cfg(feature = "cuda")]
use {
    crate::gpu::{Operand, elementwise},
    candle_core::CudaStorage,
};

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
    apply2_by_two(&x.contiguous()?, &y.contiguous()?, AddRelu, gradient_of_sum)
}

struct AddRelu;

impl CustomOp2 for AddRelu {
    fn name(&self) -> &'static str {
        "add_relu"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        y: &CpuStorage,
        y_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        for_dtype!(x.dtype(), self.name(), T => {
            let (x, y) = (cpu_elements::<T>(x, x_layout)?, cpu_elements(y, y_layout)?);
            let sums = of_two(x, y, |x, y| rectified(x + y));
            Ok((T::to_cpu_storage_owned(sums), x_layout.shape().clone()))
        })
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        y: &CudaStorage,
        y_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let operands = [Operand::new(x, x_layout)?, Operand::new(y, y_layout)?];
        Ok((elementwise("add_relu", operands)?, x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        _x: &Tensor,
        _y: &Tensor,
        sum: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient(sum, grad)?;
        Ok((Some(gradient.clone()), Some(gradient)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agreement::{assert_agree, noise};
    use crate::relu;

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

//! Two-dimensional convolution with bias.
//!
//! One image at a time is unfolded into a matrix of patches (im2col), and the convolution of that
//! image is one product, weights × patches, whose result already lies as the output image does. The
//! gradients are products with the same matrix:
//!
//! | | product | shape |
//! | --- | --- | --- |
//! | output | W · P | \[O, K\]·\[K, N\] |
//! | gradient of W | G · Pᵀ, summed over images | \[O, N\]·\[N, K\] |
//! | gradient of the input | fold(Wᵀ · G) | \[K, O\]·\[O, N\] |
//! | gradient of the bias | row sums of G, summed over images | \[O\] |
//!
//! with P the unfolded image, G the output's gradient, O output channels, K places in a patch and N
//! output pixels. Unfolding again in the backward pass is cheaper than keeping P, which is K times the
//! size of an input plane.

mod backward;
mod forward;
mod geometry;
mod im2col;

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, WithDType, bail};

use super::element::{cpu_elements, elements, for_dtype};
use geometry::Geometry;

/// Convolves `x` with `weight` and adds `bias`.
///
/// `[B, C, H, W]`, `[O, C, KH, KW]`, `[O]` → `[B, O, H', W']` with
/// `H' = (H + 2·padding − KH) / stride + 1`, rounded down. As everywhere in this field, the kernel is
/// not flipped.
///
/// # Errors
///
/// When the shapes do not fit, or on a dtype other than f32 and f64; on a GPU also when the last patches
/// leave a number of rows over that is not the number of columns.
pub fn conv2d(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    stride: usize,
    padding: usize,
) -> Result<Tensor> {
    let geometry = Geometry::new(x, weight, bias, stride, padding)?;
    if x.device().is_cpu() {
        let (x, weight, bias) = (x.contiguous()?, weight.contiguous()?, bias.contiguous()?);
        x.apply_op3(&weight, &bias, Conv2d(geometry))
    } else {
        composed(x, weight, bias, stride, padding)
    }
}

fn composed(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    stride: usize,
    padding: usize,
) -> Result<Tensor> {
    // candle's backward works out from the rows alone how much of the input no patch reached.
    let beyond = |axis| Ok::<_, candle_core::Error>(x.dim(axis)? + 2 * padding - weight.dim(axis)?);
    if beyond(2)? % stride != beyond(3)? % stride {
        bail!(
            "conv2d: on this device as many rows as columns must be left over at stride {stride}"
        );
    }
    let bias = bias.reshape((1, bias.dim(0)?, 1, 1))?;
    x.conv2d(weight, padding, stride, 1, 1)?.broadcast_add(&bias)
}

struct Conv2d(Geometry);

impl CustomOp3 for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let g = self.0;
        for_dtype!(x.dtype(), self.name(), T => {
            let y = g.forward::<T>(
                cpu_elements(x, x_layout)?,
                cpu_elements(weight, weight_layout)?,
                cpu_elements(bias, bias_layout)?,
            );
            let shape = (g.batch, g.out_channels, g.out_h, g.out_w);
            Ok((T::to_cpu_storage_owned(y), shape.into()))
        })
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let grad = grad.contiguous()?;
        // The first layer's input is data: its gradient is a third of the work, and nobody wants it.
        let want_dx = x.track_op();
        let (x_storage, x_layout) = x.storage_and_layout();
        let (weight_storage, weight_layout) = weight.storage_and_layout();
        let (grad_storage, grad_layout) = grad.storage_and_layout();
        for_dtype!(x.dtype(), self.name(), T => {
            let gradients = self.0.backward::<T>(
                elements(&x_storage, x_layout)?,
                elements(&weight_storage, weight_layout)?,
                elements(&grad_storage, grad_layout)?,
                want_dx,
            );
            let device = x.device();
            let dx = match gradients.x {
                Some(dx) => Some(Tensor::from_vec(dx, x.shape(), device)?),
                None => None,
            };
            let dweight = Tensor::from_vec(gradients.weight, weight.shape(), device)?;
            let dbias = Tensor::from_vec(gradients.bias, bias.shape(), device)?;
            Ok((dx, Some(dweight), Some(dbias)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::agreement::{assert_agree, noise};

    #[test]
    fn a_gpu_is_asked_for_the_same() {
        for (stride, padding) in [(1, 0), (1, 1), (2, 1), (3, 0)] {
            let (x, bias) = (noise("x", &[3, 2, 9, 9]), noise("bias", &[4]));
            let weight = noise("weight", &[4, 2, 3, 3]);
            assert_agree(
                &[&x, &weight, &bias],
                || conv2d(&x, &weight, &bias, stride, padding),
                || composed(&x, &weight, &bias, stride, padding),
            );
        }
    }

    #[test]
    fn a_gpu_is_not_asked_for_what_it_gets_wrong() {
        let (x, weight) = (noise("x", &[1, 1, 8, 9]), noise("weight", &[1, 1, 3, 3]));
        let bias = noise("bias", &[1]);
        assert!(composed(&x, &weight, &bias, 2, 1).is_err());
        assert!(composed(&x, &weight, &bias, 1, 1).is_ok());
    }
}

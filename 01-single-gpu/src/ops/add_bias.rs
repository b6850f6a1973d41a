//! A number for each channel, and the rectifier behind it, added to what others have summed up.
//!
//! Convolutions and dense layers add their bias by themselves, as they write their output. Where an output is the sum
//! of several devices' terms, the bias has to wait for the sum.
//!
//! Cost: each element is read once and written once; backward likewise, or only read where there is no rectifier.

use candle_core::backend::BackendStorage as _;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp2, Layout, Result, Shape, Tensor, WithDType, bail,
};
use rayon::prelude::*;

use super::element::{Element, cpu_elements, elements, for_dtype};
use super::gpu::blocks::Channels;
use super::gpu::{self, Operand, on_gpu};
use super::relu::{self, rectified};
use super::rounded::{is_rounded, rounded};
use crate::backward::apply2;

/// x + b, channel by channel: `[B, C, …]`, `[C]` → `[B, C, …]`.
///
/// # Errors
///
/// When the shapes do not fit, or on a dtype other than f32, f64 and bf16.
pub fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    apply(x, bias, false)
}

/// [`add_bias`], then [`relu`](fn@crate::ops::relu), in one pass over memory.
///
/// # Errors
///
/// Those of [`add_bias`].
pub fn add_bias_relu(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    apply(x, bias, true)
}

fn apply(x: &Tensor, bias: &Tensor, with_relu: bool) -> Result<Tensor> {
    let [images, channels, plane @ ..] = x.dims() else {
        bail!("add_bias: a batch [B, C, …] was expected, got {:?}", x.dims());
    };
    if bias.dims() != [*channels] {
        bail!("add_bias: {channels} channels need a bias [{channels}], got {:?}", bias.dims());
    }
    if is_rounded(x) {
        return rounded("add_bias", [x, bias], |[x, bias]| apply(&x, &bias, with_relu));
    }
    let plane = plane.iter().product();
    let sizes = Channels { images: *images, channels: *channels, plane };
    apply2(&x.contiguous()?, &bias.contiguous()?, AddBias { sizes, with_relu })
}

/// One application.
struct AddBias {
    sizes: Channels,
    with_relu: bool,
}

impl AddBias {
    fn forward<T: Element>(&self, x: &[T], bias: &[T]) -> Vec<T> {
        let Channels { channels, plane, .. } = self.sizes;
        let (image, plane) = ((channels * plane).max(1), plane.max(1));
        let mut y = vec![T::zero(); x.len()];
        y.par_chunks_mut(image).zip(x.par_chunks(image)).for_each(|(y, x)| {
            let planes = y.chunks_exact_mut(plane).zip(x.chunks_exact(plane));
            for ((y, x), &bias) in planes.zip(bias) {
                for (y, &x) in y.iter_mut().zip(x) {
                    let sum = x + bias;
                    *y = if self.with_relu { rectified(sum) } else { sum };
                }
            }
        });
        y
    }

    /// Sums over images and planes, in f64 as on a GPU: in f32, thousands of terms would cost digits.
    fn bias_gradient<T: Element>(&self, grad: &[T]) -> Vec<T> {
        let Channels { channels, plane, .. } = self.sizes;
        let of_channel = |channel| {
            let planes = grad.chunks_exact(plane.max(1)).skip(channel).step_by(channels);
            T::from_f64(planes.flatten().map(|&grad| WithDType::to_f64(grad)).sum())
        };
        (0..channels).into_par_iter().map(of_channel).collect()
    }
}

impl CustomOp2 for AddBias {
    fn name(&self) -> &'static str {
        "add_bias"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        for_dtype!(x.dtype(), self.name(), T => {
            let y = self.forward::<T>(cpu_elements(x, x_layout)?, cpu_elements(bias, bias_layout)?);
            Ok((T::to_cpu_storage_owned(y), x_layout.shape().clone()))
        })
    }

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        bias: &CudaStorage,
        bias_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (gpu, bias) = (x.device(), Operand::new(bias, bias_layout)?);
        let mut y = x.to_dtype(x_layout, x.dtype())?;
        gpu::bias::add(gpu, &mut y, self.sizes, bias, self.with_relu)?;
        Ok((y, x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        bias: &Tensor,
        y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dx = if self.with_relu { relu::gradient(y, grad)? } else { grad.contiguous()? };
        let dbias = if dx.device().is_cuda() {
            let dbias = on_gpu([&dx], |gpu, [dx]| gpu::bias::gradient(gpu, self.sizes, dx))?;
            gpu::tensor(dbias, bias.shape())
        } else {
            let (storage, layout) = dx.storage_and_layout();
            for_dtype!(x.dtype(), self.name(), T => {
                let dbias = self.bias_gradient::<T>(elements(&storage, layout)?);
                Tensor::from_vec(dbias, bias.shape(), bias.device())
            })?
        };
        Ok((Some(dx), Some(dbias)))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::backward::is_remembered;
    use crate::ops::agreement::{assert_agree, assert_empty_batch_is_nothing, noise};
    use crate::ops::relu;

    #[test]
    fn composed_of_candles_operations_it_is_the_same() {
        let bias = noise("bias", &[3]);
        for shape in [&[5, 3][..], &[5, 3, 7], &[2, 3, 4, 5]] {
            let x = noise("x", shape);
            let sizes = [&[3], &vec![1; shape.len() - 2][..]].concat();
            let composed = || x.broadcast_add(&bias.reshape(sizes.as_slice())?);
            assert_agree(&[&x, &bias], || add_bias(&x, &bias), composed);
            assert_agree(&[&x, &bias], || add_bias_relu(&x, &bias), || relu(&composed()?));
            assert!(is_remembered(&add_bias(&x, &bias).unwrap()));
        }
        // A view that begins in the middle of its memory, and one that is turned.
        let x = noise("x", &[6, 3, 3]);
        let column = bias.reshape((3, 1)).unwrap();
        for view in [x.narrow(0, 2, 3).unwrap(), x.transpose(1, 2).unwrap()] {
            assert_agree(&[&x], || add_bias(&view, &bias), || view.broadcast_add(&column));
        }
    }

    #[test]
    fn a_gradient_in_f32_keeps_its_digits_over_many_terms() {
        let grad = Tensor::full(0.1f32, (1 << 16, 1, 16), &Device::Cpu).unwrap();
        let sizes = Channels { images: 1 << 16, channels: 1, plane: 16 };
        let grad = grad.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let sum = AddBias { sizes, with_relu: false }.bias_gradient(&grad)[0];
        assert_eq!(sum, (f64::from(0.1f32) * f64::from(1 << 20)) as f32);
    }

    #[test]
    fn an_empty_batch_has_gradients_of_zero() {
        let bias = noise("bias", &[3]);
        assert_empty_batch_is_nothing(&[3, 2], &[3, 2], &[&bias], |x| add_bias(x, &bias));
    }

    #[test]
    fn no_channels_and_no_pixels_are_nothing() {
        for (shape, channels) in [([2, 0, 4], 0), ([2, 4, 0], 4)] {
            let (x, bias) = (noise("x", &shape), noise("bias", &[channels]));
            let y = add_bias(&x, &bias).unwrap();
            assert_eq!(y.dims(), shape);
            let gradients = y.sum_all().unwrap().backward().unwrap();
            assert_eq!(
                gradients.get(&bias).unwrap().to_vec1::<f64>().unwrap(),
                vec![0.0; channels]
            );
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let refusal = |x: &[usize], bias: &[usize]| {
            add_bias(&noise("x", x), &noise("bias", bias)).unwrap_err().to_string()
        };
        let error = refusal(&[5, 3, 4], &[4]);
        assert!(error.starts_with("add_bias: 3 channels need a bias [3], got [4]"), "{error}");
        let error = refusal(&[3], &[3]);
        assert!(error.starts_with("add_bias: a batch [B, C, …] was expected, got [3]"), "{error}");
    }
}

//! Adds a bias for each channel to a tensor, with an optional relu after it.
//!
//! Convolutions and dense layers add their own bias. When an output is the sum of several devices' terms, this operation adds
//! the bias after the sum. Cost: each pass reads and writes each element once. After a relu, backward also reads the output.

use candle_core::{Result, Tensor, WithDType, bail};
use rayon::prelude::*;

use crate::backward::record;
use crate::copies::{is_rounded, rounded};
use crate::kernels::element::{Element, by_device, cpu_memory, tensor, with_elements};
use crate::kernels::gpu;
use crate::kernels::memory::zeros;
use crate::kernels::windows::Channels;
use crate::relu::{self, rectified};

/// Computes x + b by channel: `[B, C, …]`, `[C]` → `[B, C, …]`. Fails when the shapes do not fit, and on other dtypes.
pub fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    add(x, bias, false)
}

/// Computes [`add_bias`] and then [`relu`](fn@crate::relu), in one pass over memory.
pub fn add_bias_relu(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    add(x, bias, true)
}

fn add(x: &Tensor, bias: &Tensor, with_relu: bool) -> Result<Tensor> {
    let &[_, channels, ..] = x.dims() else {
        bail!("add_bias: a batch [B, C, …] was expected, got {:?}", x.dims());
    };
    if bias.dims() != [channels] {
        bail!("add_bias: {channels} channels need a bias [{channels}], got {:?}", bias.dims());
    }
    if is_rounded(x) {
        return rounded("add_bias", &[x, bias], |of| add(&of[0], &of[1], with_relu));
    }
    let (x, bias, sizes) = (&x.contiguous()?, &bias.contiguous()?, Channels::of(x.shape())?);
    let y = by_device!(
        "add_bias",
        |x, bias| gpu::add_bias(x, bias, with_relu)?,
        cpu_memory(sums(sizes, x, bias, with_relu))
    );
    record("add_bias", y, x.shape(), [x, bias], move |y, dy| backward(y, dy, with_relu))
}

/// Computes the gradients of the input and of the bias from the output and its gradient.
fn backward(y: &Tensor, grad: &Tensor, with_relu: bool) -> Result<[Option<Tensor>; 2]> {
    let grad = grad.contiguous()?;
    if grad.device().is_cuda() {
        let (dx, dbias) = gpu::bias_gradients(with_relu.then_some(y), &grad)?;
        return Ok([Some(dx), Some(dbias)]);
    }
    let sizes = Channels::of(y.shape())?;
    let dx = &if with_relu { relu::gradient(y, &grad)? } else { grad };
    let dbias = with_elements!("add_bias", |dx| cpu_memory(bias_gradient(sizes, dx)));
    Ok([Some(dx.clone()), Some(tensor(dbias, sizes.channels))])
}

fn sums<T: Element>(sizes: Channels, x: &[T], bias: &[T], with_relu: bool) -> Vec<T> {
    let (image, plane) = ((sizes.channels * sizes.plane).max(1), sizes.plane.max(1));
    let mut y = zeros(x.len());
    y.par_chunks_mut(image).zip(x.par_chunks(image)).for_each(|(y, x)| {
        let planes = y.chunks_exact_mut(plane).zip(x.chunks_exact(plane));
        for ((y, x), &bias) in planes.zip(bias) {
            for (y, &x) in y.iter_mut().zip(x) {
                let sum = x + bias;
                *y = if with_relu { rectified(sum) } else { sum };
            }
        }
    });
    y
}

/// Adds up the gradient over images and planes in f64: f32 would lose digits.
fn bias_gradient<T: Element>(sizes: Channels, grad: &[T]) -> Vec<T> {
    /// The least number of neighbouring elements of a task: a cache line in f32.
    const NUMBERS: usize = 16;
    let of_task = NUMBERS.div_ceil(sizes.plane.max(1));
    let mut sums = vec![0.0; sizes.channels];
    sums.par_chunks_mut(of_task).enumerate().for_each(|(task, sums)| {
        for image in 0..sizes.images {
            for (nth, sum) in sums.iter_mut().enumerate() {
                for &grad in &grad[sizes.plane(image, task * of_task + nth)] {
                    *sum += WithDType::to_f64(grad);
                }
            }
        }
    });
    sums.into_iter().map(T::from_f64).collect()
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::backward::{backward_from, is_recorded};
    use crate::relu;
    use crate::tests::agreement::{
        FEW, assert_agree, assert_empty_batch_is_nothing, has, noise, noises, there, whole,
    };

    /// Images for a GPU: one part and several, dense layers, fewer values than a block has threads.
    const IMAGES: [[usize; 3]; 5] =
        [[5, 3, 63], [70, 5, 1], [3, 2, 8331], [1, 300, 1], [1, 1, 33 * 8192 + 1]];

    #[test]
    fn it_is_its_formula_in_every_type() {
        let parts = |shape: [usize; 3]| Channels::of(&shape.as_slice().into()).unwrap().parts();
        assert_eq!(IMAGES.map(parts), [1, 1, 4, 1, 34]);
        let formula = |x: &Tensor, bias: &Tensor| {
            let sizes = [&[bias.elem_count()], &vec![1; x.rank() - 2][..]].concat();
            x.broadcast_add(&bias.reshape(sizes)?)
        };
        // Some shapes have more channels than one task.
        let shapes: [&[usize]; 6] =
            [&[5, 3], &[5, 37], &[5, 37, 7], &[2, 3, 4, 5], &[70, 31], &[3, 31, 9, 9]];
        for shape in shapes.into_iter().chain(IMAGES.iter().map(|shape| &shape[..])) {
            let inputs = noises([shape, &shape[1..2]]);
            for inputs in [inputs.to_vec(), whole(&inputs)] {
                assert_agree(&FEW, &inputs, &|t| add_bias(t[0], t[1]), &|t| formula(t[0], t[1]));
                assert_agree(&FEW, &inputs, &|t| add_bias_relu(t[0], t[1]), &|t| {
                    relu(&formula(t[0], t[1])?)
                });
            }
        }
        // The views begin in the middle of their memory, and one is transposed.
        let inputs = noises([&[6, 3, 3], &[2, 3]]);
        let agree = |view: &dyn Fn(&Tensor) -> Result<Tensor>| {
            let ours = |t: &[&Tensor]| add_bias(&view(t[0])?, &t[1].get(1)?);
            assert_agree(&FEW, &inputs, &ours, &|t| formula(&view(t[0])?, &t[1].get(1)?));
        };
        agree(&|x| x.narrow(0, 2, 3));
        agree(&|x| x.transpose(1, 2));
        assert!(is_recorded(&add_bias(&noise("x", &[5, 3]), &noise("bias", &[3])).unwrap()));
    }

    #[test]
    fn half_way_bf16_is_rounded_to_even_on_a_gpu_too() {
        if !has(DType::BF16) {
            return;
        }
        let numbers =
            |values: &[f64]| there(&Tensor::new(values, &Device::Cpu).unwrap(), DType::BF16);
        // 1 + 1/256 lies halfway between 1 and 1 + 2/256, and 1 + 3/256 halfway between 1 + 2/256 and
        // 1 + 4/256. bf16 rounds both to the even neighbour.
        let ones = numbers(&[1.0, 1.0]).reshape((1, 2)).unwrap();
        let y = add_bias(&ones, &numbers(&[1.0 / 256.0, 3.0 / 256.0])).unwrap();
        let y = y.to_dtype(DType::F64).unwrap().to_vec2::<f64>().unwrap();
        assert_eq!(y, [[1.0, 1.0 + 4.0 / 256.0]]);
    }

    #[test]
    fn a_gradient_in_f32_keeps_its_digits_over_many_terms() {
        let x = Tensor::zeros((1 << 16, 1, 16), DType::F32, &Device::Cpu).unwrap();
        let bias = Var::zeros(1, DType::F32, &Device::Cpu).unwrap();
        let upstream = (x.ones_like().unwrap() * 0.1).unwrap();
        let gradients = backward_from(&add_bias(&x, &bias).unwrap(), &upstream).unwrap();
        let sum = gradients.get(&bias).unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(sum, [(f64::from(0.1f32) * f64::from(1 << 20)) as f32]);
    }

    #[test]
    fn an_empty_batch_has_gradients_of_zero() {
        let bias = noise("bias", &[3]);
        for with_relu in [false, true] {
            let operation = |x: &Tensor| add(x, &bias, with_relu);
            assert_empty_batch_is_nothing(&[3, 2], &[3, 2], &[&bias], operation);
        }
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
        for (x, bias, complaint) in [
            (&[5, 3, 4][..], &[4], "add_bias: 3 channels need a bias [3], got [4]"),
            (&[3], &[3], "add_bias: a batch [B, C, …] was expected, got [3]"),
        ] {
            let error = add_bias(&noise("x", x), &noise("bias", bias)).unwrap_err().to_string();
            assert!(error.starts_with(complaint), "{error}");
        }
    }
}

//! Tests of each of our kernels at sizes that do not divide evenly, and at sizes at which the kernel takes another branch.

use candle_core::{DType, Device, Result, Tensor};
use itertools::Itertools as _;

use super::*;
use crate::gpu::Channels;
use crate::relu::{gradient, gradient_of_sum};
use crate::sum;

/// Types, each with the largest difference of a result from the result in f64 for the same inputs.
///
/// The differences are some units in the last place of a sum, and half a unit of bf16's eight
/// digits. The half unit counts twice where a gradient is rounded twice.
pub(super) const KERNELS: [(DType, f64); 3] =
    [(DType::F64, 1e-12), (DType::F32, 2e-6), (DType::BF16, 1.0 / 128.0)];

/// Types and bounds for kernels that round nothing.
const EXACT: [(DType, f64); 3] = [(DType::F64, 0.0), (DType::F32, 0.0), (DType::BF16, 0.0)];

/// Numbers of elements with whole vectors only, and with a partial vector.
const COUNTS: [usize; 2] = [5 * 68, 5 * 67];

/// Returns the types for which this GPU has kernels.
pub(super) fn types() -> impl Iterator<Item = DType> {
    KERNELS.into_iter().map(|(dtype, _)| dtype).filter(|&dtype| has(dtype))
}

/// Makes noise in numbers that a type represents.
pub(super) fn rounded_noise(name: &str, shape: &[usize], dtype: DType) -> Tensor {
    noise(name, shape).as_detached_tensor().to_dtype(dtype).unwrap()
}

#[test]
fn a_gpu_rectifies_to_the_last_bit() {
    for elements in COUNTS {
        // The input contains zeros, where the derivative is a choice.
        let x = (noise("x", &[elements]).as_detached_tensor() * 2.0).unwrap().round().unwrap();
        assert_same_of("relu", &EXACT, &[x], &|x| relu(x[0]));
    }
    // An aligned start, and a start one element later.
    for from in 0..=1 {
        let x = noises(&[&[69]]);
        assert_same_of("relu of a view", &EXACT, &x, &|x| relu(&x[0].narrow(0, from, 68)?));
    }
}

#[test]
fn a_gpu_adds_and_rectifies() {
    for elements in COUNTS {
        let inputs = noises(&[&[elements], &[elements]]);
        assert_same_of("add_relu", &KERNELS, &inputs, &|t| add_relu(t[0], t[1]));
    }
}

#[test]
fn a_gpu_adds_gradients_behind_a_relu_to_the_last_bit() {
    let Some(gpu) = gpu() else { return };
    for (dtype, elements) in types().cartesian_product(COUNTS) {
        let [y, a, b] = ["y", "a", "b"]
            .map(|name| rounded_noise(name, &[elements], dtype).to_device(&gpu).unwrap());
        let apart = gradient(&y, &sum(&a, &b).unwrap()).unwrap();
        let at_once = gradient_of_sum(&y, [&a, &b]).unwrap();
        assert_close("gradient_of_sum", &at_once, &apart.to_device(&Device::Cpu).unwrap(), 0.0);
    }
}

#[test]
fn a_gpu_adds_as_candle_does_to_the_last_bit() {
    let Some(gpu) = gpu() else { return };
    for (dtype, elements) in types().cartesian_product(COUNTS) {
        let [a, b] = ["a", "b"].map(|name| rounded_noise(name, &[elements], dtype));
        let [on_gpu_a, on_gpu_b] = [&a, &b].map(|tensor| tensor.to_device(&gpu).unwrap());
        let found = sum(&on_gpu_a, &on_gpu_b).unwrap();
        assert_eq!(found.dtype(), dtype);
        assert_close("sum", &found, &(a + b).unwrap(), 0.0);
    }
}

#[test]
fn a_gpu_copies_rows_to_columns() {
    for shape in [[10, 512], [512, 10], [1, 7], [33, 1]] {
        assert_same_of("transpose", &EXACT, &noises(&[&shape]), &|x| transpose(x[0]));
    }
}

#[test]
fn a_gpu_keeps_what_is_not_a_number() {
    let Some(gpu) = gpu() else { return };
    for (dtype, elements) in types().cartesian_product([2, 4]) {
        let x = Tensor::full(f64::NAN, elements, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let y = relu(&x.to_device(&gpu).unwrap()).unwrap().to_dtype(DType::F64).unwrap();
        let y = y.to_vec1::<f64>().unwrap();
        assert!(y.iter().all(|y| y.is_nan()), "{dtype:?}: {y:?}");
    }
}

#[test]
fn a_gpu_rounds_half_way_bf16_to_even() {
    let Some(gpu) = gpu() else { return };
    if !has(DType::BF16) {
        eprintln!("SKIPPED: this GPU has no bf16");
        return;
    }
    let numbers = |values: &[f64]| {
        let values = Tensor::new(values, &Device::Cpu).unwrap().to_dtype(DType::BF16).unwrap();
        values.to_device(&gpu).unwrap()
    };
    // 1 + 1/256 lies halfway between 1 and 1 + 2/256, and 1 + 3/256 halfway between 1 + 2/256 and 1
    // + 4/256. bf16 rounds both to the even neighbour.
    let ones = numbers(&[1.0, 1.0]).reshape((1, 2)).unwrap();
    let y = add_bias(&ones, &numbers(&[1.0 / 256.0, 3.0 / 256.0])).unwrap();
    let y = y.to_dtype(DType::F64).unwrap().to_vec2::<f64>().unwrap();
    assert_eq!(y, [[1.0, 1.0 + 4.0 / 256.0]]);
}

/// Images `[images, channels, plane]`: one part and several, dense layers, fewer values than a block has threads.
const IMAGES: [[usize; 3]; 5] =
    [[5, 3, 63], [70, 5, 1], [3, 2, 8331], [1, 300, 1], [1, 1, 33 * 8192 + 1]];

#[test]
fn a_gpu_adds_biases() {
    let parts = |shape: [usize; 3]| Channels::of(&shape.as_slice().into()).unwrap().parts();
    assert_eq!(IMAGES.map(parts), [1, 1, 4, 1, 34]);
    for shape in IMAGES {
        let inputs = noises(&[&shape, &shape[1..2]]);
        assert_same_of("add_bias", &KERNELS, &inputs, &|t| add_bias(t[0], t[1]));
        assert_same_of("add_bias_relu", &KERNELS, &inputs, &|t| add_bias_relu(t[0], t[1]));
    }
}

#[test]
fn a_gpu_pools_whole_planes() {
    let x = noises(&[&[3, 100, 4, 3]]);
    assert_same_of("global_avg_pool", &KERNELS, &x, &|x| global_avg_pool(x[0]));
}

/// Height, width, kernel, stride.
///
/// Some shapes leave rows and columns that are in no window, and some have windows that overlap,
/// windows with gaps between them, or more than one part.
const WINDOWS: [[usize; 4]; 6] =
    [[9, 9, 2, 2], [7, 5, 3, 3], [4, 6, 2, 2], [8, 7, 3, 2], [9, 8, 2, 3], [83, 79, 2, 2]];

#[test]
fn a_gpu_pools_windows() {
    for [height, width, kernel, stride] in WINDOWS {
        let x = noises(&[&[2, 3, height, width]]);
        assert_same_of("avg_pool2d", &KERNELS, &x, &|x| avg_pool2d(x[0], kernel, stride));
    }
}

#[cfg(feature = "cudnn")]
#[test]
fn a_gpu_pools_what_a_convolution_and_a_relu_leave() {
    use crate::avg_pool2d::Windows;
    use crate::conv2d::on_gpu::{bias_relu_pool, bias_relu_pool_gradient};
    use crate::gpu::{on_gpu, tensor};

    let Some(gpu) = gpu() else { return };
    // Windows that do not overlap.
    let windows = WINDOWS.into_iter().filter(|[_, _, kernel, stride]| kernel == stride);
    for ((dtype, bound), [height, width, kernel, _]) in
        KERNELS.into_iter().filter(|&(dtype, _)| has(dtype)).cartesian_product(windows)
    {
        let composed = |t: &[&Tensor]| {
            let sum = t[0].broadcast_add(&t[1].reshape((1, (), 1, 1))?)?;
            avg_pool2d(&relu(&sum)?, kernel, kernel)
        };
        let inputs = noises(&[&[2, 3, height, width], &[3]]);
        let expected = expected(&inputs, dtype, &composed);

        let there = |tensor: &Tensor| tensor.to_dtype(dtype).unwrap().to_device(&gpu).unwrap();
        let [z, bias] = [&inputs[0], &inputs[1]].map(there);
        let upstream = there(&noise("upstream", expected[0].dims()).as_detached_tensor());
        let sizes = Channels::of(z.shape()).unwrap();
        let windows = Windows::new(height, width, kernel, kernel).unwrap();
        let y = on_gpu([&z, &bias], |[z, bias]| bias_relu_pool(sizes, &windows, z, bias)).unwrap();
        let (dz, dbias) = on_gpu([&z, &bias, &upstream], |[z, bias, upstream]| {
            bias_relu_pool_gradient(sizes, &windows, z, bias, upstream)
        })
        .unwrap();
        let found = [(y, expected[0].shape()), (dz, z.shape()), (dbias, bias.shape())];
        let found = found.map(|(found, shape)| tensor(found, shape));
        assert_outcome("bias_relu_pool", (dtype, bound), &found, &expected);
    }
}

#[test]
fn a_gpu_takes_losses() {
    let labels: Vec<u32> = (0..300).map(|row| row * 7 % 10).collect();
    let labels = |device: &Device| Tensor::new(labels.as_slice(), device);
    assert_same("cross_entropy", WIDE, &[&[300, 10]], &|logits| {
        cross_entropy(logits[0], &labels(logits[0].device())?)
    });
    let Some(gpu) = gpu() else { return };
    let count = |device: &Device| {
        let logits = noise("logits", &[300, 10]).as_detached_tensor().to_device(device)?;
        let loss = Tensor::new(0.25, device)?;
        loss_and_correct(&loss, &logits, &labels(device)?)?.to_vec1::<f64>()
    };
    assert_eq!(count(&gpu).unwrap(), count(&Device::Cpu).unwrap());
}

#[test]
fn a_gpu_takes_losses_of_logits_whose_exponentials_overflow() {
    for [rows, classes] in [[5, 7], [300, 10]] {
        let logits = (noise("logits", &[rows, classes]).as_detached_tensor() * 100.0).unwrap();
        let labels: Vec<u32> = (0..).map(|row: u32| row * 3 % 7).take(rows).collect();
        assert_same_of("cross_entropy", &KERNELS[..2], &[logits], &|logits| {
            cross_entropy(logits[0], &Tensor::new(labels.as_slice(), logits[0].device())?)
        });
    }
}

#[test]
fn a_gpu_takes_no_number_for_the_loss_of_a_label_that_is_no_class() {
    let Some(gpu) = gpu() else { return };
    let logits = rounded_noise("logits", &[3, 4], DType::F32).to_device(&gpu).unwrap();
    let loss = cross_entropy(&logits, &Tensor::new(&[1u32, 4, 0], &gpu).unwrap()).unwrap();
    assert!(loss.to_scalar::<f32>().unwrap().is_nan());
}

#[test]
fn a_gpu_takes_the_first_of_equal_logits_for_the_answer() {
    let Some(gpu) = gpu() else { return };
    for dtype in types() {
        let there = |tensor: Result<Tensor>| {
            tensor.unwrap().to_dtype(dtype).unwrap().to_device(&gpu).unwrap()
        };
        // One row has two largest logits. In the last two rows a NaN counts as the largest.
        const NAN: f64 = f64::NAN;
        let logits = [
            [0.5, 2.0, -1.0],
            [0.0, 1.0, 3.0],
            [4.0, 1.0, 3.0],
            [2.0, 1.0, 2.0],
            [1.0, NAN, f64::INFINITY],
            [NAN, 1.0, NAN],
        ];
        let logits = there(Tensor::new(&logits, &Device::Cpu));
        let loss = there(Tensor::new(0.75, &Device::Cpu));
        let all =
            [([1u32, 2, 0, 0, 1, 0], 6.0), ([0, 2, 0, 2, 2, 0], 3.0), ([2, 0, 1, 1, 0, 2], 0.0)];
        for (labels, right) in all {
            let labels = Tensor::new(&labels, &gpu).unwrap();
            let found = loss_and_correct(&loss, &logits, &labels).unwrap();
            assert_eq!(found.to_vec1::<f64>().unwrap(), [0.75, right]);
        }
    }
}

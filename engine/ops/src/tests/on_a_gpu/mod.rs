//! Tests that compare every operation on a GPU with the operation on the CPU in f64. If there is no
//! GPU, the tests are skipped and print a message.

mod kernels;
mod launches;
mod norms;
mod streams;
mod updates;

use candle_core::{DType, Device, Result, Tensor, Var};

use crate::backward::backward_from;
use crate::difference::relative_difference;
use crate::element::computed_in;
use crate::tests::agreement::noise;
use crate::{
    add_bias, add_bias_relu, add_relu, avg_pool2d, batch_norm, batch_norm_with, cast, conv2d,
    conv2d_relu_pool, cross_entropy, flatten, global_avg_pool, linear, linear_relu,
    loss_and_correct, relu, transpose,
};
use devices::{ComputeDevice, DeviceKind, DevicePlan};

/// Types, each with the largest difference of a result from the result in f64.
///
/// Products of 800 terms lose some digits of f32. bf16 is rounded at every write: forward, and at each operation backward.
const TYPES: [(DType, f64); 3] =
    [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::BF16, 1.0 / 64.0)];

/// The types for operations that are not computed in bf16.
const WIDE: &[(DType, f64)] = TYPES.split_at(2).0;

/// The types and bounds for convolutions. cuDNN may choose Winograd's or Fourier transforms, which cost f32 a digit more.
const OF_CONVOLUTIONS: [(DType, f64); 3] = [TYPES[0], (DType::F32, 1e-4), TYPES[2]];

/// Returns whether this GPU has kernels for a type: bf16 begins with compute capability 8.0.
pub(crate) fn has(dtype: DType) -> bool {
    let plan = DevicePlan::new(DeviceKind::Cuda, 1, None).unwrap();
    let capability = plan.slots()[0].compute_capability().unwrap();
    dtype != DType::BF16 || capability.is_some_and(|capability| capability >= (8, 0))
}

pub(crate) fn device() -> Option<ComputeDevice> {
    match DevicePlan::new(DeviceKind::Cuda, 1, None) {
        Ok(plan) => Some(plan.slots()[0].open().unwrap()),
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

fn gpu() -> Option<Device> {
    device().map(|device| device.tensors().clone())
}

/// Computes the value and the gradients of an operation. The incoming gradient is noise in numbers
/// that type `of` represents.
fn outcome(
    device: &Device,
    dtype: DType,
    of: DType,
    inputs: &[Tensor],
    operation: Operation<'_>,
) -> Result<Vec<Tensor>> {
    let there = |tensor: &Tensor| Var::from_tensor(&tensor.to_dtype(dtype)?.to_device(device)?);
    let inputs: Vec<Var> = inputs.iter().map(there).collect::<Result<_>>()?;
    let y = operation(&inputs.iter().map(Var::as_tensor).collect::<Vec<_>>())?;
    let upstream = noise("upstream", y.dims()).as_detached_tensor();
    let upstream = upstream.to_dtype(of)?.to_dtype(dtype)?.to_device(device)?;
    let found = backward_from(&y, &upstream)?;
    let gradients = inputs.iter().filter_map(|input| found.get(input).cloned());
    Ok(std::iter::once(y.clone()).chain(gradients).collect())
}

type Operation<'a> = &'a dyn Fn(&[&Tensor]) -> Result<Tensor>;

fn noises(shapes: &[&[usize]]) -> Vec<Tensor> {
    let names = ["x", "weight", "bias"].iter().zip(shapes);
    names.map(|(name, shape)| noise(name, shape).as_detached_tensor()).collect()
}

/// Asserts that GPU and CPU agree on an operation, for noise of these shapes in numbers that every type represents.
fn assert_same(name: &str, types: &[(DType, f64)], shapes: &[&[usize]], operation: Operation<'_>) {
    let Some(gpu) = gpu() else { return };
    let expected = expected(&noises(shapes), DType::BF16, operation);
    for &(dtype, bound) in types.iter().filter(|&&(dtype, _)| has(dtype)) {
        let inputs = rounded(&noises(shapes), DType::BF16);
        let found = outcome(&gpu, dtype, DType::BF16, &inputs, operation).unwrap();
        assert_outcome(&format!("{name} {shapes:?}"), (dtype, bound), &found, &expected);
    }
}

/// Asserts that GPU and CPU agree on an operation, for these inputs after they are rounded to each type.
fn assert_same_of(name: &str, types: &[(DType, f64)], inputs: &[Tensor], operation: Operation<'_>) {
    let Some(gpu) = gpu() else { return };
    for &(dtype, bound) in types.iter().filter(|&&(dtype, _)| has(dtype)) {
        let expected = expected(inputs, dtype, operation);
        let found = outcome(&gpu, dtype, dtype, inputs, operation).unwrap();
        assert_outcome(name, (dtype, bound), &found, &expected);
    }
}

fn rounded(tensors: &[Tensor], dtype: DType) -> Vec<Tensor> {
    tensors.iter().map(|tensor| tensor.to_dtype(dtype).unwrap()).collect()
}

/// Computes value and gradients on the CPU in f64, for inputs that are rounded first.
fn expected(inputs: &[Tensor], of: DType, operation: Operation<'_>) -> Vec<Tensor> {
    let inputs = rounded(inputs, of);
    let expected = outcome(&Device::Cpu, DType::F64, of, &inputs, operation).unwrap();
    assert_eq!(expected.len(), inputs.len() + 1);
    expected
}

#[track_caller]
fn assert_outcome(name: &str, (dtype, bound): (DType, f64), found: &[Tensor], expected: &[Tensor]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (position, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.dtype(), dtype, "{name}");
        assert_close(&format!("{name} {dtype:?}, {position}"), found, expected, bound);
    }
}

#[track_caller]
fn assert_close(name: &str, found: &Tensor, expected: &Tensor, bound: f64) {
    let found = found.to_dtype(DType::F64).unwrap().to_device(&Device::Cpu).unwrap();
    let error = relative_difference(&found, &expected.to_dtype(DType::F64).unwrap()).unwrap();
    // A NaN fails this comparison.
    assert!(error <= bound, "{name}: {error:.1e} is above {bound:.1e}");
}

#[test]
fn a_gpu_convolves() {
    for (x, weight, stride, padding) in [
        ([3, 1, 28, 28], [20, 1, 3, 3], 1, 0),
        ([5, 20, 13, 13], [50, 20, 5, 5], 1, 0),
        ([2, 16, 14, 14], [32, 16, 3, 3], 2, 1),
        ([2, 16, 14, 14], [32, 16, 1, 1], 2, 0),
        ([3, 7, 9, 8], [5, 7, 3, 2], 1, 1),
    ] {
        let bias = [weight[0]];
        assert_same("conv2d", &OF_CONVOLUTIONS, &[&x, &weight, &bias], &|inputs| {
            conv2d(inputs[0], inputs[1], Some(inputs[2]), stride, padding)
        });
        assert_same("conv2d without a bias", &OF_CONVOLUTIONS, &[&x, &weight], &|inputs| {
            conv2d(inputs[0], inputs[1], None, stride, padding)
        });
        if (stride, padding) == (1, 0) {
            // bf16 may round a sum to the other side of relu's kink, and this changes the gradient.
            assert_same(
                "conv2d_relu_pool",
                &OF_CONVOLUTIONS[..2],
                &[&x, &weight, &bias],
                &|inputs| conv2d_relu_pool(inputs[0], inputs[1], inputs[2], 2),
            );
        }
    }
}

#[test]
fn a_gpu_pools_and_rectifies() {
    for (kernel, stride) in [(2, 2), (3, 2), (2, 3)] {
        assert_same("avg_pool2d", &TYPES, &[&[3, 5, 9, 9]], &|x| avg_pool2d(x[0], kernel, stride));
    }
    // A partial vector at the end, whole vectors, and whole vectors with an unaligned start.
    for (elements, from) in [(2170, 0), (2240, 0), (2240, 1)] {
        let shape: &[usize] = &[elements + from];
        let view = |x: &Tensor| x.narrow(0, from, elements);
        assert_same("relu", &TYPES, &[shape], &|x| relu(&view(x[0])?));
        assert_same("add_relu", &TYPES, &[shape, shape], &|t| {
            add_relu(&view(t[0])?, &t[1].narrow(0, 0, elements)?)
        });
    }
    assert_same("relu of a view", &TYPES, &[&[70, 31]], &|x| relu(&x[0].t()?));
    for shape in [&[70, 31][..], &[3, 31, 9, 9]] {
        let shapes = [shape, &[31]];
        assert_same("add_bias", &TYPES, &shapes, &|t| add_bias(t[0], t[1]));
        assert_same("add_bias_relu", WIDE, &shapes, &|t| add_bias_relu(t[0], t[1]));
    }
    assert_same("add_bias to a view", &TYPES, &[&[70, 31], &[31]], &|t| {
        add_bias(&t[0].narrow(0, 3, 60)?, t[1])
    });
    assert_same("global_avg_pool", &TYPES, &[&[3, 5, 4, 4]], &|x| global_avg_pool(x[0]));
}

#[test]
fn a_gpu_adds_gradients_that_meet() {
    for shape in [&[70, 31][..], &[3, 31, 4, 4]] {
        // The sum is 2 · x: the gradient of each use is rounded, and so is their sum.
        assert_same("sum", &TYPES, &[shape], &|x| add_relu(x[0], x[0]));
        assert_same("sum", &TYPES, &[shape, shape], &|x| {
            add_relu(&relu(x[0])?, &add_relu(x[0], x[1])?)
        });
        // Both operands derive from one relu's output, and the gradient of this relu takes both
        // gradients at once.
        assert_same("sum behind a relu", &TYPES, &[shape, shape], &|x| {
            let y = add_relu(x[0], x[1])?;
            add_relu(&y, &relu(&y)?)
        });
    }
}

#[test]
fn a_gpu_copies() {
    assert_same("flatten", &TYPES, &[&[3, 5, 4, 4]], &|x| flatten(x[0]));
    assert_same("transpose", &TYPES, &[&[70, 31]], &|x| transpose(x[0]));
    for to in [DType::F32, DType::F64] {
        assert_same("cast", &TYPES, &[&[70, 31]], &|x| cast(&cast(x[0], to)?, x[0].dtype()));
    }
}

#[test]
fn a_gpu_has_dense_layers() {
    for shapes in [[[70, 800], [800, 128]], [[5, 3], [3, 7]]] {
        let [x, weight] = &shapes;
        let shapes: [&[usize]; 3] = [x, weight, &weight[1..]];
        assert_same("linear", &TYPES, &shapes, &|t| linear(t[0], t[1], t[2]));
        assert_same("linear_relu", WIDE, &shapes, &|t| linear_relu(t[0], t[1], t[2]));
    }
}

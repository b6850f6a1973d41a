//! Tests of cuDNN's descriptors and choices without a GPU. On a GPU the tests also compare all
//! three products with the formula.

mod choice;

use candle_core::cuda_backend::cudarc::cudnn::sys::cudnnMathType_t as Math;
use candle_core::{DType, Device, Storage, Tensor};

use super::calls::counts;
use super::*;
use crate::conv2d::tests::formula::{Operands, geometry};
use crate::kernels::element::tensor;
use crate::kernels::gpu::on_gpu;
use crate::tests::agreement::{gpu as device, has};

fn product_of(pass: Pass, dtype: DType, math: Math) -> Product {
    sized_product([2, 3, 8, 7, 4, 3, 2, 2, 1], pass, dtype, math)
}

fn sized_product(sizes: [usize; 9], pass: Pass, dtype: DType, math: Math) -> Product {
    Product { geometry: geometry(sizes), dtype, pass, math }
}

#[test]
fn sizes_beyond_an_int_are_refused() {
    assert_eq!(counts([0, 5, i32::MAX as usize]).unwrap(), [0, 5, i32::MAX]);
    let error = counts([1, i32::MAX as usize + 1]).unwrap_err().to_string();
    assert!(error.contains("a size of 2147483648, and it counts to 2147483647 only"), "{error}");
}

/// cuDNN's default math does not use tensor cores for 16 bits, and uses them for f32.
#[test]
fn tensor_cores_are_asked_for_by_name() {
    assert_eq!(math(DType::BF16), Math::CUDNN_TENSOR_OP_MATH);
    assert_eq!(math(DType::F32), Math::CUDNN_FMA_MATH);
    assert_eq!(math(DType::F64), Math::CUDNN_DEFAULT_MATH);
}

#[test]
fn a_product_tells_its_lengths_and_its_sizes() {
    let product = |pass| product_of(pass, DType::F32, Math::CUDNN_FMA_MATH);
    let (x, weight, y) = (2 * 3 * 8 * 7, 4 * 3 * 3 * 2, 2 * 4 * 4 * 4);
    assert_eq!(product(Pass::Output).lengths(), ([x, weight], y));
    assert_eq!(product(Pass::InputGradient).lengths(), ([weight, y], x));
    assert_eq!(product(Pass::WeightGradient).lengths(), ([x, y], weight));
    assert_eq!(
        product(Pass::Output).to_string(),
        "the output of a convolution in f32 of [2, 3, 8, 7] with [4, 3, 3, 2], stride 2, padding 1"
    );
}

/// Descriptors are host memory: cuDNN makes them, and refuses them, without a GPU.
#[test]
fn descriptors_are_of_sizes_that_cudnn_takes() {
    let made = |sizes| Descriptors::new(&geometry(sizes), DType::BF16).map(|_| ());
    made([2, 3, 8, 7, 4, 3, 2, 2, 1]).unwrap();
    let error = made([1, 3, 1 << 16, 1 << 16, 4, 3, 3, 1, 1]).unwrap_err().to_string();
    assert!(error.contains("[1, 3, 65536, 65536]"), "{error}");
    assert!(error.contains("CUDNN_STATUS"), "{error}");
}

fn upload(device: &Device, dtype: DType, values: &[f64]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap().to_dtype(dtype).unwrap().to_device(device).unwrap()
}

fn products(
    device: &Device,
    dtype: DType,
    g: &Geometry,
    operands: [&[f64]; 3],
) -> Result<[Vec<f64>; 3]> {
    let [x, weight, grad] = operands.map(|values| upload(device, dtype, values));
    let product = |pass, operands: [&Tensor; 2]| {
        let result = on_gpu(&operands, |of| product(g, pass, [of[0], of[1]]))?;
        let (_, len) = Product { geometry: *g, dtype, pass, math: math(dtype) }.lengths();
        tensor(Storage::Cuda(result), len).to_dtype(DType::F64)?.to_vec1()
    };
    Ok([
        product(Pass::Output, [&x, &weight])?,
        product(Pass::InputGradient, [&weight, &grad])?,
        product(Pass::WeightGradient, [&x, &grad])?,
    ])
}

/// batch, in, height, width, out, kernel height, kernel width, stride, padding.
///
/// The shapes are one pixel, then LeNet's and ResNet's layers in small. One shape leaves different
/// numbers of rows and columns over. The sums of some shapes need more than one block. The last two
/// shapes have so many channels that Winograd's and Fourier's transforms pay.
const SHAPES: [[usize; 9]; 8] = [
    [1, 1, 1, 1, 1, 1, 1, 1, 0],
    [3, 1, 28, 28, 6, 5, 5, 1, 2],
    [2, 6, 14, 14, 16, 5, 5, 1, 0],
    [5, 8, 9, 7, 16, 3, 3, 1, 1],
    [2, 3, 8, 9, 5, 3, 3, 2, 0],
    [4, 16, 8, 8, 32, 1, 1, 2, 0],
    [33, 64, 8, 8, 64, 3, 3, 1, 1],
    [2, 64, 14, 14, 64, 3, 3, 1, 1],
];

/// Compares the products with the formula, and asserts that a second run gives the same result.
///
/// The largest error must stay below `bound` of the largest magnitude. A magnitude is the sum of absolute values that
/// belongs to an entry. The argument of `bound` is the number of terms in the longest sum.
fn assert_as_the_formula(dtype: DType, bound: impl Fn(usize) -> f64) {
    let Some(device) = device() else { return };
    let device = device.tensors();
    let rounded = |values: Vec<f64>| -> Vec<f64> {
        let values = Tensor::new(values, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        values.to_dtype(DType::F64).unwrap().to_vec1().unwrap()
    };
    let magnitudes = |values: &[f64]| values.iter().map(|value| value.abs()).collect();
    let largest = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    for sizes in SHAPES {
        let g = geometry(sizes);
        let Operands { x, weight, grad } = Operands::new(&g);
        let (x, weight, grad) = (rounded(x), rounded(weight), rounded(grad));
        let found = products(device, dtype, &g, [&x, &weight, &grad]).unwrap();
        let again = products(device, dtype, &g, [&x, &weight, &grad]).unwrap();
        assert!(found == again, "{g:?} in {dtype:?}: other bits the second time");
        let operands =
            Operands { x: magnitudes(&x), weight: magnitudes(&weight), grad: magnitudes(&grad) };
        let magnitude = operands.by_the_formula(&g);
        let truth = Operands { x, weight, grad }.by_the_formula(&g);
        let cases = [
            ("output", &truth.y, &magnitude.y, g.patch()),
            ("input", &truth.dx, &magnitude.dx, g.out_channels * g.kernel_h * g.kernel_w),
            ("weight", &truth.dweight, &magnitude.dweight, g.batch * g.pixels()),
        ];
        for (found, (name, truth, magnitude, terms)) in found.iter().zip(cases) {
            assert_eq!(found.len(), truth.len(), "{name}, {g:?}");
            let errors: Vec<f64> = found.iter().zip(truth).map(|(a, b)| (a - b).abs()).collect();
            // A NaN must not pass as a small error.
            assert!(found.iter().all(|value| value.is_finite()), "{name}, {g:?}");
            let error = largest(&errors) / largest(magnitude);
            let bound = bound(terms);
            assert!(error <= bound, "{name}, {g:?} in {dtype:?}: {error:.1e} is over {bound:.1e}");
        }
    }
}

#[test]
fn in_f64_a_gpu_computes_the_formula() {
    assert_as_the_formula(DType::F64, |_| 1e-12);
}

/// A sum of n products in f32 errs by at most n·2⁻²⁴ of its magnitude, in any order.
///
/// An algorithm with Winograd's or Fourier transforms errs by more, because its intermediate numbers are larger:
/// `winograd::rounding` has measured up to 25 times as much. In long sums errors cancel. Sums of numbers of both signs err
/// by a few 2⁻²⁴ at any length, so n counts up to 8, and the bound is 1.2e-5 at the most. TF32 loses half of 2⁻¹⁰ of each
/// operand. Its error in these sums is 2.7e-5 in the longest and more in all others.
#[test]
fn in_f32_a_gpu_is_as_near_as_f32() {
    assert_as_the_formula(DType::F32, |terms| 25.0 * terms.min(8) as f64 * 2f64.powi(-24));
}

/// The operands are numbers of bf16. Their products are exact in f32, the type of the sums.
///
/// The result is rounded to eight bits, by up to 2⁻⁸. The additions cost less than the same again,
/// even if each step cuts bits off.
#[test]
fn in_bf16_a_gpu_rounds_what_it_added_up() {
    if device().is_none() {
        return;
    }
    if !has(DType::BF16) {
        eprintln!("SKIPPED: this GPU has no bf16");
        return;
    }
    assert_as_the_formula(DType::BF16, |_| 2.0 * 2f64.powi(-8));
}

#[test]
fn a_gpu_is_not_asked_for_the_impossible() {
    let Some(device) = device() else { return };
    let device = device.tensors();
    let error = |g: &Geometry, operands: [&[f64]; 3]| {
        products(device, DType::F32, g, operands).unwrap_err().to_string()
    };
    let g = geometry([2, 1, 3, 3, 1, 2, 2, 1, 0]);
    let message = error(&g, [&[1.0; 17], &[1.0; 4], &[1.0; 8]]);
    assert!(message.contains("takes [18, 4] elements, not [17, 4]"), "{message}");
}

/// An empty batch has nothing to add up.
#[test]
fn a_gpu_has_zeros_for_the_gradient_of_no_images() {
    let Some(device) = device() else { return };
    let device = device.tensors();
    let g = geometry([0, 1, 3, 3, 2, 2, 2, 1, 0]);
    let (some, weight) =
        (upload(device, DType::F32, &[1.0]), upload(device, DType::F32, &[1.0; 8]));
    let product = |pass, weight| {
        on_gpu(&[&some, weight], |of| {
            let none = Operand { elements: 0, ..of[0] };
            product(&g, pass, [none, if pass == Pass::Output { of[1] } else { none }])
        })
    };
    let gradient = tensor(Storage::Cuda(product(Pass::WeightGradient, &weight).unwrap()), 8);
    assert_eq!(gradient.to_vec1::<f32>().unwrap(), [0.0; 8]);
    let message = product(Pass::Output, &weight).err().unwrap().to_string();
    assert!(message.contains("has no images"), "{message}");
}

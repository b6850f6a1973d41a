//! The device of the tests, and comparisons of operations with their formulas.

use candle_core::{DType, Device, Result, Tensor, Var};
use devices::{ComputeDevice, DeviceKind, DevicePlan};
use harness::random;
use rand_distr::{Distribution as _, StandardNormal};

use crate::backward::backward_from;
use crate::difference::relative_difference;

/// The numbers that are not finite.
pub(crate) const NOT_FINITE: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

/// Types of elements, each with the largest difference of a result from the formula in f64, relative to the largest entry.
pub(crate) type Bounds = [(DType, f64)];

/// Bounds of operations that round nothing.
pub(crate) const EXACT: [(DType, f64); 3] =
    [(DType::F64, 0.0), (DType::F32, 0.0), (DType::BF16, 0.0)];

/// Bounds of sums of few terms: some units in the last place, and half a unit of bf16's eight digits. The half unit counts
/// twice where a gradient is rounded twice.
pub(crate) const FEW: [(DType, f64); 3] =
    [(DType::F64, 1e-12), (DType::F32, 2e-6), (DType::BF16, 1.0 / 128.0)];

/// Bounds of products of up to 800 terms. bf16 is rounded at every write: forward, and at each operation backward.
pub(crate) const MANY: [(DType, f64); 3] =
    [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::BF16, 1.0 / 64.0)];

/// Opens the first GPU. Returns `None` and says so if there is none.
pub(crate) fn gpu() -> Option<ComputeDevice> {
    match DevicePlan::new(DeviceKind::Cuda, 1, None) {
        Ok(plan) => Some(plan.slots()[0].open().unwrap()),
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

/// Returns the device of this thread's tests: a GPU if `TEST_DEVICE` is `cuda`, and otherwise the CPU.
pub(crate) fn device() -> Device {
    thread_local! {
        static DEVICE: Device = match std::env::var("TEST_DEVICE") {
            Ok(name) if name == "cuda" => gpu().expect("a GPU").tensors().clone(),
            _ => Device::Cpu,
        };
    }
    DEVICE.with(Device::clone)
}

/// Whether the device computes in a type: bf16 begins with GPUs of compute capability 8.0.
pub(crate) fn has(dtype: DType) -> bool {
    let capability = || {
        let plan = DevicePlan::new(DeviceKind::Cuda, 1, None).unwrap();
        plan.slots()[0].compute_capability().unwrap()
    };
    let has = dtype != DType::BF16 || device().is_cpu() || capability() >= Some((8, 0));
    if !has {
        eprintln!("SKIPPED: this GPU has no bf16");
    }
    has
}

/// Returns a variable of noise from N(0, 1) in f64. The same name gives the same noise.
pub(crate) fn noise(name: &str, shape: &[usize]) -> Var {
    let mut generator = random::generator(7, &format!("weights/{name}"));
    let count = shape.iter().product();
    let values: Vec<f64> = StandardNormal.sample_iter(&mut generator).take(count).collect();
    Var::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// Returns a variable of noise, rounded to a type.
pub(crate) fn variable(name: &str, shape: &[usize], dtype: DType) -> Var {
    Var::from_tensor(&noise(name, shape).to_dtype(dtype).unwrap()).unwrap()
}

/// Returns the numbers of a tensor of any type and device. The conversion to f64 is exact.
pub(crate) fn numbers(tensor: &Tensor) -> Vec<f64> {
    let tensor = tensor.to_device(&Device::Cpu).unwrap().to_dtype(DType::F64).unwrap();
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Returns the bits of the numbers.
pub(crate) fn bits(tensor: &Tensor) -> Vec<u64> {
    numbers(tensor).into_iter().map(f64::to_bits).collect()
}

/// Runs on a pool of so many threads.
pub(crate) fn on<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

/// Returns noise of each shape.
pub(crate) fn noises<const N: usize>(shapes: [&[usize]; N]) -> [Tensor; N] {
    let mut nth = 0;
    shapes.map(|shape| {
        nth += 1;
        noise(&format!("input {nth}"), shape).as_detached_tensor()
    })
}

/// Rounds noise to whole numbers. Some are zero, where the derivative of a relu is a choice.
pub(crate) fn whole(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(|tensor| tensor.round().unwrap()).collect()
}

/// Converts a tensor to a type, and moves it to the device of the tests.
pub(crate) fn there(tensor: &Tensor, dtype: DType) -> Tensor {
    tensor.to_dtype(dtype).unwrap().to_device(&device()).unwrap()
}

/// An operation on tensors of one type and device.
pub(crate) type Operation<'a> = &'a (dyn Fn(&[&Tensor]) -> Result<Tensor> + Sync);

/// Computes the value and the gradients of an operation. The incoming gradient is noise, rounded to the type `of`.
fn outcome(
    device: &Device,
    (dtype, of): (DType, DType),
    inputs: &[Tensor],
    operation: Operation<'_>,
) -> Result<Vec<Tensor>> {
    let rounded = |tensor: &Tensor| tensor.to_dtype(of)?.to_dtype(dtype)?.to_device(device);
    let inputs = inputs.iter().map(|input| Var::from_tensor(&rounded(input)?));
    let inputs: Vec<Var> = inputs.collect::<Result<_>>()?;
    let y = operation(&inputs.iter().map(Var::as_tensor).collect::<Vec<_>>())?;
    let upstream = rounded(&noise("upstream", y.dims()).as_detached_tensor())?;
    let found = backward_from(&y, &upstream)?;
    let gradients = inputs.iter().map(|input| found.get(input).unwrap().clone());
    Ok(std::iter::once(y.clone()).chain(gradients).collect())
}

/// Asserts that an operation, on the device of the tests and in each type, has the value and the gradients of its formula in
/// f64 on the CPU. The inputs and the incoming gradient are rounded to the type before. On the CPU the number of threads changes
/// no bit.
#[track_caller]
pub(crate) fn assert_agree(
    bounds: &Bounds,
    inputs: &[Tensor],
    ours: Operation<'_>,
    formula: Operation<'_>,
) {
    if device().is_cpu() {
        assert_threads_change_no_bit(inputs, ours);
    }
    for &(dtype, bound) in bounds.iter().filter(|&&(dtype, _)| has(dtype)) {
        let found = outcome(&device(), (dtype, dtype), inputs, ours).unwrap();
        let expected = outcome(&Device::Cpu, (DType::F64, dtype), inputs, formula).unwrap();
        for (position, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.dtype(), dtype);
            let shapes: Vec<_> = inputs.iter().map(Tensor::dims).collect();
            assert_close(&format!("{shapes:?} {dtype:?}, {position}"), found, expected, bound);
        }
    }
}

/// Asserts that the value and the gradients of an operation have the same bits on one thread and on several.
#[track_caller]
fn assert_threads_change_no_bit(inputs: &[Tensor], operation: Operation<'_>) {
    for dtype in [DType::F32, DType::F64] {
        let outcome = || outcome(&Device::Cpu, (dtype, dtype), inputs, operation).unwrap();
        let bits = |threads| on(threads, outcome).iter().map(bits).collect::<Vec<_>>();
        let alone = bits(1);
        (2..=4).for_each(|threads| assert!(bits(threads) == alone, "{dtype:?}, {threads} threads"));
    }
}

/// Asserts that the relative difference of two tensors of any type and device is at most `bound`.
#[track_caller]
pub(crate) fn assert_close(name: &str, found: &Tensor, expected: &Tensor, bound: f64) {
    let wide = |of: &Tensor| of.to_device(&Device::Cpu).unwrap().to_dtype(DType::F64).unwrap();
    let error = relative_difference(&wide(found), &wide(expected)).unwrap();
    // A NaN fails this comparison.
    assert!(error <= bound, "{name}: {error:.1e} is above {bound:.1e}");
}

/// Asserts NaN where the truth is NaN, the same infinity where the truth is infinite, and otherwise
/// numbers that differ by at most `bound` of the largest number, or of 1: where the formula's sum has
/// no terms, Winograd's sums cancel up to rounding.
pub(crate) fn assert_same_kind(name: &str, found: &[f64], truth: &[f64], bound: f64) {
    assert_eq!(found.len(), truth.len(), "{name}");
    let finite = truth.iter().filter(|truth| truth.is_finite());
    let largest = finite.fold(1f64, |largest, truth| largest.max(truth.abs()));
    for (place, (found, truth)) in found.iter().zip(truth).enumerate() {
        let same = match truth {
            truth if truth.is_nan() => found.is_nan(),
            truth if truth.is_infinite() => found == truth,
            _ => (found - truth).abs() <= bound * largest,
        };
        assert!(same, "{name}, element {place}: {found:e} for {truth:e}");
    }
}

/// Checks an operation on an empty batch: an empty output, and zero gradients of the parameters.
///
/// `image` and `output` are shapes without the batch's axis.
pub(crate) fn assert_empty_batch_is_nothing(
    image: &[usize],
    output: &[usize],
    parameters: &[&Var],
    operation: impl Fn(&Tensor) -> Result<Tensor>,
) {
    let none_of = |shape: &[usize]| [&[0], shape].concat();
    let x = Tensor::zeros(none_of(image), DType::F64, &Device::Cpu).unwrap();
    let x = Var::from_tensor(&x).unwrap();
    let y = operation(&x).unwrap();
    assert_eq!(y.dims(), none_of(output));
    let gradients = y.sum_all().unwrap().backward().unwrap();
    assert_eq!(gradients.get(&x).unwrap().dims(), x.dims());
    for parameter in parameters {
        let gradient = gradients.get(parameter).unwrap();
        assert_eq!(gradient.dims(), parameter.dims());
        assert_eq!(numbers(gradient), vec![0.0; parameter.elem_count()]);
    }
}

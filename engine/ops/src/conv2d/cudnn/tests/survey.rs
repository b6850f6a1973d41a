//! How long each of cuDNN's algorithms takes for each product of ResNet-18's and LeNet's layers: what the rule of `choice`
//! goes by. It is a measurement, so it runs only when it is asked for, on a GPU with nothing else to do:
//!
//! ```console
//! $ cargo test --release -p single-gpu --features cuda,cudnn --lib -- --ignored --nocapture survey
//! ```

use std::time::Instant;

use candle_core::cuda_backend::cudarc::cudnn::sys::cudnnMathType_t as Math;
use itertools::Itertools as _;

use super::super::algorithm::candidates;
use super::super::choice::{Choice, Way, take_first};
use super::super::descriptors::{Descriptors, Handle};
use super::super::plan::{Plan, workspace};
use super::super::session::Session;
use super::*;

/// Layers at 256 images: batch, in, height, width, out, kernel height, kernel width, stride, padding.
const LAYERS: [[usize; 9]; 13] = [
    [256, 1, 28, 28, 64, 3, 3, 1, 1],
    [256, 64, 28, 28, 64, 3, 3, 1, 1],
    [256, 64, 28, 28, 128, 3, 3, 2, 1],
    [256, 64, 28, 28, 128, 1, 1, 2, 0],
    [256, 128, 14, 14, 128, 3, 3, 1, 1],
    [256, 128, 14, 14, 256, 3, 3, 2, 1],
    [256, 128, 14, 14, 256, 1, 1, 2, 0],
    [256, 256, 7, 7, 256, 3, 3, 1, 1],
    [256, 256, 7, 7, 512, 3, 3, 2, 1],
    [256, 256, 7, 7, 512, 1, 1, 2, 0],
    [256, 512, 4, 4, 512, 3, 3, 1, 1],
    [256, 1, 28, 28, 20, 3, 3, 1, 0],
    [256, 20, 13, 13, 50, 5, 5, 1, 0],
];

/// How often a product is computed before the clock starts, and while it runs.
const RUNS: [usize; 2] = [2, 8];

/// The algorithms that can do it, each as often as it names units to multiply with, and whether it is deterministic.
fn all(product: &Product, handle: &Handle, descriptors: &Descriptors) -> Vec<(Way, bool)> {
    descriptors.convolution.set_math(product.math).unwrap();
    let found = candidates(handle, product.pass, descriptors).unwrap();
    found
        .into_iter()
        .filter(|candidate| candidate.works)
        .map(|one| (Way { algorithm: one.algorithm, math: one.math }, one.deterministic))
        .unique()
        .collect()
}

/// Milliseconds of one run of this way with the first of these values, `None` if it is refused after all.
fn milliseconds<T: Number>(
    device: &CudaDevice,
    values: &CudaSlice<T>,
    product: &Product,
    choice: Choice,
) -> Option<f64> {
    let descriptors = Descriptors::new::<T>(&product.geometry).unwrap();
    descriptors.convolution.set_math(choice.way.math).unwrap();
    let plan = Plan { descriptors, choice };
    let mut session = Session::with_plan(device, product, plan).unwrap();
    let (operands, len) = product.lengths();
    let [first, second] = operands.map(|len| values.slice(..len));
    let mut result = device.alloc_zeros::<T>(len).unwrap();
    let mut run = |times| {
        for _ in 0..times {
            session.queue(product, [&first, &second], &mut result).ok()?;
        }
        device.cuda_stream().synchronize().ok()
    };
    let [before, counted] = RUNS;
    run(before)?;
    let begun = Instant::now();
    run(counted)?;
    Some(begun.elapsed().as_secs_f64() * 1e3 / counted as f64)
}

fn survey_of<T: Number>(device: &CudaDevice, maths: &[Math]) {
    // As many as the largest operand has, and not zeros, with which a GPU is faster.
    let values =
        (0..256 * 64 * 28 * 28).map(|i| T::from_f64(f64::from(i * 37 % 101) / 101.0 - 0.5));
    let values = device.clone_htod(&values.collect::<Vec<_>>()).unwrap();
    for (sizes, &math) in LAYERS.iter().cartesian_product(maths) {
        for pass in [Pass::Output, Pass::InputGradient, Pass::WeightGradient] {
            if pass == Pass::InputGradient && sizes[1] == 1 {
                continue;
            }
            let geometry = geometry(*sizes);
            let product = Product { geometry, dtype: T::DTYPE, pass, math };
            let descriptors = Descriptors::new::<T>(&geometry).unwrap();
            let handle = Handle::new().unwrap();
            println!("{product}, {math:?}");
            for (way, deterministic) in all(&product, &handle, &descriptors) {
                let choice =
                    take_first(&mut [way].into(), |way| workspace(&handle, &descriptors, way));
                let Some(choice) = choice else { continue };
                let Some(time) = milliseconds(device, &values, &product, choice) else { continue };
                let order = if deterministic { "one order" } else { "any order" };
                println!(
                    "  {time:8.3} ms  {order}  {:?}, {:?}, {} bytes",
                    way.algorithm, way.math, choice.workspace
                );
            }
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn survey() {
    let Some(device) = device() else { return };
    let device = cuda(&device);
    device.cuda_stream().context().bind_to_thread().unwrap();
    survey_of::<f32>(device, &[Math::CUDNN_FMA_MATH, Math::CUDNN_DEFAULT_MATH]);
    survey_of::<bf16>(device, &[Math::CUDNN_TENSOR_OP_MATH]);
}

//! Tests of launches, of two streams, and of a clock: all of them need a GPU, and most a simulated one.

use std::env;
use std::process::Command;

use candle_core::{DType, Device, Result, Tensor, Var};
use devices::Handover;
use harness::report::trace::TracedDevice as _;
use itertools::Itertools as _;

use super::kernel::Source;
use super::launch::Launch;
use super::*;
use crate::kernels::element::tensor as tensor_of;
use crate::kernels::windows::{Channels, Windows};
use crate::relu;
use crate::tests::agreement::{FEW, assert_close, gpu, has, noise, noises};
use crate::update::overwrite;

fn on_a_gpu(name: &str, shape: &[usize]) -> Option<Tensor> {
    let values = noise(name, shape).as_detached_tensor().to_dtype(DType::F32).unwrap();
    Some(values.to_device(gpu()?.tensors()).unwrap())
}

/// Makes a launch of the kernel `relu` for n elements of `x`.
fn relu_of(x: &Tensor, n: usize) -> Launch<'_> {
    Launch::new(Source::Elementwise, "relu", x).count(n).memory([x], n)
}

fn refused<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn a_gpu_works_on_every_element_whatever_the_number_of_blocks() {
    let Some(x) = on_a_gpu("x", &[3 * 256 + 7]) else { return };
    let n = x.elem_count();
    for blocks in [1, 2, 5] {
        // SAFETY: the kernel visits n elements of its operand and of the result.
        let y = unsafe { relu_of(&x, n).compute(n, blocks) };
        let expected = relu(&x.to_device(&Device::Cpu).unwrap()).unwrap();
        assert_close(&format!("{blocks} blocks"), &tensor_of(y.unwrap(), n), &expected, 0.0);
    }
}

#[test]
fn a_gpu_is_not_given_what_a_kernel_cannot_take() {
    let Some(x) = on_a_gpu("x", &[4, 6]) else { return };
    let other_type = x.to_dtype(DType::F64).unwrap();
    for (name, grad) in [("another type", &other_type), ("another size", &x.get(0).unwrap())] {
        let error = refused(RELU_GRADIENT.of([&x, grad]));
        assert!(error.contains("relu_gradient: expected 24 elements of F32"), "{name}: {error}");
    }
    let error = refused(RELU_GRADIENT.of([&x, &x.t().unwrap()]));
    assert!(error.contains("contiguous"), "{error}");
    let error = refused(RELU_GRADIENT.of([&x, &x.to_device(&Device::Cpu).unwrap()]));
    assert!(error.contains("all tensors of an operation must lie on its GPU"), "{error}");
    // A vector of four, from the second element on.
    let row = x.flatten_all().unwrap().narrow(0, 1, 20).unwrap();
    let launch = |source| Launch::new(source, "relu", &x);
    let of_row = launch(Source::Elementwise).by_vectors(4).count(5usize).vectors([&row], 20);
    // SAFETY: five vectors are twenty elements.
    let error = refused(unsafe { of_row.compute(20, 1) });
    assert!(error.contains("vectors of 4 cannot begin at element 1"), "{error}");
    // SAFETY: the launch is refused.
    let error = refused(unsafe { relu_of(&x, 24).count((1usize << 31) + 1).compute(24, 1) });
    let expected = "kernels count up to 2³¹ elements, and there are 2147483649";
    assert!(error.contains(expected), "{error}");
    let elsewhere = launch(Source::Pooling).count(24usize).memory([&x], 24);
    // SAFETY: there is no such kernel.
    let error = refused(unsafe { elsewhere.compute(24, 1) });
    assert!(error.contains("CUDA_ERROR_NOT_FOUND"), "{error}");
    let labels = Tensor::zeros(4, DType::U32, x.device()).unwrap();
    let none = x.narrow(0, 0, 0).unwrap().reshape((4, 0)).unwrap();
    assert!(refused(row_statistics(&none, &labels, 0)).contains("at least one class"));
    let windows = Windows { out_height: 3, ..Windows::new(4, 6, 2, 2).unwrap() };
    let error = refused(super::avg_pool2d(&windows, &x));
    assert!(error.contains("the windows reach beyond a plane"), "{error}");
}

#[test]
fn a_gpu_updates_nothing_with_what_does_not_fit() {
    let (Some(value), Some(gradient)) =
        (on_a_gpu("value", &[2, 30]), on_a_gpu("gradient", &[2, 30]))
    else {
        return;
    };
    let gradient = gradient.to_device(&Device::Cpu).unwrap().to_device(value.device()).unwrap();
    let refused = |value: &Tensor, gradient: &Tensor| refused(sgd_step(&[(value, gradient)], 0.1));
    let error = refused(&value, &gradient.get(1).unwrap());
    assert!(error.contains("expected 30 elements of F32, got 60 of F32"), "{error}");
    let error = refused(&value.to_dtype(DType::F64).unwrap(), &gradient);
    assert!(error.contains("expected 60 elements of F64, got 60 of F32"), "{error}");
    let error = refused(&value.t().unwrap(), &gradient);
    assert!(error.contains("contiguous"), "{error}");
    let error = refused(&value.get(0).unwrap(), &value.get(1).unwrap());
    assert!(error.contains("shares its memory"), "{error}");
    assert_close("value", &value, &noise("value", &[2, 30]).to_dtype(DType::F32).unwrap(), 0.0);
}

/// The kernels that follow a convolution, for windows that do not overlap, in all types that this GPU has.
#[test]
fn a_gpu_pools_what_a_convolution_and_a_relu_leave() {
    let Some(device) = gpu() else { return };
    let windows = [[9, 9, 2], [7, 5, 3], [4, 6, 2], [83, 79, 2]];
    let types = FEW.into_iter().filter(|&(dtype, _)| has(dtype));
    for ((dtype, bound), [height, width, kernel]) in types.cartesian_product(windows) {
        let rounded = |of: &Tensor| of.to_dtype(dtype).unwrap();
        let inputs = noises([&[2, 3, height, width], &[3]]).map(|of| rounded(&of));
        let exact = |of: &Tensor| Var::from_tensor(&of.to_dtype(DType::F64).unwrap()).unwrap();
        let [z, bias] = inputs.each_ref().map(exact);
        let sum = z.broadcast_add(&bias.reshape((1, 3, 1, 1)).unwrap()).unwrap();
        let y = crate::avg_pool2d(&relu(&sum).unwrap(), kernel, kernel).unwrap();
        let upstream = rounded(&noise("upstream", y.dims()).as_detached_tensor());
        let expected =
            crate::backward::backward_from(&y, &upstream.to_dtype(DType::F64).unwrap()).unwrap();

        let there = |of: &Tensor| of.to_device(device.tensors()).unwrap();
        let windows = Windows::new(height, width, kernel, kernel).unwrap();
        let operands = [&inputs[0], &inputs[1], &upstream].map(there);
        let found = bias_relu_pool(&windows, &operands[0], &operands[1]).unwrap();
        let found = tensor_of(found, y.shape());
        let (dz, dbias) = bias_relu_pool_gradient(&windows, operands.each_ref()).unwrap();
        assert!([&found, &dz, &dbias].iter().all(|of| of.dtype() == dtype), "{dtype:?}");
        assert_close("output", &found, &y, bound);
        assert_close("gradient", &dz, expected.get(&z).unwrap(), bound);
        assert_close("gradient of the bias", &dbias, expected.get(&bias).unwrap(), bound);
    }
}

/// Images: one part of a channel and several, dense layers, fewer values than a block has threads.
const IMAGES: [[usize; 3]; 5] =
    [[5, 3, 63], [70, 5, 1], [3, 2, 8331], [1, 300, 1], [1, 1, 33 * 8192 + 1]];

#[test]
fn a_gpu_adds_a_bias_to_each_channel() {
    let parts = |shape: [usize; 3]| Channels::of(&shape.as_slice().into()).unwrap().parts();
    assert_eq!(IMAGES.map(parts), [1, 1, 4, 1, 34]);
    let Some(device) = gpu() else { return };
    let types = FEW.into_iter().filter(|&(dtype, _)| has(dtype));
    for (((dtype, bound), shape), with_relu) in
        types.cartesian_product(IMAGES).cartesian_product([false, true])
    {
        // Whole numbers: some sums are zero.
        let inputs = noises([&shape, &shape[1..2], &shape]).map(|of| of.round().unwrap());
        let [x, bias, upstream] = inputs.each_ref().map(|of| Var::from_tensor(of).unwrap());
        let y = x.broadcast_add(&bias.reshape((1, (), 1)).unwrap()).unwrap();
        let y = if with_relu { relu(&y).unwrap() } else { y };
        let expected = crate::backward::backward_from(&y, &upstream).unwrap();

        let there = |of: &Tensor| of.to_dtype(dtype).unwrap().to_device(device.tensors()).unwrap();
        let [of_x, of_bias, upstream] = inputs.each_ref().map(there);
        let found = tensor_of(add_bias(&of_x, &of_bias, with_relu).unwrap(), shape.as_slice());
        let (dx, dbias) = bias_gradients(with_relu.then_some(&found), &upstream).unwrap();
        assert_close("output", &found, &y, bound);
        assert_close("gradient", &dx, expected.get(&x).unwrap(), bound);
        assert_close("gradient of the bias", &dbias, expected.get(&bias).unwrap(), bound);
    }
}

fn is_set(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| !value.is_empty())
}

/// Mistakes of launches, and the simulated GPU's report of each mistake.
const MISTAKES: [(&str, &str); 2] = [
    ("a result too short", "relu, block 0, thread 23: a write beyond what is allocated"),
    ("an element left out", "relu, block 0, thread 5: a read of memory that nobody wrote"),
];

fn make(mistake: &str, x: &Tensor) -> Result<()> {
    let result = if mistake == MISTAKES[0].0 {
        // SAFETY: none. The simulated GPU reports the write of element 23.
        unsafe { relu_of(x, 24).compute(23, 1) }
    } else {
        // SAFETY: none. Nothing writes element 23.
        let left_out = unsafe {
            Launch::new(Source::Elementwise, "relu", x)
                .count(23usize)
                .memory([x], 24)
                .compute(24, 1)
        };
        RELU.of([&tensor_of(left_out?, 24)])
    };
    // The simulated GPU does nothing until a thread waits for it.
    tensor_of(result?, 23).to_vec1::<f32>().map(drop)
}

/// Makes each mistake in a separate process, as a report ends the GPU's work.
///
/// A real GPU reports no mistake reliably.
#[test]
fn a_gpu_that_is_simulated_reports_mistakes_of_launches() {
    const MISTAKE: &str = "MISTAKE_OF_A_LAUNCH";
    let Some(x) = on_a_gpu("x", &[24]) else { return };
    if !is_set("SIMULATED_GPUS") {
        eprintln!("SKIPPED: SIMULATED_GPUS does not say that this GPU is simulated");
        return;
    }
    if let Ok(mistake) = env::var(MISTAKE) {
        let _ = make(&mistake, &x);
        return;
    }
    let this = "kernels::gpu::tests::a_gpu_that_is_simulated_reports_mistakes_of_launches";
    for (mistake, report) in MISTAKES {
        let mut again = Command::new(env::current_exe().unwrap());
        again.args(["--nocapture", "--exact", this]).env(MISTAKE, mistake);
        let output = again.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&format!("simulated GPU: {report}")), "{mistake}: {said}");
    }
}

/// A tensor that is handed over has the elements of that time, whatever happens to its memory later.
///
/// A real GPU might have done the later work in any order. The simulated GPU does nothing until a thread waits for it.
#[test]
fn a_gpu_hands_over_a_tensor_as_it_is() {
    let Some(device) = gpu() else { return };
    let values = |tensor: &Tensor| tensor.to_vec1::<f32>().unwrap();
    let ones = Tensor::ones(1000, DType::F32, device.tensors()).unwrap();
    // One is received in CPU memory, and the other stays on the GPU.
    for on_gpu in [false, true] {
        let twos = (&ones + &ones).unwrap();
        let handover = Handover::new(&twos).unwrap();
        // The memory of `twos` changes, and then belongs to other tensors.
        overwrite(&twos, &ones).unwrap();
        drop(twos);
        let others = (0..4).map(|_| (&ones * 7.0).unwrap()).collect::<Vec<_>>();
        assert_eq!((handover.size().0, handover.size().1.dims()), (4000, &[1000][..]));
        let received = match handover {
            #[cfg(feature = "cuda")]
            Handover::Copied(copy) if on_gpu => copy.into_tensor(),
            handover => handover.receive().unwrap(),
        };
        assert_eq!(received.device().is_cpu(), !on_gpu);
        assert_eq!(values(&received), vec![2.0; 1000]);
        assert!(others.iter().all(|of| values(of) == [7.0; 1000]));
        // The device frees the memory of the copy, and uses it again.
        drop(received);
        assert_eq!(values(&(&ones * 3.0).unwrap()), [3.0; 1000]);
    }
    // An empty tensor has no memory.
    let empty = Handover::new(&ones.narrow(0, 0, 0).unwrap()).unwrap().receive().unwrap();
    assert!(empty.device().is_cpu() && empty.dims() == [0]);
}

#[test]
fn a_gpu_is_timed_by_its_own_events() {
    let Some(device) = gpu() else { return };
    let mut clock = device.clock().expect("a GPU has a clock");
    assert_eq!(clock.mark(), Some(0));
    relu(&Tensor::ones((70, 31), DType::F32, device.tensors()).unwrap()).unwrap();
    assert_eq!(clock.mark(), Some(1));
    let times = clock.times();
    assert!(times.len() == 2 && times[0] <= times[1], "{times:?}");
}

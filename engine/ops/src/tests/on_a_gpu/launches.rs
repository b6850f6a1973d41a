//! Tests of single launches: checks before a launch, and reports of a simulated GPU.

use std::env;
use std::process::Command;

use candle_core::{CudaStorage, DType, Device, Result, Tensor};

use super::kernels::rounded_noise;
use super::{assert_close, gpu};
use crate::gpu::{Launch, Operand, Source, alloc, elementwise, on_gpu, tensor};

fn there(name: &str, shape: &[usize], dtype: DType) -> Option<Tensor> {
    Some(rounded_noise(name, shape, dtype).to_device(&gpu()?).unwrap())
}

fn relu<'a>(x: Operand<'a>, n: usize) -> Launch<'a> {
    Launch::new(x.gpu(), Source::Elementwise, "relu", x.dtype()).count(n).memory(x, n)
}

#[test]
fn a_gpu_works_on_every_element_whatever_the_number_of_blocks() {
    let Some(x) = there("x", &[3 * 256 + 7], DType::F32) else { return };
    let n = x.elem_count();
    for blocks in [1, 2, 5] {
        let y = on_gpu([&x], |[x]| relu(x, n).compute(n, blocks)).unwrap();
        let expected = crate::relu(&x.to_device(&Device::Cpu).unwrap()).unwrap();
        assert_close(&format!("{blocks} blocks"), &tensor(y, n), &expected, 0.0);
    }
}

#[test]
fn a_gpu_is_not_given_what_a_kernel_cannot_take() {
    let Some(x) = there("x", &[4, 6], DType::F32) else { return };
    let refused = |result: Result<CudaStorage>| match result {
        Ok(_) => panic!("it was launched"),
        Err(error) => error.to_string(),
    };
    let gradient = |grad: &Tensor| {
        refused(on_gpu([&x, grad], |operands| elementwise("relu_gradient", operands)))
    };
    let other_type = x.to_dtype(DType::F64).unwrap();
    for (name, grad) in [("another type", &other_type), ("another size", &x.get(0).unwrap())] {
        let error = gradient(grad);
        assert!(error.contains("relu_gradient: expected 24 elements of F32"), "{name}: {error}");
    }
    let error = gradient(&x.t().unwrap());
    assert!(error.contains("contiguous"), "{error}");
    let error = gradient(&x.to_device(&Device::Cpu).unwrap());
    assert!(error.contains("all tensors of an operation must lie on its GPU"), "{error}");
    // A vector of four, from the second element on.
    let row = x.flatten_all().unwrap().narrow(0, 1, 20).unwrap();
    let error = refused(on_gpu([&row], |[x]| {
        let launch = Launch::new(x.gpu(), Source::Elementwise, "relu", x.dtype()).by_vectors(4);
        launch.count(5).vectors(x, 20).compute(20, 1)
    }));
    assert!(error.contains("vectors of 4 cannot begin at element 1"), "{error}");
    let error = refused(on_gpu([&x], |[x]| relu(x, 24).count((1 << 31) + 1).compute(24, 1)));
    assert!(
        error.contains("kernels count up to 2³¹ elements, and there are 2147483649"),
        "{error}"
    );
    let error = refused(on_gpu([&x], |[x]| {
        Launch::new(x.gpu(), Source::Pooling, "relu", x.dtype())
            .count(24)
            .memory(x, 24)
            .compute(24, 1)
    }));
    assert!(error.contains("CUDA_ERROR_NOT_FOUND"), "{error}");
}

/// Mistakes of launches, and the simulated GPU's report of each mistake.
const MISTAKES: [(&str, &str); 2] = [
    ("a result too short", "relu, block 0, thread 23: a write beyond what is allocated"),
    ("an element left out", "relu, block 0, thread 5: a read of memory that nobody wrote"),
];

fn make(mistake: &str, x: &Tensor) -> Result<()> {
    on_gpu([x], |[x]| {
        let result = if mistake == MISTAKES[0].0 {
            let mut result = alloc(x.gpu(), 23, DType::F32)?;
            relu(x, 24).result(&mut result).run(1)?;
            result
        } else {
            let launch = Launch::new(x.gpu(), Source::Elementwise, "relu", DType::F32);
            let result = launch.count(23).memory(x, 24).compute(24, 1)?;
            elementwise("relu", [Operand::whole(&result, 24)])?
        };
        // The simulated GPU does nothing until a thread waits for it.
        tensor(result, 23).to_vec1::<f32>().map(drop)
    })
}

/// Makes each mistake in a separate process, as a report ends the GPU's work.
///
/// A real GPU reports no mistake reliably.
#[test]
fn a_gpu_that_is_simulated_reports_mistakes_of_launches() {
    const MISTAKE: &str = "MISTAKE_OF_A_LAUNCH";
    let Some(x) = there("x", &[24], DType::F32) else { return };
    if env::var_os("SIMULATED_GPUS").is_none_or(|gpus| gpus.is_empty()) {
        eprintln!("SKIPPED: SIMULATED_GPUS does not say that this GPU is simulated");
        return;
    }
    if let Ok(mistake) = env::var(MISTAKE) {
        let _ = make(&mistake, &x);
        return;
    }
    let this = "tests::on_a_gpu::launches::a_gpu_that_is_simulated_reports_mistakes_of_launches";
    for (mistake, report) in MISTAKES {
        let mut again = Command::new(env::current_exe().unwrap());
        again.args(["--nocapture", "--exact", this]).env(MISTAKE, mistake);
        let output = again.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&format!("simulated GPU: {report}")), "{mistake}: {said}");
    }
}

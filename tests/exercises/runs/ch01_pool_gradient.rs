//! LeNet with the learner's backward pass of pooling, beside ours and candle's.

use candle_core::Result;
use ops::backward::backward;
use single_gpu::gradient_check::gradient_errors;
use single_gpu::init;
use single_gpu::layers::avg_pool2d;
use single_gpu::lenet::{LayerFunctions, Layers};

use super::layers::{compare, conv2d_relu, pool, with_pool_gradient};
use super::prelude::*;
pub use crate::checks::ch01_pool_gradient::Answer;

/// Shows the gradient check, and the training. Fails with the answer.
pub fn run(answer: Answer) -> Run {
    let fast = LayerFunctions::from(Layers::Fast);
    let yours = with_pool_gradient(fast, answer);
    let ours = LayerFunctions {
        conv2d_relu_pool: |x, weight, bias| avg_pool2d(&conv2d_relu(x, weight, bias)?),
        ..fast
    };
    let library = LayerFunctions {
        conv2d_relu_pool: |x, weight, bias| candles(&conv2d_relu(x, weight, bias)?),
        ..fast
    };
    let checked = [
        ("yours", yours, check(pool)?),
        ("ours", ours, check(avg_pool2d)?),
        ("candle's", library, check(candles)?),
    ];
    let others = "candle's gradient is wrong at this size, and its loss falls all the same: only the check shows the mistake.";
    compare(["pooling 9×9 to 4×4", "sum, right: 16"], &checked, others)
}

#[expect(clippy::disallowed_methods, reason = "its wrong gradient is shown")]
fn candles(x: &Tensor) -> Result<Tensor> {
    x.avg_pool2d(2)
}

/// The gradient of a weighted sum of the output, against finite differences; and the sum of the gradient without weights.
fn check(pool: fn(&Tensor) -> Result<Tensor>) -> Result<[f64; 2]> {
    let (dtype, device) = (DType::F64, &Device::Cpu);
    let x = Parameters::new(vec![init::normal("x", &[1, 1, 9, 9], 1.0, 1, dtype, device)?])?;
    let weights = init::normal("dy", &[1, 1, 4, 4], 1.0, 1, dtype, device)?.value;
    let weights = weights.as_detached_tensor();
    let y = || pool(&x[0].value);
    let errors = gradient_errors(&x, 81, || (y()? * &weights)?.sum_all())?;
    let gradients = x.gradients(&backward(&y()?.sum_all()?)?)?;
    Ok([errors[0].relative_error, gradients[0].sum_all()?.to_scalar()?])
}

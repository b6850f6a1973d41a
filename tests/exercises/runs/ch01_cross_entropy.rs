//! LeNet with the learner's loss, beside ours and the mean that most libraries return.

use candle_core::Result;
use single_gpu::gradient_check::gradient_errors;
use single_gpu::init;
use single_gpu::layers::cross_entropy;
use single_gpu::lenet::{LayerFunctions, Layers};

use super::layers::{Checked, compare, with_cross_entropy};
use super::prelude::*;
pub use crate::checks::ch01_cross_entropy::Answer;

/// Shows the gradient check, and the training. Fails with the answer.
pub fn run(answer: Answer) -> Run {
    let fast = LayerFunctions::from(Layers::Fast);
    let layers = [
        ("yours", with_cross_entropy(fast, answer)),
        ("ours", LayerFunctions { cross_entropy, ..fast }),
        ("a mean", LayerFunctions { cross_entropy: mean, ..fast }),
    ];
    let checked = layers.into_iter().map(|(name, it)| Ok((name, it, check(it.cross_entropy)?)));
    let checked = checked.collect::<Result<Vec<Checked<'_>>>>()?;
    let others = "The mean passes the check of its gradient, too. But the update divides by the batch again, so its steps are too small.";
    compare(["a loss of 5 samples", "of 1000 and 0, right: 1000"], &checked, others)
}

/// The mean over the samples, which the update divides again.
fn mean(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    cross_entropy(logits, labels)? / labels.elem_count() as f64
}

/// The gradient against finite differences; and the loss of two logits that are far apart.
fn check(loss: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<[f64; 2]> {
    let (dtype, device) = (DType::F64, &Device::Cpu);
    let logits = Parameters::new(vec![init::normal("z", &[5, 10], 3.0, 1, dtype, device)?])?;
    let labels = Tensor::new(&[0u32, 9, 4, 4, 7], device)?;
    let errors = gradient_errors(&logits, 50, || loss(&logits[0].value, &labels))?;
    let far = loss(&Tensor::new(&[[1000.0, 0.0]], device)?, &Tensor::new(&[1u32], device)?)?;
    Ok([errors[0].relative_error, far.to_scalar()?])
}

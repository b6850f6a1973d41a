//! The cross-entropy of a batch, its gradient, and the number of correct answers.

use candle_core::{DType, Result, Storage, Tensor};

use super::kernel::Source;
use super::launch::{Launch, blocks_of};
use crate::kernels::element::tensor;

/// Makes a launch with the arguments that all kernels of the file share: rows, classes, logits, labels.
fn of_rows<'a>(
    kernel: &'static str,
    logits: &'a Tensor,
    labels: &'a Tensor,
) -> Result<(usize, Launch<'a>)> {
    let (rows, classes) = logits.dims2()?;
    let launch = Launch::new(Source::CrossEntropy, kernel, logits)
        .check(classes > 0, || "a row of logits has at least one class".to_owned())
        .count(rows)
        .count(classes)
        .memory([logits], rows * classes)
        .memory_as(DType::U32, [labels], rows);
    Ok((rows, launch))
}

/// Sums the losses of all rows. A wrong label makes the loss NaN.
pub(crate) fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Storage> {
    let (_, launch) = of_rows("cross_entropy", logits, labels)?;
    // SAFETY: `cross_entropy(rows, classes, logits, labels, loss)` reads `classes` logits and one label for each row. It reads
    // the logit at a label only if the label is below `classes`. One block writes the loss.
    unsafe { launch.compute(1, 1) }
}

/// Computes the gradient of the logits from the gradient of the loss.
pub(crate) fn cross_entropy_gradient(
    logits: &Tensor,
    labels: &Tensor,
    dloss: &Tensor,
) -> Result<Tensor> {
    let (rows, launch) = of_rows("cross_entropy_gradient", logits, labels)?;
    let launch = launch.memory([dloss], 1);
    // SAFETY: `cross_entropy_gradient(rows, classes, logits, labels, upstream, dlogits)`: as above, and writes as many gradients.
    let dlogits = unsafe { launch.compute(logits.elem_count(), blocks_of(rows)) };
    Ok(tensor(dlogits?, logits.shape()))
}

/// Returns the loss and the number of rows with their largest logit at the label, `[2]` in f64.
pub(crate) fn loss_and_correct(loss: &Tensor, logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let (_, launch) = of_rows("loss_and_correct", logits, labels)?;
    let launch = launch.memory([loss], 1);
    // SAFETY: `loss_and_correct(rows, classes, logits, labels, loss, sums)` reads `classes` logits and one label for each
    // row. One block writes two sums.
    let [sums] = unsafe { launch.run(1, [(2, DType::F64)]) }?;
    Ok(tensor(sums, 2))
}

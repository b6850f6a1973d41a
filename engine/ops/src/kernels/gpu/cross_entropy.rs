//! The cross-entropy of a batch, its gradient, and the number of correct answers.

use candle_core::{DType, Result, Storage, Tensor, bail};

use super::launch::{Launch, Source, alloc, blocks_of};
use super::operand::{Operand, on_gpu, tensor};

/// Starts a launch with the arguments that all kernels of the file share: rows, classes, logits, labels.
fn launch<'a>(
    kernel: &'static str,
    (rows, classes): (usize, usize),
    [logits, labels]: [Operand<'a>; 2],
) -> Result<Launch<'a>> {
    if classes == 0 {
        bail!("{kernel}: a row of logits has at least one class");
    }
    Ok(Launch::new(logits.gpu(), Source::CrossEntropy, kernel, logits.dtype())
        .count(rows)
        .count(classes)
        .memory(logits, rows * classes)
        .memory_as(DType::U32, labels, rows))
}

/// Sums the losses of all rows. A wrong label makes the loss NaN.
pub(crate) fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Storage> {
    let sizes = logits.dims2()?;
    let loss = on_gpu([logits, labels], |operands| {
        let launch = launch("cross_entropy", sizes, operands)?;
        // SAFETY: `cross_entropy(rows, classes, logits, labels, loss)` reads `classes` logits and one label for each row. It
        // reads the logit at a label only if the label is below `classes`. One block writes the loss.
        unsafe { launch.compute(1, 1) }
    });
    loss.map(Storage::Cuda)
}

/// Computes the gradient of the logits from the gradient of the loss.
pub(crate) fn cross_entropy_gradient(
    logits: &Tensor,
    labels: &Tensor,
    dloss: &Tensor,
) -> Result<Tensor> {
    let (rows, classes) = logits.dims2()?;
    let dlogits = on_gpu([logits, labels, dloss], |[of_logits, of_labels, dloss]| {
        let launch = launch("cross_entropy_gradient", (rows, classes), [of_logits, of_labels])?
            .memory(dloss, 1);
        // SAFETY: `cross_entropy_gradient(rows, classes, logits, labels, upstream, dlogits)` reads as the loss does, and
        // writes `classes` gradients for each row.
        unsafe { launch.compute(rows * classes, blocks_of(rows)) }
    })?;
    Ok(tensor(dlogits, logits.shape()))
}

/// Returns the loss and the number of rows with their largest logit at the label, `[2]` in f64.
pub(crate) fn loss_and_correct(loss: &Tensor, logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let sizes = logits.dims2()?;
    let sums = on_gpu([loss, logits, labels], |[loss, of_logits, of_labels]| {
        let mut sums = alloc(of_logits.gpu(), 2, DType::F64)?;
        let launch = launch("loss_and_correct", sizes, [of_logits, of_labels])?.memory(loss, 1);
        // SAFETY: `loss_and_correct(rows, classes, logits, labels, loss, sums)` reads `classes` logits and one label for each
        // row. One block writes two sums.
        unsafe { launch.result(DType::F64, &mut sums, 2).run(1) }?;
        Ok(sums)
    })?;
    Ok(tensor(sums, 2))
}

//! The cross-entropy of a batch, its gradient, and the number of correct answers.

use candle_core::{DType, Result, Storage, Tensor};

use super::kernel::Source;
use super::launch::{Launch, alloc, blocks_of};
use super::operand::{Operand, on_gpu, tensor};
use crate::kernels::element;

impl<'a> Launch<'a> {
    /// Adds the arguments that all kernels of the file share: rows, classes, logits, labels.
    fn rows(self, (rows, classes): (usize, usize), [logits, labels]: [Operand<'a>; 2]) -> Self {
        self.check(classes > 0, || "a row of logits has at least one class".to_owned())
            .count(rows)
            .count(classes)
            .memory(logits, rows * classes)
            .memory_as(DType::U32, labels, rows)
    }
}

/// Sums the losses of all rows. A wrong label makes the loss NaN.
pub(crate) fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Storage> {
    let (sizes, source) = (logits.dims2()?, Source::CrossEntropy);
    // SAFETY: `cross_entropy(rows, classes, logits, labels, loss)` reads `classes` logits and one label for each row. It reads
    // the logit at a label only if the label is below `classes`. One block writes the loss.
    unsafe {
        source.compute("cross_entropy", [logits, labels], (1, 1), |launch, operands| {
            launch.rows(sizes, operands)
        })
    }
}

/// Computes the gradient of the logits from the gradient of the loss.
pub(crate) fn cross_entropy_gradient(
    logits: &Tensor,
    labels: &Tensor,
    dloss: &Tensor,
) -> Result<Tensor> {
    let (rows, classes) = logits.dims2()?;
    let (tensors, sizes) = ([logits, labels, dloss], (rows * classes, blocks_of(rows)));
    // SAFETY: `cross_entropy_gradient(rows, classes, logits, labels, upstream, dlogits)` reads as the loss does, and writes
    // `classes` gradients for each row.
    let dlogits = unsafe {
        Source::CrossEntropy.compute("cross_entropy_gradient", tensors, sizes, |launch, of| {
            let [logits, labels, dloss] = of;
            launch.rows((rows, classes), [logits, labels]).memory(dloss, 1)
        })
    };
    Ok(element::tensor(dlogits?, logits.shape()))
}

/// Returns the loss and the number of rows with their largest logit at the label, `[2]` in f64.
pub(crate) fn loss_and_correct(loss: &Tensor, logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let sizes = logits.dims2()?;
    let sums = on_gpu([loss, logits, labels], |[loss, logits, labels]| {
        let (gpu, dtype) = (logits.gpu(), logits.dtype());
        let mut sums = alloc(gpu, 2, DType::F64)?;
        let launch = Launch::new(gpu, Source::CrossEntropy, "loss_and_correct", dtype);
        let launch = launch.rows(sizes, [logits, labels]).memory(loss, 1);
        // SAFETY: `loss_and_correct(rows, classes, logits, labels, loss, sums)` reads `classes` logits and one label for each
        // row. One block writes two sums.
        unsafe { launch.result(DType::F64, &mut sums, 2).run(1) }?;
        Ok(sums)
    })?;
    Ok(tensor(sums, 2))
}

//! The cross-entropy of a batch, its gradient, and the number of correct answers, of rows in one part or several.

use candle_core::{DType, Result, Storage, Tensor};

use super::kernel::Source;
use super::launch::{Launch, blocks_of};
use crate::kernels::element::tensor;

/// The number of a row's statistics, in this order: largest logit, its index, sum of exponentials, logit at the label.
pub(crate) const STATISTICS: usize = 4;

/// Makes a launch with the arguments that kernels of logits share: rows, classes, logits, labels.
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

/// Returns the statistics of each row, of logits of the classes from `first` on.
pub(crate) fn row_statistics(logits: &Tensor, labels: &Tensor, first: usize) -> Result<Storage> {
    let (rows, launch) = of_rows("row_statistics", logits, labels)?;
    let launch = launch.count(first);
    // SAFETY: `row_statistics(rows, classes, logits, labels, first, statistics)` reads `classes` logits and one label for each
    // row, and writes four numbers for each. It reads the logit at a label only if the label is one of the classes.
    unsafe { launch.compute(rows * STATISTICS, blocks_of(rows)) }
}

/// Makes a launch with the arguments that kernels of statistics `[parts, rows, 4]` share: parts, rows, statistics, labels.
fn of_parts<'a>(kernel: &'static str, all: &'a Tensor, labels: &'a Tensor) -> Result<Launch<'a>> {
    let (parts, rows, _) = all.dims3()?;
    let launch = Launch::new(Source::CrossEntropy, kernel, all).count(parts).count(rows);
    let launch = launch.memory([all], parts * rows * STATISTICS);
    Ok(launch.memory_as(DType::U32, [labels], rows))
}

/// Sums the losses of all rows, from the statistics of all parts. A wrong label makes the loss NaN.
pub(crate) fn loss_of_parts(all: &Tensor, labels: &Tensor, classes: usize) -> Result<Storage> {
    let launch = of_parts("loss_of_parts", all, labels)?.count(classes);
    // SAFETY: `loss_of_parts(parts, rows, all, labels, classes, loss)` reads four numbers of each part and one label for each
    // row. One block writes the loss.
    unsafe { launch.compute(1, 1) }
}

/// Computes the gradient of the logits of the classes from `first` on, from the gradient of the loss.
pub(crate) fn gradient_of_part(
    logits: &Tensor,
    labels: &Tensor,
    first: usize,
    all: &Tensor,
    dloss: &Tensor,
) -> Result<Tensor> {
    let (rows, launch) = of_rows("gradient_of_part", logits, labels)?;
    let parts = all.dim(0)?;
    let launch = launch.count(first).count(parts).memory([all], parts * rows * STATISTICS);
    let launch = launch.memory([dloss], 1);
    // SAFETY: `gradient_of_part(rows, classes, logits, labels, first, parts, all, upstream, dlogits)` reads `classes` logits, one
    // label, and four numbers of each part for each row, and writes as many gradients as there are logits.
    let dlogits = unsafe { launch.compute(logits.elem_count(), blocks_of(rows)) };
    Ok(tensor(dlogits?, logits.shape()))
}

/// Returns the loss and the number of rows with their largest logit at the label, `[2]` in f64, from the statistics of all parts.
pub(crate) fn loss_and_correct_of_parts(
    loss: &Tensor,
    all: &Tensor,
    labels: &Tensor,
) -> Result<Tensor> {
    let launch = of_parts("loss_and_correct_of_parts", all, labels)?.memory([loss], 1);
    // SAFETY: `loss_and_correct_of_parts(parts, rows, all, labels, loss, sums)` reads four numbers of each part and one label
    // for each row. One block writes two sums.
    let [sums] = unsafe { launch.run(1, [(2, DType::F64)]) }?;
    Ok(tensor(sums, 2))
}

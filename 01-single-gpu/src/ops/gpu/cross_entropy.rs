//! Cross-entropy, summed over the batch, and how many answers are right.

use candle_core::{DType, Result};

use super::blocks::blocks_of;
use super::kernel::Source;
use super::launch::{Launch, Operand};
use super::machine::Machine;

/// The sum over the rows of −log softmax at the label: one element. A label that is no class makes it NaN.
pub(crate) fn loss<M: Machine>(
    machine: &M,
    classes: usize,
    logits: Operand<'_, M::Storage>,
    labels: Operand<'_, M::Storage>,
) -> Result<M::Storage> {
    let rows = labels.elements;
    let mut loss = machine.room(1, logits.dtype())?;
    let launch = Launch::new(Source::CrossEntropy, "cross_entropy", logits.dtype());
    let launch = launch.count(rows).count(classes).read(logits, rows * classes).read_as(
        DType::U32,
        labels,
        rows,
    );
    machine.run(launch.write(&mut loss), 1)?;
    Ok(loss)
}

/// The gradient of the logits; `upstream` is that of the loss, one element.
pub(crate) fn gradient<M: Machine>(
    machine: &M,
    classes: usize,
    logits: Operand<'_, M::Storage>,
    labels: Operand<'_, M::Storage>,
    upstream: Operand<'_, M::Storage>,
) -> Result<M::Storage> {
    let rows = labels.elements;
    let mut dlogits = machine.room(logits.elements, logits.dtype())?;
    let launch = Launch::new(Source::CrossEntropy, "cross_entropy_gradient", logits.dtype());
    let launch = launch
        .count(rows)
        .count(classes)
        .read(logits, rows * classes)
        .read_as(DType::U32, labels, rows)
        .read(upstream, 1);
    machine.run(launch.write(&mut dlogits), blocks_of(rows))?;
    Ok(dlogits)
}

/// The loss of a batch, and how many rows have their largest logit at the label: two elements, f64.
pub(crate) fn loss_and_correct<M: Machine>(
    machine: &M,
    classes: usize,
    loss: Operand<'_, M::Storage>,
    logits: Operand<'_, M::Storage>,
    labels: Operand<'_, M::Storage>,
) -> Result<M::Storage> {
    let rows = labels.elements;
    let mut sums = machine.room(2, DType::F64)?;
    let launch = Launch::new(Source::CrossEntropy, "loss_and_correct", logits.dtype());
    let launch = launch
        .count(rows)
        .count(classes)
        .read(loss, 1)
        .read(logits, rows * classes)
        .read_as(DType::U32, labels, rows);
    machine.run(launch.write(&mut sums), 1)?;
    Ok(sums)
}

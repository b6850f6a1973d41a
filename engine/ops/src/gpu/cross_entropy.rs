//! Cross-entropy, summed over the batch, and how many answers are right.

use candle_core::backend::BackendStorage;
use candle_core::{DType, Result};

use super::blocks::blocks_of;
use super::kernel::Source;
use super::launch::{Launch, Operand};
use super::machine::Machine;

/// Logits `[rows, classes]` and labels `[rows]`.
pub(crate) struct Batch<'a, S> {
    pub(crate) classes: usize,
    pub(crate) logits: Operand<'a, S>,
    pub(crate) labels: Operand<'a, S>,
}

impl<'a, S: BackendStorage> Batch<'a, S> {
    fn rows(&self) -> usize {
        self.labels.elements
    }

    /// A kernel with what all of them begin with.
    fn launch(&self, name: &'static str) -> Launch<'a, S> {
        let (rows, classes) = (self.rows(), self.classes);
        let launch = Launch::new(Source::CrossEntropy, name, self.logits.dtype());
        let launch = launch.count(rows).count(classes).read(self.logits, rows * classes);
        launch.read_as(DType::U32, self.labels, rows)
    }
}

/// The sum over the rows of −log softmax at the label: one element. A label that is no class makes it NaN.
pub(crate) fn loss<M: Machine>(machine: &M, batch: &Batch<'_, M::Storage>) -> Result<M::Storage> {
    let mut loss = machine.room(1, batch.logits.dtype())?;
    machine.run(batch.launch("cross_entropy").write(&mut loss), 1)?;
    Ok(loss)
}

/// The gradient of the logits; `upstream` is that of the loss, one element.
pub(crate) fn gradient<M: Machine>(
    machine: &M,
    batch: &Batch<'_, M::Storage>,
    upstream: Operand<'_, M::Storage>,
) -> Result<M::Storage> {
    let mut dlogits = machine.room(batch.logits.elements, batch.logits.dtype())?;
    let launch = batch.launch("cross_entropy_gradient").read(upstream, 1);
    machine.run(launch.write(&mut dlogits), blocks_of(batch.rows()))?;
    Ok(dlogits)
}

/// The loss of a batch, and how many rows have their largest logit at the label: two elements, f64.
pub(crate) fn loss_and_correct<M: Machine>(
    machine: &M,
    batch: &Batch<'_, M::Storage>,
    loss: Operand<'_, M::Storage>,
) -> Result<M::Storage> {
    let mut sums = machine.room(2, DType::F64)?;
    machine.run(batch.launch("loss_and_correct").read(loss, 1).write(&mut sums), 1)?;
    Ok(sums)
}

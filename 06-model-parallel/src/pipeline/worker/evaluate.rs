//! A data set through the pipeline, forward only.

use candle_core::{DType, Module as _, ModuleT, Shape, Tensor};
use concise_wrapper::Error;
use datasets::Dataset;
use harness::interrupt;
use harness::records::BatchSums;
use harness::report::trace::COMPUTE;
use ops::backward::no_grad;
use ops::cross_entropy;
use single_gpu::evaluate::{BATCH, Part, SumsByBatch};
use tracing::info_span;
use trainer::StepSums;

use super::{Chunk, Worker, batch_of, failed};

// ANCHOR: evaluate
/// The number of activations that a stage sends without a confirmation.
const CAPACITY: usize = 2;

impl<M: ModuleT> Worker<'_, M> {
    /// The sums of loss and correct answers over each batch of a part of a data set, by the running statistics of batch
    /// norms. The rank with the loss returns the sums, and all other ranks return zeros. Every rank counts a signal that has
    /// reached its process. All stages of a pipeline call this together, with the same part.
    ///
    /// With one chunk a stage, a sender waits for a confirmation before the third activation and each later one, so no
    /// stage runs ahead of a slower one. Fails when the images do not fit the model, or another stage stops or stalls: the
    /// message names the stage.
    ///
    /// After a signal the stages exchange zeros for the rest of the data set. A stage computes nothing more, and no other stage
    /// waits for its messages. The sums are then not used.
    pub fn evaluate_part(&self, images: &Dataset, part: Part) -> Result<SumsByBatch, Error> {
        let _span = info_span!(target: COMPUTE, "evaluate").entered();
        let (line, schedule) = (&self.pipeline, self.checked.schedule());
        let stages = schedule.stages();
        let batches = images.len().div_ceil(BATCH).saturating_sub(part.nth).div_ceil(part.of);
        let ahead = if schedule.chunks == 1 { CAPACITY } else { batches };
        let mut batch = 0;
        let sums = part.evaluate(images.len(), BATCH, |samples| {
            let is_cut = self.is_cut()?;
            let (mut sums, mut handed_on) = (BatchSums::of_no_samples(), None);
            for (chunk, Chunk { network, input, output }) in self.chunks.iter().enumerate() {
                let (dtype, device) = (network.dtype(), network.device());
                let part = schedule.part(self.stage, chunk);
                let x = match handed_on.take() {
                    Some(x) => x,
                    None if part == 0 => images.batch(samples, dtype)?.images.to_device(device)?,
                    None => {
                        let before = (part - 1) % stages;
                        let x = line.recv(before, &batch_of(samples.len(), input), dtype)?;
                        if batch + ahead < batches {
                            line.send(before, &Tensor::new(0u8, device)?)?;
                        }
                        x
                    }
                };
                let output = if is_cut {
                    Tensor::zeros(batch_of(samples.len(), output), dtype, device)?
                } else {
                    no_grad(|| network.forward(&x))?.detach()
                };
                if schedule.is_last(part) && self.has_loss() && !is_cut {
                    let batch = images.batch(samples, dtype)?.to_device(device)?;
                    let loss = cross_entropy(&output, &batch.labels)?;
                    sums = StepSums::new(&loss, &output, &batch)?.read()?;
                } else if stages == 1 {
                    handed_on = Some(output);
                } else if !schedule.is_last(part) {
                    let after = (part + 1) % stages;
                    if batch >= ahead {
                        line.recv(after, &Shape::from(()), DType::U8)?;
                    }
                    line.send_shared(after, &output)?;
                }
            }
            batch += 1;
            Ok::<_, Error>(sums)
        });
        sums.map_err(|error| failed(self.stage, ", evaluating", error))
    }

    /// Whether a signal has cut the evaluation. The parts of a stage compute each batch together, so the first part decides
    /// for all parts.
    fn is_cut(&self) -> Result<bool, Error> {
        let is_new = interrupt::is_new();
        if self.parts.world_size() == 1 {
            return Ok(is_new);
        }
        let decision = Tensor::new(&[u8::from(is_new)], self.parts.device())?;
        Ok(self.parts.broadcast(&decision, 0)?.to_vec1::<u8>()? == [1])
    }
}
// ANCHOR_END: evaluate

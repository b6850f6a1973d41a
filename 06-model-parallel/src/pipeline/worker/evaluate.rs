//! A data set through the pipeline, forward only.

use candle_core::{DType, Module as _, ModuleT, Shape, Tensor};
use concise_wrapper::Error;
use datasets::Dataset;
use harness::records::BatchSums;
use harness::report::trace::COMPUTE;
use ops::backward::no_grad;
use ops::cross_entropy;
use params_and_allreduce::communicator;
use single_gpu::evaluate::{BATCH, Part, SumsByBatch};
use tracing::info_span;
use trainer::read_sums;

use super::{Chunk, Worker, batch_of, failed};
use crate::pipeline::schedule::Place;

// ANCHOR: evaluate
/// The largest number of messages between two stages.
const CAPACITY: usize = 2;

impl<M: ModuleT> Worker<'_, M> {
    /// The sums of loss and correct answers over each batch of a part of a data set, by the running statistics of batch
    /// norms. The rank with the loss returns the sums, and all other ranks return zeros. All stages of a pipeline call
    /// this together, with the same part.
    ///
    /// With one chunk a stage, a receiver confirms each activation, so that no stage runs ahead of a slower one. Fails
    /// when the images do not fit the model, or another stage stops or stalls: the message names the stage.
    pub fn evaluate_part(&self, images: &Dataset, part: Part) -> Result<SumsByBatch, Error> {
        let _span = info_span!(target: COMPUTE, "evaluate").entered();
        let (line, schedule) = (&self.pipeline, self.checked.schedule());
        let confirms = schedule.chunks == 1;
        let confirmed = |from| line.recv(from, &Shape::from(()), DType::U8).map(drop);
        let mut unconfirmed = 0;
        let sums = part.evaluate(images.len(), BATCH, |samples| {
            let mut sums = BatchSums::default();
            let mut handed_on = None;
            for (chunk, Chunk { network, input, .. }) in self.chunks.iter().enumerate() {
                let (dtype, device) = (network.dtype(), network.device());
                let here = Place { stage: self.stage, chunk };
                let x = match (schedule.before(here), handed_on.take()) {
                    (None, _) => images.batch(samples, dtype)?.images.to_device(device)?,
                    (Some(_), Some(x)) => x,
                    (Some(Place { stage, .. }), None) => {
                        let x = line.recv(stage, &batch_of(samples.len(), input), dtype)?;
                        if confirms {
                            line.send(stage, &Tensor::new(0u8, device)?)?;
                        }
                        x
                    }
                };
                let output = no_grad(|| network.forward(&x))?.detach();
                match schedule.after(here) {
                    None if !self.has_loss() => {}
                    None => {
                        let batch = images.batch(samples, dtype)?.to_device(device)?;
                        sums = read_sums(&cross_entropy(&output, &batch.labels)?, &output, &batch)?;
                    }
                    Some(there) if there.stage == self.stage => handed_on = Some(output),
                    Some(Place { stage, .. }) => {
                        if unconfirmed == CAPACITY {
                            confirmed(stage)?;
                            unconfirmed -= 1;
                        }
                        line.send_shared(stage, &output)?;
                        unconfirmed += usize::from(confirms);
                    }
                }
            }
            Ok::<_, communicator::Error>(sums)
        });
        let rest = |sums| {
            (0..unconfirmed).try_for_each(|_| confirmed(self.stage + 1))?;
            Ok(sums)
        };
        sums.and_then(rest).map_err(|error| failed(self.stage, ", evaluating", error))
    }
}
// ANCHOR_END: evaluate

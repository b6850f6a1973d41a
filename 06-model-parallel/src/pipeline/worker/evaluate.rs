//! A data set through the pipeline, forward only.
//!
//! Nothing comes back but the word that a message has been read: without it the first stage would run ahead, and
//! what it has sent would pile up before a slower one.

use candle_core::{DType, Module as _, ModuleT, Shape, Tensor};
use datasets::Dataset;
use harness::records::BatchSums;
use harness::report::trace::COMPUTE;
use ops::backward::no_grad;
use ops::cross_entropy;
use params_and_allreduce::communicator::Error as LineError;
use single_gpu::evaluate::{BATCH, Part, SumsByBatch};
use tracing::info_span;
use trainer::read_sums;

use super::{Error, Worker, meeting};

/// How many messages may lie between two stages.
const CAPACITY: usize = 2;

impl<M: ModuleT> Worker<'_, M> {
    /// Sums of loss and correct answers over each batch of a part of a data set, with the running statistics of batch
    /// norms. The last stage has them; the others know of none. All stages of one pipeline call this together, with the
    /// same part.
    ///
    /// # Errors
    ///
    /// When the images do not fit the model, or another stage stops or stalls: the message names the stage.
    pub fn evaluate(&self, images: &Dataset, part: Part) -> Result<SumsByBatch, Error> {
        let _span = info_span!(target: COMPUTE, "evaluate").entered();
        let stage = self.stage;
        let failed =
            |source: LineError| Error::Evaluation { stage, source: Box::new(source.into()) };
        self.all_batches(images, part).map_err(failed)
    }

    fn all_batches(&self, images: &Dataset, part: Part) -> Result<SumsByBatch, LineError> {
        let Self { line, stage, shapes, network, .. } = self;
        let (dtype, device) = (network.dtype(), network.device());
        let mut unread = 0;
        let sums = part.evaluate(images.len(), BATCH, |samples| {
            let x = if *stage == 0 {
                images.batch(samples, dtype)?.images.to_device(device)?
            } else {
                let shape = meeting::shape(samples.len(), &shapes.input);
                let x = line.recv(stage - 1, &shape, dtype)?;
                line.send(stage - 1, &Tensor::new(0u8, device)?)?;
                x
            };
            let output = no_grad(|| network.forward(&x))?;
            if self.is_last() {
                let batch = images.batch(samples, dtype)?.to_device(device)?;
                let loss = cross_entropy(&output, &batch.labels)?;
                return Ok(read_sums(&loss, &output, &batch)?);
            }
            if unread == CAPACITY {
                self.read()?;
                unread -= 1;
            }
            line.send_shared(stage + 1, &output.detach())?;
            unread += 1;
            Ok::<_, LineError>(BatchSums::default())
        })?;
        (0..unread).try_for_each(|_| self.read())?;
        Ok(sums)
    }

    /// Waits until the next stage has taken a message.
    fn read(&self) -> Result<(), LineError> {
        self.line.recv(self.stage + 1, &Shape::from(()), DType::U8).map(drop)
    }
}

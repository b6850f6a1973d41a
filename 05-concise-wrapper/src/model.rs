//! The model as the training loop sees it, on one device or on many.

use candle_core::{ModuleT, Result as TensorResult, Tensor};
use datasets::{Batch, Dataset};
use harness::records::BatchSums;
use harness::report::trace::COMPUTE;
use ops::cross_entropy;
use params_and_allreduce::communicator::SharedCommunicator;
use single_gpu::evaluate::evaluate;
use split_batch::loader::{LocalBatch, Shards};
use tracing::info_span;
use trainer::StepSums;

use crate::optimizer::Optimizer;
use crate::weights::Weights;
use crate::{Error, Network};

// ANCHOR: model
/// A model that can be trained, on any number of devices: a plain network, or a wrapped one.
pub trait Model {
    /// Returns the shards of each global batch that this model trains on: by default, the whole batch.
    fn hosts(&self) -> Shards {
        Shards::WHOLE
    }

    /// Computes loss and gradients of a global batch, over all devices. Updates nothing. `batch` holds this model's shards.
    /// Fails when the batch does not fit the model, or another rank stops or stalls.
    fn backward(&self, batch: &LocalBatch) -> Result<Step, Error>;

    /// Makes a whole step: computes the gradients of a global batch, and updates the weights at this learning rate.
    fn step(
        &self,
        batch: &LocalBatch,
        optimizer: &mut dyn Optimizer,
        rate: f64,
    ) -> Result<Step, Error> {
        let step = self.backward(batch)?;
        optimizer.step(self.weights(), &step.gradients, rate, batch.samples)?;
        Ok(step)
    }

    /// Returns the tensors to update. The wrapper copies the new values to all devices.
    fn weights(&self) -> &Weights;

    /// Sums loss and correct answers over a data set: the same sums on all ranks. Fails when the images do not fit the model, or
    /// another rank stops or stalls.
    fn evaluate(&self, images: &Dataset) -> Result<BatchSums, Error>;

    /// Returns the connection to all ranks that run this loop together, or `None` if there is one loop only.
    fn rank(&self) -> Option<&SharedCommunicator> {
        None
    }
}

/// Sums over the samples of a *global* batch, over all devices.
#[derive(Clone, Debug)]
pub struct Step {
    /// Loss and correct answers before the update. On a GPU they may stay in GPU memory until the caller reads them.
    pub sums: StepSums,
    /// The gradients of the summed loss, in the order of the parameters.
    pub gradients: Vec<Tensor>,
}

/// The progress of a training loop: before its first step, after each update, and at its end.
#[derive(Clone, Copy)]
pub struct Progress<'a> {
    /// The number of steps so far, with the steps of an earlier run that this run resumes.
    pub steps: usize,
    /// The last step, and the batch that it was made on. `None` before the first step and at the end.
    pub last: Option<(&'a LocalBatch, &'a Step)>,
}
// ANCHOR_END: model

// ANCHOR: network
impl<M: ModuleT> Model for Network<M> {
    fn backward(&self, batch: &LocalBatch) -> Result<Step, Error> {
        let (loss, sums) = loss_of(self, &batch.shards[0])?;
        let gradients = self.gradients(&loss)?;
        Ok(Step { sums, gradients })
    }

    fn weights(&self) -> &Weights {
        Network::weights(self)
    }

    fn evaluate(&self, images: &Dataset) -> Result<BatchSums, Error> {
        Ok(evaluate(self, images, self.dtype(), self.device())?)
    }
}

/// Computes the loss of a shard, summed over its samples, and the deferred sums of loss and correct answers.
pub(crate) fn loss_of<M: ModuleT>(
    network: &Network<M>,
    shard: &Batch,
) -> TensorResult<(Tensor, StepSums)> {
    let _span = info_span!(target: COMPUTE, "forward").entered();
    if shard.is_empty() {
        return Ok((empty_loss(network, &shard.images)?, BatchSums::of_no_samples().into()));
    }
    let shard = shard.to_device(network.device())?;
    let logits = network.forward_training(&shard.images)?;
    let loss = cross_entropy(&logits, &shard.labels)?;
    let sums = StepSums::new(&loss, &logits, &shard)?;
    Ok((loss, sums))
}
// ANCHOR_END: network

// ANCHOR: empty_loss
/// Computes the loss of an empty shard: a forward pass of one image of zeros, times zero. All gradients are 0. Batch norms do
/// not count the image.
pub(crate) fn empty_loss<M: ModuleT>(
    network: &Network<M>,
    images: &Tensor,
) -> TensorResult<Tensor> {
    let mut dims = images.dims().to_vec();
    dims[0] = 1;
    // Inputs that an embedding looks up, such as word numbers, keep their type.
    let dtype = if images.dtype().is_float() { network.dtype() } else { images.dtype() };
    let image = Tensor::zeros(dims, dtype, network.device())?;
    network.norms().stand_in(true);
    let logits = network.forward_training(&image);
    network.norms().stand_in(false);
    stand_in_loss(&logits?)
}

/// Computes a loss of 0 from the logits of an image that replaces an empty shard. All its gradients are 0.
pub fn stand_in_loss(logits: &Tensor) -> TensorResult<Tensor> {
    logits.mul(&logits.zeros_like()?)?.sum_all()
}
// ANCHOR_END: empty_loss

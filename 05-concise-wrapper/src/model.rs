//! What a training loop needs of a model, be it on one device or on many.

use candle_core::{ModuleT, Result, Tensor};
use datasets::{Batch, Dataset};
use harness::records::BatchSums;
use harness::report::trace::COMPUTE;
use ops::cross_entropy;
use params_and_allreduce::communicator::SharedCommunicator;
use single_gpu::evaluate::evaluate;
use single_gpu::train::Step;
use tracing::info_span;
use trainer::{DeferredSums, StepSums};

use crate::weights::Weights;
use crate::{Error, Network, Precision};
use split_batch::loader::{LocalBatch, Shards};

/// A model that can be trained: plain, or wrapped.
///
/// The loop makes a step of two calls, and knows nothing of devices: [`backward_deferred`](Self::backward_deferred), then an
/// update of [`weights`](Self::weights) by the gradients that came back. A model has to have
/// [`backward`](Self::backward) for it.
// ANCHOR: model
pub trait Model {
    /// The shards of each global batch that this model is to be given, and how many there are in all.
    fn hosts(&self) -> Shards;

    /// Loss and gradients of a global batch, of which `share` holds this model's shards; nothing is
    /// updated.
    ///
    /// What comes back is summed over the *whole* batch, on however many devices it was.
    ///
    /// # Errors
    ///
    /// When the batch does not fit the model, or another rank stops or stalls.
    fn backward(&self, share: &LocalBatch) -> std::result::Result<Step, Error>;

    /// [`backward`](Self::backward), with loss and correct answers left where they are, to be read when somebody wants to
    /// see them: a GPU has the update to do before anybody waits for it.
    ///
    /// # Errors
    ///
    /// As [`backward`](Self::backward).
    fn backward_deferred(
        &self,
        share: &LocalBatch,
    ) -> std::result::Result<(StepSums, Vec<Tensor>), Error> {
        let Step { sums, gradients } = self.backward(share)?;
        Ok((sums.into(), gradients))
    }

    /// The loop tells it how many steps were made before its first: some, where it goes on.
    fn begins_after(&self, _steps: usize) {}

    /// The loop tells it that there are no more steps, also where an interrupt made one the last; all ranks are told
    /// together.
    ///
    /// # Errors
    ///
    /// When what is to be done then fails, or another rank stops or stalls.
    fn ends(&self) -> std::result::Result<(), Error> {
        Ok(())
    }

    /// What its weights are kept in, and what its layers compute in.
    fn precision(&self) -> Precision;

    /// The tensors to update. The wrapper sees to it that all devices use the new values.
    fn weights(&self) -> &Weights;

    /// Sums of loss and correct answers over a data set; `None` on a rank that leaves it to another.
    ///
    /// # Errors
    ///
    /// When the images do not fit the model, or another rank stops or stalls.
    fn evaluate(&self, images: &Dataset) -> std::result::Result<Option<BatchSums>, Error>;

    /// The connection to the ranks that train together with this one; `None` where there is but one loop.
    fn rank(&self) -> Option<&SharedCommunicator> {
        None
    }

    /// Whether [`weights`](Self::weights) are the whole model, and not the part of it that this rank holds.
    fn is_whole(&self) -> bool {
        true
    }
}
// ANCHOR_END: model

impl<M: ModuleT> Model for Network<M> {
    fn hosts(&self) -> Shards {
        Shards::WHOLE
    }

    fn backward(&self, share: &LocalBatch) -> std::result::Result<Step, Error> {
        let (seen, gradients) = self.backward_deferred(share)?;
        Ok(Step { sums: seen.read()?, gradients })
    }

    fn backward_deferred(
        &self,
        share: &LocalBatch,
    ) -> std::result::Result<(StepSums, Vec<Tensor>), Error> {
        let (loss, unread) = loss_of(self, &share.shards[0])?;
        let gradients = gradients_of(self, &loss)?;
        Ok((unread.into_step_sums()?, gradients))
    }

    fn precision(&self) -> Precision {
        Network::precision(self)
    }

    fn weights(&self) -> &Weights {
        Network::weights(self)
    }

    fn evaluate(&self, images: &Dataset) -> std::result::Result<Option<BatchSums>, Error> {
        Ok(Some(evaluate(self, images, self.dtype(), self.device())?))
    }
}

/// The loss of a shard, summed over its samples; and what is to be read off the device later, when the
/// device is not kept waiting by that.
///
/// An empty shard is stood in for by one black image whose loss counts nothing: so a rank without samples
/// does what all others do, layer by layer, and all its gradients are zero.
pub(crate) fn loss_of<M: ModuleT>(
    network: &Network<M>,
    shard: &Batch,
) -> Result<(Tensor, DeferredSums)> {
    let _span = info_span!(target: COMPUTE, "forward").entered();
    if shard.is_empty() {
        return Ok((stand_in(network, &shard.images)?, DeferredSums::default()));
    }
    let shard = shard.to_device(network.device())?;
    let logits = network.forward_training(&shard.images)?;
    let loss = cross_entropy(&logits, &shard.labels)?;
    let unread = DeferredSums::new(&loss, &logits, &shard)?;
    Ok((loss, unread))
}

/// The loss where there are no `images`: one of zeros, of their shape, stands in.
pub(crate) fn stand_in<M: ModuleT>(network: &Network<M>, images: &Tensor) -> Result<Tensor> {
    let mut dims = images.dims().to_vec();
    dims[0] = 1;
    // What is looked up, such as a word's number, stays one.
    let dtype = if images.dtype().is_float() { network.dtype() } else { images.dtype() };
    let image = Tensor::zeros(dims, dtype, network.device())?;
    network.norms().stand_in(true);
    let logits = network.forward_training(&image);
    network.norms().stand_in(false);
    stand_in_loss(&logits?)
}

/// The loss of an image that stands in for an empty shard: 0, and so are all its gradients.
///
/// # Errors
///
/// When a tensor operation fails.
pub fn stand_in_loss(logits: &Tensor) -> Result<Tensor> {
    logits.mul(&logits.zeros_like()?)?.sum_all()
}

/// The gradients of a loss, with a span.
pub(crate) fn gradients_of<M: ModuleT>(network: &Network<M>, loss: &Tensor) -> Result<Vec<Tensor>> {
    info_span!(target: COMPUTE, "backward").in_scope(|| network.gradients(loss))
}

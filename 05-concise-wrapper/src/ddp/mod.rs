//! Distributed data parallel: every rank has a replica, its own share of the images, and a thread that
//! adds gradients up while the backward pass still runs.
//!
//! | module | what it teaches |
//! | --- | --- |
//! | [`bucket`] | few large messages in place of many small ones |
//! | `reducer` | a bucket is added up as soon as its last gradient is there |
//! | `worker` | the thread that adds up |
//! | `step` | a step of the training loop: in buckets, or by shard |
//! | [`alike`] | ranks that were not started alike are told so, before they train |
//! | `blame` | whose loss was it that is not a number? |
//! | [`broken`] | the field's real bugs, to be run on purpose |

pub mod alike;
mod blame;
pub mod broken;
pub mod bucket;
mod reducer;
mod step;
mod worker;

use std::sync::Arc;

use candle_core::{ModuleT, Tensor};
use harness::report::trace::{COMMUNICATION, COMPUTE};
use ops::parameters::overwrite;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;
use scratch_data_parallel::FixedTree;
use tracing::info_span;

use crate::model::stand_in;
use crate::weights::{Named, Weights};
use crate::{Error, Network};
use bucket::BucketCaps;
use reducer::{Reducer, one_type};

/// How gradients become sums over all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// In buckets, during the backward pass.
    Buckets {
        /// How large they are.
        caps: BucketCaps,
        /// How they are added up.
        algorithm: Algorithm,
        /// Whether they travel during the backward pass, or all of them after it.
        overlap: bool,
    },
    /// By shard, along a fixed tree: the same bits on any number of ranks.
    Reproducible {
        /// Into how many shards every batch is cut.
        shards: usize,
    },
}

impl Default for Reduction {
    fn default() -> Self {
        let caps = BucketCaps::default();
        Self::Buckets { caps, algorithm: Algorithm::Ring, overlap: true }
    }
}

/// A network on one of several ranks.
///
/// Your own network, trained on two devices:
///
/// ```
#[doc = include_str!("../../examples/own_model.rs")]
/// ```
pub struct Ddp<M> {
    network: Network<M>,
    rank: SharedCommunicator,
    way: Way,
}

enum Way {
    Buckets(Arc<Reducer>),
    Tree(FixedTree),
}

impl<M: ModuleT> Ddp<M> {
    /// Wraps a network; all ranks call this together. From now on they all have rank 0's weights.
    ///
    /// # Errors
    ///
    /// When a rank has a network of another structure: its message names the difference. When, in buckets, parameters are
    /// not all of one type, or, by shard, a batch norm is not this crate's. When there are fewer shards than ranks, or
    /// another rank stops or stalls.
    pub fn new(
        network: Network<M>,
        rank: impl Into<SharedCommunicator>,
        reduction: Reduction,
    ) -> Result<Self, Error> {
        let rank = rank.into();
        alike::structure(&rank, network.precision(), network.weights())?;
        match reduction {
            Reduction::Reproducible { .. } => network.norms().check_all(network.weights())?,
            Reduction::Buckets { .. } => one_type(&network.weights().parameters)?,
        }
        for Named { tensor, .. } in network.weights().iter() {
            receive(&rank, tensor)?;
        }
        let way = match reduction {
            Reduction::Reproducible { shards } => {
                network.norms().by_shard();
                Way::Tree(FixedTree::new(shards, rank.world_size())?)
            }
            Reduction::Buckets { caps, algorithm, overlap } => {
                let parameters = &network.weights().parameters;
                let reducer = Reducer::new(parameters, caps, &rank, algorithm, overlap)?;
                let reducer = Arc::new(reducer);
                network.listen(reducer.clone());
                Way::Buckets(reducer)
            }
        };
        Ok(Self { network, rank, way })
    }

    /// From now on all batch norms use the statistics of all ranks' images together.
    ///
    /// Where NCCL alone connects the ranks, buckets are then added up after the backward pass: its kernels are to be queued
    /// in one order on all GPUs, and between statistics and buckets there would be none.
    ///
    /// # Errors
    ///
    /// When a batch norm is not this crate's.
    pub fn synchronise_norms(self) -> Result<Self, Error> {
        self.network.norms().check_all(self.network.weights())?;
        if let (Way::Buckets(reducer), false) = (&self.way, self.rank.has_messages()) {
            reducer.after_backward();
        }
        self.network.norms().synchronise(Arc::clone(&self.rank));
        Ok(self)
    }

    /// How many buckets the gradients travel in; 0 where they do not.
    pub fn buckets(&self) -> usize {
        match &self.way {
            Way::Buckets(reducer) => reducer.buckets(),
            Way::Tree(_) => 0,
        }
    }

    /// The network that is wrapped.
    pub fn network(&self) -> &Network<M> {
        &self.network
    }

    /// The logits of this rank's images, in training: at least one, see [`loss`](Self::loss).
    ///
    /// # Errors
    ///
    /// Those of the layers, and when there are no images.
    pub fn forward(&self, images: &Tensor) -> Result<Tensor, Error> {
        if images.dims().first() == Some(&0) {
            let text = "there are no images here, and this rank has to take part all the same: see Ddp::loss";
            return Err(candle_core::Error::Msg(text.to_owned()).into());
        }
        Ok(self.network.forward_training(images)?)
    }

    /// A loss of this rank's images, in training: `of` makes it of their logits, as a sum over the samples.
    ///
    /// Where there are none, as when a batch has fewer samples than there are ranks, one image of zeros stands in, and `of`
    /// is not asked: the loss is 0, and so are all gradients. So every rank does the same, layer by layer.
    ///
    /// # Errors
    ///
    /// Those of the layers, and of `of`.
    pub fn loss(
        &self,
        images: &Tensor,
        of: impl FnOnce(&Tensor) -> candle_core::Result<Tensor>,
    ) -> Result<Tensor, Error> {
        if images.dims().first() == Some(&0) {
            return Ok(stand_in(&self.network, images)?);
        }
        Ok(of(&self.forward(images)?)?)
    }

    /// The gradients of every rank's loss, added up over all ranks and over the losses that were
    /// [`accumulate`](Self::accumulate)d before; all ranks call this together.
    ///
    /// # Errors
    ///
    /// When a parameter has no gradient here, or another rank stops or stalls.
    pub fn gradients(&self, loss: &Tensor) -> Result<Vec<Tensor>, Error> {
        let reducer = self.reducer()?;
        reducer.begin(true)?;
        backward(&self.network, loss)?;
        let _span = info_span!(target: COMMUNICATION, "wait for buckets").entered();
        Ok(reducer.finish()?)
    }

    /// Adds the gradients of this rank's loss to those of the next [`gradients`](Self::gradients), without
    /// a word to the others: PyTorch's `no_sync`.
    ///
    /// # Errors
    ///
    /// When a parameter has no gradient here.
    pub fn accumulate(&self, loss: &Tensor) -> Result<(), Error> {
        let reducer = self.reducer()?;
        reducer.begin(false)?;
        backward(&self.network, loss)?;
        Ok(reducer.carry()?)
    }

    /// Gives every rank rank 0's buffers: with local batch norms each has its own. All ranks call this
    /// together, before anybody looks at them.
    ///
    /// # Errors
    ///
    /// When another rank stops or stalls.
    pub fn share_buffers(&self) -> Result<(), Error> {
        receive_buffers(&self.rank, self.network.weights())
    }

    fn reducer(&self) -> Result<&Reducer, Error> {
        match &self.way {
            Way::Buckets(reducer) => Ok(reducer),
            Way::Tree(_) => {
                let text = "in reproducible mode gradients are added up by shard, of whole batches";
                Err(candle_core::Error::Msg(text.to_owned()).into())
            }
        }
    }
}

/// Overwrites a tensor with rank 0's.
pub(crate) fn receive(rank: &SharedCommunicator, tensor: &Tensor) -> Result<(), Error> {
    let received = rank.broadcast(&tensor.detach(), 0)?;
    if rank.rank() > 0 {
        overwrite(tensor, &received)?;
    }
    Ok(())
}

/// Overwrites all buffers with rank 0's.
fn receive_buffers(rank: &SharedCommunicator, weights: &Weights) -> Result<(), Error> {
    let _span = info_span!(target: COMMUNICATION, "share buffers").entered();
    weights.buffers.iter().try_for_each(|named| receive(rank, &named.tensor))
}

fn backward<M: ModuleT>(network: &Network<M>, loss: &Tensor) -> Result<(), Error> {
    Ok(info_span!(target: COMPUTE, "backward").in_scope(|| network.backward_to_listener(loss))?)
}

//! Distributed data parallel: every rank has a replica, its own share of the images, and a thread that
//! adds gradients up while the backward pass still runs.
//!
//! | module | what it teaches |
//! | --- | --- |
//! | [`bucket`] | few large messages in place of many small ones |
//! | `reducer` | a bucket is added up as soon as its last gradient is there |
//! | `alike` | ranks that were not started alike are told so, before they train |

pub mod alike;
pub mod bucket;
mod reducer;

use std::sync::Arc;

use candle_core::{ModuleT, Tensor};
use params_and_allreduce::all_reduce::FixedTree;
use params_and_allreduce::collective::broadcast;
use params_and_allreduce::communicator::{Communicator as _, SharedCommunicator};
use params_and_allreduce::thread::Rank;
use params_and_allreduce::{Algorithm, allreduce};
use single_gpu::data::Dataset;
use single_gpu::evaluate::evaluate;
use single_gpu::parameters::overwrite;
use single_gpu::report::trace::{COMMUNICATION, COMPUTE};
use single_gpu::train::{BatchSums, Step};
use tracing::info_span;

use crate::model::{Hosts, Model, gradients_of, loss_of};
use crate::shares::Share;
use crate::weights::{Named, Weights};
use crate::{Error, Network};
use bucket::BucketCaps;
use reducer::Reducer;

/// One rank's connections: two, so that two of its threads can talk at the same time.
#[derive(Clone)]
pub struct Lines {
    /// For the thread that computes.
    pub main: SharedCommunicator,
    /// For the thread that adds gradients up.
    pub background: SharedCommunicator,
}

impl From<&Rank<'_>> for Lines {
    fn from(rank: &Rank<'_>) -> Self {
        Self { main: Arc::new(rank.line()), background: Arc::new(rank.background_line()) }
    }
}

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
    /// When a rank has a network of another structure: its message names the difference. When there are
    /// fewer shards than ranks, or another rank stops or stalls.
    pub fn new(
        network: Network<M>,
        rank: impl Into<Lines>,
        reduction: Reduction,
    ) -> Result<Self, Error> {
        let Lines { main, background } = rank.into();
        alike::structure(&main, network.weights())?;
        for Named { tensor, .. } in network.weights().iter() {
            receive(&main, tensor)?;
        }
        let way = match reduction {
            Reduction::Reproducible { shards } => {
                network.norms().by_shard();
                Way::Tree(FixedTree::new(shards, main.world_size())?)
            }
            Reduction::Buckets { caps, algorithm, overlap } => {
                let parameters = &network.weights().parameters;
                let reducer = Reducer::new(parameters, caps, background, algorithm, overlap)?;
                let reducer = Arc::new(reducer);
                network.listen(reducer.clone());
                Way::Buckets(reducer)
            }
        };
        Ok(Self { network, rank: main, way })
    }

    /// From now on all batch norms use the statistics of all ranks' images together.
    pub fn synchronise_norms(self) -> Self {
        self.network.norms().synchronise(Arc::clone(&self.rank));
        self
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

    /// The logits of this rank's images, in training.
    ///
    /// # Errors
    ///
    /// Those of the layers.
    pub fn forward(&self, images: &Tensor) -> Result<Tensor, Error> {
        Ok(self.network.forward_training(images)?)
    }

    /// The gradients of every rank's loss, added up over all ranks and over the losses that were
    /// [`accumulate`](Self::accumulate)d before; all ranks call this together.
    ///
    /// # Errors
    ///
    /// When a parameter has no gradient here, or another rank stops or stalls.
    pub fn gradients(&self, loss: &Tensor) -> Result<Vec<Tensor>, Error> {
        let reducer = self.reducer()?;
        reducer.begin(true);
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
        reducer.begin(false);
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
        let _span = info_span!(target: COMMUNICATION, "share buffers").entered();
        self.network
            .weights()
            .buffers
            .iter()
            .try_for_each(|named| receive(&self.rank, &named.tensor))
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

    /// Loss and correct answers of all ranks' shards together.
    fn sums_of_all(&self, sums: &[BatchSums]) -> Result<BatchSums, Error> {
        let tensors = sums.iter().map(|sums| sums.to_tensor(self.rank.device()));
        let tensors = tensors.collect::<candle_core::Result<Vec<_>>>()?;
        let all = match &self.way {
            Way::Tree(tree) => tree.sum(&self.rank, &tensors)?,
            Way::Buckets(_) => allreduce(&self.rank, &tensors[0], Algorithm::OneShot)?,
        };
        Ok(BatchSums::from_tensor(&all)?)
    }

    /// A step's backward in reproducible mode: shard by shard, then along the tree.
    // ANCHOR: by_shard
    fn backward_by_shard(&self, share: &Share, tree: &FixedTree) -> Result<Step, Error> {
        let (mut of_shards, mut sums) = (Vec::new(), Vec::new());
        for shard in &share.shards {
            let (loss, unread) = loss_of(&self.network, shard)?;
            of_shards.push(gradients_of(&self.network, &loss)?);
            sums.push(unread.read()?);
        }
        let gradients = (0..self.weights().parameters.len()).map(|parameter| {
            let leaves: Vec<Tensor> =
                of_shards.iter().map(|gradients| gradients[parameter].clone()).collect();
            Ok(tree.sum(&self.rank, &leaves)?)
        });
        let gradients = gradients.collect::<Result<Vec<Tensor>, Error>>()?;
        self.network.norms().fold(&self.rank, tree)?;
        Ok(Step { sums: self.sums_of_all(&sums)?, gradients })
    }
    // ANCHOR_END: by_shard
}

impl<M: ModuleT> Model for Ddp<M> {
    fn hosts(&self) -> Hosts {
        let (rank, of) = (self.rank.rank(), self.rank.world_size());
        match &self.way {
            Way::Buckets(_) => Hosts { shards: rank..rank + 1, of },
            Way::Tree(tree) => Hosts { shards: tree.held_by(rank), of: tree.leaves() },
        }
    }

    fn backward(&self, share: &Share) -> Result<Step, Error> {
        if let Way::Tree(tree) = &self.way {
            return self.backward_by_shard(share, tree);
        }
        let (loss, unread) = loss_of(&self.network, &share.shards[0])?;
        let gradients = self.gradients(&loss)?;
        Ok(Step { sums: self.sums_of_all(&[unread.read()?])?, gradients })
    }

    fn weights(&self) -> &Weights {
        self.network.weights()
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        Some(&self.rank)
    }

    fn evaluate(&self, images: &Dataset) -> Result<Option<BatchSums>, Error> {
        self.share_buffers()?;
        if self.rank.rank() > 0 {
            return Ok(None);
        }
        Ok(Some(evaluate(&self.network, images, self.network.dtype(), self.network.device())?))
    }
}

/// Overwrites a tensor with rank 0's.
pub(crate) fn receive(rank: &SharedCommunicator, tensor: &Tensor) -> Result<(), Error> {
    let received = broadcast(rank, &tensor.detach(), 0)?;
    if rank.rank() > 0 {
        overwrite(tensor, &received)?;
    }
    Ok(())
}

fn backward<M: ModuleT>(network: &Network<M>, loss: &Tensor) -> Result<(), Error> {
    Ok(info_span!(target: COMPUTE, "backward").in_scope(|| network.backward(loss))?)
}

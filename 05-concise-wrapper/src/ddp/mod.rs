//! Distributed data parallel: every rank has a replica of the network and a shard of each batch. The ranks sum their gradients
//! while the backward pass still runs.
//!
//! Read `mod.rs`, then the path of a gradient: [`bucket`], `reducer` and `worker`.

pub mod alike;
pub mod bucket;
mod reducer;
pub mod worker;

use std::sync::{Arc, Mutex};

use candle_core::{ModuleT, Tensor};
use datasets::Dataset;
use devices::move_view;
use harness::lock::locked;
use harness::records::BatchSums;
use harness::report::trace::COMMUNICATION;
use ops::update::overwrite;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;
use scratch_data_parallel::evaluate::evaluate_together;
use scratch_data_parallel::reproducible::tree_sums;
use scratch_data_parallel::{FixedTree, TreeSum, allreduce_sums, replicas};
use single_gpu::evaluate::evaluate_part;
use split_batch::loader::{LocalBatch, Shards};
use tracing::info_span;

use crate::batch_norm::merged;
use crate::model::{Model, Step, empty_loss, loss_of};
use crate::weights::Weights;
use crate::{Error, Network};
use bucket::{BucketCaps, buckets};
use reducer::Reducer;

// ANCHOR: ddp
/// The way in which gradients become sums over all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// In buckets, during the backward pass.
    Buckets {
        /// The sizes of the buckets.
        caps: BucketCaps,
        /// The all-reduce of a bucket.
        algorithm: Algorithm,
        /// Whether buckets travel during the backward pass, or all of them after it.
        overlap: bool,
    },
    /// By shard, along a fixed tree: the same bits on any number of ranks.
    Reproducible {
        /// The number of shards of every batch.
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
    reduce: Reduce,
}

enum Reduce {
    Buckets(Arc<Mutex<Reducer>>),
    Tree(FixedTree),
}
// ANCHOR_END: ddp

impl<M: ModuleT> Ddp<M> {
    // ANCHOR: new
    /// Wraps a network. All ranks call this together. Then all ranks have the weights of rank 0. Fails when a rank has a
    /// network of another structure, when in buckets parameters have more than one type, or when by shard a batch norm
    /// belongs to another crate or there are fewer shards than ranks.
    pub fn new(
        mut network: Network<M>,
        rank: impl Into<SharedCommunicator>,
        reduction: Reduction,
    ) -> Result<Self, Error> {
        let (rank, weights) = (rank.into(), network.weights());
        alike::structure(&rank, weights)?;
        let reduce = match reduction {
            Reduction::Reproducible { shards } => {
                network.norms().check_all(weights)?;
                network.norms().by_shard();
                Reduce::Tree(FixedTree::new(shards, rank.world_size())?)
            }
            Reduction::Buckets { caps, algorithm, overlap } => {
                let mut reducer = Reducer::new(&network, &rank, algorithm, overlap)?;
                reducer.fill(&buckets(&weights.parameter_sizes(), caps))?;
                Reduce::Buckets(Arc::new(Mutex::new(reducer)))
            }
        };
        weights.iter().try_for_each(|named| receive(&rank, &named.tensor))?;
        network.wrapped = matches!(reduce, Reduce::Buckets(_));
        Ok(Self { network, rank, reduce })
    }

    /// Makes these buckets, lists of parameters, in place of those of [`BucketCaps`]. All ranks call this together, with the
    /// same lists, before the first step. Fails when a parameter is not in exactly one bucket.
    pub fn with_buckets(self, buckets: &[Vec<usize>]) -> Result<Self, Error> {
        if let Reduce::Buckets(reducer) = &self.reduce {
            locked(reducer).fill(buckets)?;
        }
        Ok(self)
    }
    // ANCHOR_END: new

    // ANCHOR: synchronise
    /// From now on all batch norms use the statistics of all ranks' images together. Buckets that a library such as NCCL adds up
    /// then travel after the backward pass: two threads of a rank would queue statistics and buckets in any order, and all GPUs
    /// must run NCCL's kernels in one. Fails when a batch norm belongs to another crate.
    pub fn synchronise_norms(self) -> Result<Self, Error> {
        self.network.norms().check_all(self.network.weights())?;
        if let Reduce::Buckets(reducer) = &self.reduce {
            let mut reducer = locked(reducer);
            reducer.overlap &= reducer.algorithm != Algorithm::Native;
        }
        self.network.norms().synchronise(Arc::clone(&self.rank), Arc::new(merged));
        Ok(self)
    }
    // ANCHOR_END: synchronise

    /// Returns the number of buckets, or 0 if gradients do not travel in buckets.
    pub fn buckets(&self) -> usize {
        if let Reduce::Buckets(it) = &self.reduce { locked(it).buckets.len() } else { 0 }
    }

    /// Returns the wrapped network.
    pub fn network(&self) -> &Network<M> {
        &self.network
    }

    // ANCHOR: by_shard
    /// A step in reproducible mode: the gradients of each shard, then their sum along the tree.
    fn backward_by_shard(&self, batch: &LocalBatch, tree: &FixedTree) -> Result<Step, Error> {
        let (mut sum, mut deferred) = (TreeSum::new(*tree), Vec::new());
        for (number, shard) in batch.shards.iter().enumerate() {
            self.network.norms().shard(number);
            let (loss, sums) = loss_of(&self.network, shard)?;
            let leaf = tree.held_by(self.rank.rank()).start + number;
            sum.add(leaf, self.network.gradients(&loss)?)?;
            deferred.push(sums);
        }
        let gradients = sum.total(&*self.rank)?;
        self.network.norms().fold(&*self.rank, tree)?;
        let own = deferred.iter().map(|sums| sums.read());
        let own = own.collect::<candle_core::Result<Vec<_>>>()?;
        let sums = tree_sums(&*self.rank, &own, tree)?;
        alike::check_loss(&self.rank, &own, sums.loss)?;
        Ok(Step { sums: sums.into(), gradients })
    }
    // ANCHOR_END: by_shard
}

impl<M: ModuleT> Model for Ddp<M> {
    // ANCHOR: backward
    fn backward(&self, batch: &LocalBatch) -> Result<Step, Error> {
        if let Reduce::Tree(tree) = &self.reduce {
            return self.backward_by_shard(batch, tree);
        }
        let (loss, sums) = loss_of(&self.network, &batch.shards[0])?;
        let gradients = self.gradients(&loss)?;
        let own = sums.read()?;
        let sums = allreduce_sums(&*self.rank, own, Algorithm::OneShot)?;
        alike::check_loss(&self.rank, &[own], sums.loss)?;
        Ok(Step { sums: sums.into(), gradients })
    }
    // ANCHOR_END: backward

    // ANCHOR: evaluate
    fn hosts(&self) -> Shards {
        let (rank, of) = (self.rank.rank(), self.rank.world_size());
        match &self.reduce {
            Reduce::Buckets(_) => Shards::of_rank(rank, of),
            Reduce::Tree(tree) => Shards::new(tree.held_by(rank), tree.leaves()),
        }
    }

    /// All ranks share the images, after they have compared their replicas.
    fn evaluate(&self, images: &Dataset) -> Result<BatchSums, Error> {
        // With local batch norms the ranks have different buffers.
        info_span!(target: COMMUNICATION, "share buffers").in_scope(|| {
            let mut buffers = self.weights().buffers.iter();
            buffers.try_for_each(|named| receive(&self.rank, &named.tensor))
        })?;
        replicas::compare::<Error>(&*self.rank, || self.weights().snapshot())?;
        let (dtype, device) = (self.network.dtype(), self.network.device());
        evaluate_together(&*self.rank, |part| {
            Ok(evaluate_part(&self.network, images, part, dtype, device)?)
        })
    }

    fn weights(&self) -> &Weights {
        self.network.weights()
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        Some(&self.rank)
    }
}

/// Overwrites a tensor with rank 0's. All ranks call this together.
pub(crate) fn receive(rank: &SharedCommunicator, tensor: &Tensor) -> Result<(), Error> {
    let received = rank.broadcast(&move_view(&tensor.detach(), rank.device())?, 0)?;
    if rank.rank() > 0 {
        overwrite(tensor, &received)?;
    }
    Ok(())
}
// ANCHOR_END: evaluate

/// For a training loop of your own.
impl<M: ModuleT> Ddp<M> {
    // ANCHOR: forward
    /// Computes the logits of this rank's images, in training. A rank without images calls [`loss`](Self::loss).
    pub fn forward(&self, images: &Tensor) -> Result<Tensor, Error> {
        if images.dims().first() == Some(&0) {
            let text = "there are no images here, and this rank has to take part all the same: see Ddp::loss";
            return Err(candle_core::Error::Msg(text.to_owned()).into());
        }
        Ok(self.network.forward_training(images)?)
    }

    /// Computes a loss of this rank's images, in training. `of` makes the loss from the logits, as a sum over the samples. A
    /// rank without images does not call `of`: the loss is 0, and so are all gradients.
    pub fn loss(
        &self,
        images: &Tensor,
        of: impl FnOnce(&Tensor) -> candle_core::Result<Tensor>,
    ) -> Result<Tensor, Error> {
        let is_empty = images.dims().first() == Some(&0);
        Ok(if is_empty { empty_loss(&self.network, images)? } else { of(&self.forward(images)?)? })
    }

    /// Computes the gradients of the losses of all ranks, summed over all ranks and over the losses that were
    /// [`accumulate`](Self::accumulate)d before. All ranks call this together. Fails when a parameter has no gradient on
    /// this rank, or another rank stops or stalls.
    pub fn gradients(&self, loss: &Tensor) -> Result<Vec<Tensor>, Error> {
        locked(self.backward_pass(loss, true)?).finish()
    }

    /// Runs a backward pass. Without `synchronise`, the gradients stay those of this rank.
    fn backward_pass(&self, loss: &Tensor, synchronise: bool) -> Result<&Mutex<Reducer>, Error> {
        let Reduce::Buckets(reducer) = &self.reduce else {
            let text = "in reproducible mode gradients are summed by shard, of whole batches";
            return Err(candle_core::Error::Msg(text.to_owned()).into());
        };
        Reducer::backward(reducer, loss, synchronise)?;
        Ok(reducer)
    }
    // ANCHOR_END: forward

    // ANCHOR: accumulate
    /// Adds the gradients of this rank's loss to the gradients of the next call of [`gradients`](Self::gradients). Sends
    /// nothing, like PyTorch's `no_sync`. Fails when a parameter has no gradient on this rank.
    pub fn accumulate(&self, loss: &Tensor) -> Result<(), Error> {
        Ok(locked(self.backward_pass(loss, false)?).check()?)
    }
    // ANCHOR_END: accumulate
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};
    use datasets::synthetic::dataset;
    use datasets::{PIXELS, Split};
    use devices::DevicePlan;
    use ops::update::overwrite;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};

    use params_and_allreduce::communicator::Communicator as _;
    use single_gpu::evaluate::Part;

    use super::*;
    use crate::lenet::LeNet;

    #[test]
    fn all_ranks_answer_for_a_part_of_the_images_and_together_as_one() {
        let plan = DevicePlan::slices(3).unwrap();
        // Five batches of 256, the last of them shorter.
        let images = dataset(Split::Test, 1100);
        let network = Network::new(1, DType::F64, &Device::Cpu, |vb, _| LeNet::new(vb)).unwrap();
        let expected = network.evaluate(&images).unwrap();
        let evaluated = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let replica = network.replica(rank.device())?;
            let alone = Part { nth: rank.rank(), of: 3 };
            let model = Ddp::new(replica, rank, Reduction::default())?;
            let samples =
                evaluate_part(model.network(), &images, alone, DType::F64, rank.device())?;
            let samples = samples.total().samples;
            Ok::<_, Error>((model.evaluate(&images)?, samples))
        });
        let evaluated = evaluated.unwrap();
        let (all, samples): (Vec<_>, Vec<_>) = evaluated.into_iter().unzip();
        assert_eq!(all, [expected; 3]);
        assert_eq!(samples, [512, 256 + 76, 256]);
    }

    #[test]
    fn a_replica_that_went_its_own_way_is_found_before_an_evaluation() {
        let plan = DevicePlan::slices(3).unwrap();
        let images = Dataset::new(vec![[0; PIXELS]; 2], vec![0, 1]).unwrap();
        let network = Network::new(1, DType::F32, &Device::Cpu, |vb, _| LeNet::new(vb)).unwrap();
        let failure = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let model = Ddp::new(network.replica(rank.device())?, rank, Reduction::default())?;
            assert_eq!(model.evaluate(&images)?.samples, 2);
            if rank.rank() == 2 {
                // In the last places of some weights.
                let weight = &model.weights().parameters[0].tensor;
                overwrite(weight, &weight.detach().affine(1.0 + 2e-7, 0.0)?)?;
            }
            model.evaluate(&images)
        });
        let told = failure.unwrap_err().to_string();
        assert!(told.contains("rank 0 failed: replica 2 holds weights "), "{told}");
    }

    #[test]
    fn frozen_parameters_are_neither_sent_nor_updated_and_frozen_alike() {
        let plan = DevicePlan::slices(2).unwrap();
        let network = || Network::new(1, DType::F32, &Device::Cpu, |vb, _| LeNet::new(vb)).unwrap();
        let frozen = network().freeze(|name| name.ends_with('1')).unwrap();
        let numbers = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let model = Ddp::new(frozen.replica(rank.device())?, rank, Reduction::default())?;
            let image = Tensor::ones((1, 1, 28, 28), DType::F32, rank.device())?;
            Ok::<_, Error>(model.gradients(&model.forward(&image)?.sum_all()?)?.len())
        });
        let whole = network().weights().parameters.len();
        assert_eq!(numbers.unwrap(), [whole - 2; 2]);
        let failure = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let network = network();
            let network = match rank.rank() {
                0 => network,
                _ => network.freeze(|name| name == "b3")?,
            };
            Ddp::new(network, rank, Reduction::default()).map(drop)
        });
        let told = failure.unwrap_err().to_string();
        let expected = "rank 1 has frozen parameters b3, rank 0 has none";
        assert!(told.contains(expected), "{told}");
    }

    #[test]
    fn a_network_that_is_wrapped_says_who_has_its_gradients() {
        let plan = DevicePlan::slices(2).unwrap();
        let network = Network::new(1, DType::F32, &Device::Cpu, |vb, _| LeNet::new(vb)).unwrap();
        let told = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let model = Ddp::new(network.replica(rank.device())?, rank, Reduction::default())?;
            let image = Tensor::zeros((1, 1, 28, 28), DType::F32, rank.device())?;
            let loss = model.forward(&image)?.sum_all()?;
            Ok::<_, Error>(model.network().gradients(&loss).unwrap_err().to_string())
        });
        for told in told.unwrap() {
            assert!(told.contains("this network is wrapped"), "{told}");
        }
    }
}

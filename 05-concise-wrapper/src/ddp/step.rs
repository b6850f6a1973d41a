//! A step's loss and gradients, over all ranks.

use candle_core::ModuleT;
use datasets::Dataset;
use harness::records::BatchSums;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;
use scratch_data_parallel::evaluate::evaluate_together;
use scratch_data_parallel::reproducible::tree_sums;
use scratch_data_parallel::{FixedTree, TreeSum};
use scratch_data_parallel::{allreduce_sums, replicas};
use single_gpu::evaluate::{Part, SumsByBatch, evaluate_part};
use single_gpu::train::Step;

use super::blame::blame;
use super::{Ddp, Way};
use crate::model::{Model, gradients_of, loss_of};
use crate::weights::Weights;
use crate::{Error, Precision};
use split_batch::loader::{LocalBatch, Shards};

impl<M: ModuleT> Ddp<M> {
    /// Loss and correct answers of all ranks' shards together.
    pub(super) fn sums_of_all(&self, sums: &[BatchSums]) -> Result<BatchSums, Error> {
        let all = match &self.way {
            Way::Tree(tree) => tree_sums(&*self.rank, sums, tree)?,
            Way::Buckets(_) => allreduce_sums(&*self.rank, sums[0], Algorithm::OneShot)?,
        };
        if !all.loss.is_finite() {
            blame(&self.rank, sums)?;
        }
        Ok(all)
    }

    /// This rank's replica on a part of these images, whatever the others hold.
    pub(super) fn evaluate_alone(
        &self,
        images: &Dataset,
        part: Part,
    ) -> Result<SumsByBatch, Error> {
        let (dtype, device) = (self.network.dtype(), self.network.device());
        Ok(evaluate_part(&self.network, images, part, dtype, device)?)
    }

    /// A step's backward in reproducible mode: shard by shard, then along the tree.
    // ANCHOR: by_shard
    fn backward_by_shard(&self, share: &LocalBatch, tree: &FixedTree) -> Result<Step, Error> {
        let (mut sum, mut unread) = (TreeSum::new(*tree), Vec::new());
        for (number, shard) in share.shards.iter().enumerate() {
            self.network.norms().shard(number);
            let (loss, seen) = loss_of(&self.network, shard)?;
            let leaf = tree.held_by(self.rank.rank()).start + number;
            sum.add(leaf, gradients_of(&self.network, &loss)?)?;
            unread.push(seen);
        }
        let gradients = sum.total(&*self.rank)?;
        self.network.norms().fold(&*self.rank, tree)?;
        let sums = unread.into_iter().map(|seen| seen.read());
        let sums = sums.collect::<candle_core::Result<Vec<_>>>()?;
        Ok(Step { sums: self.sums_of_all(&sums)?, gradients })
    }
    // ANCHOR_END: by_shard
}

impl<M: ModuleT> Model for Ddp<M> {
    fn hosts(&self) -> Shards {
        let (rank, of) = (self.rank.rank(), self.rank.world_size());
        match &self.way {
            Way::Buckets(_) => Shards { held: rank..rank + 1, of },
            Way::Tree(tree) => Shards { held: tree.held_by(rank), of: tree.leaves() },
        }
    }

    fn backward(&self, share: &LocalBatch) -> Result<Step, Error> {
        if let Way::Tree(tree) = &self.way {
            return self.backward_by_shard(share, tree);
        }
        let (loss, unread) = loss_of(&self.network, &share.shards[0])?;
        let gradients = self.gradients(&loss)?;
        Ok(Step { sums: self.sums_of_all(&[unread.read()?])?, gradients })
    }

    fn precision(&self) -> Precision {
        self.network.precision()
    }

    fn weights(&self) -> &Weights {
        self.network.weights()
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        Some(&self.rank)
    }

    /// All ranks share it, after their replicas were found to be equal; rank 0 gets the result.
    fn evaluate(&self, images: &Dataset) -> Result<Option<BatchSums>, Error> {
        self.share_buffers()?;
        replicas::compare::<Error>(&*self.rank, || self.weights().snapshot())?;
        evaluate_together(&*self.rank, |part| self.evaluate_alone(images, part))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};
    use datasets::synthetic::dataset;
    use datasets::{PIXELS, Split};
    use devices::DevicePlan;
    use ops::parameters::overwrite;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};

    use params_and_allreduce::communicator::Communicator as _;

    use super::*;
    use crate::Network;
    use crate::ddp::Reduction;
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
            let samples = model.evaluate_alone(&images, alone)?.total().samples;
            Ok::<_, Error>((model.evaluate(&images)?, samples))
        });
        let evaluated = evaluated.unwrap();
        let (all, samples): (Vec<_>, Vec<_>) = evaluated.into_iter().unzip();
        assert_eq!(all, [expected, None, None]);
        assert_eq!(samples, [512, 256 + 76, 256]);
    }

    #[test]
    fn a_replica_that_went_its_own_way_is_found_before_an_evaluation() {
        let plan = DevicePlan::slices(3).unwrap();
        let images = Dataset::new(vec![[0; PIXELS]; 2], vec![0, 1]).unwrap();
        let network = Network::new(1, DType::F32, &Device::Cpu, |vb, _| LeNet::new(vb)).unwrap();
        let failure = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let model = Ddp::new(network.replica(rank.device())?, rank, Reduction::default())?;
            assert_eq!(model.evaluate(&images)?.is_some(), rank.rank() == 0);
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

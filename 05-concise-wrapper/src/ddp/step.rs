//! A step's loss and gradients, over all ranks.

use candle_core::{ModuleT, Tensor};
use params_and_allreduce::all_reduce::FixedTree;
use params_and_allreduce::communicator::{Communicator as _, SharedCommunicator};
use params_and_allreduce::{Algorithm, allreduce};
use single_gpu::data::Dataset;
use single_gpu::evaluate::evaluate;
use single_gpu::train::{BatchSums, Step};

use super::blame::blame;
use super::{Ddp, Way};
use crate::Error;
use crate::model::{Hosts, Model, gradients_of, loss_of};
use crate::shares::Share;
use crate::weights::Weights;

impl<M: ModuleT> Ddp<M> {
    /// Loss and correct answers of all ranks' shards together.
    pub(super) fn sums_of_all(&self, sums: &[BatchSums]) -> Result<BatchSums, Error> {
        let tensors = sums.iter().map(|sums| sums.to_tensor(self.rank.device()));
        let tensors = tensors.collect::<candle_core::Result<Vec<_>>>()?;
        let all = match &self.way {
            Way::Tree(tree) => tree.sum(&self.rank, &tensors)?,
            Way::Buckets(_) => allreduce(&self.rank, &tensors[0], Algorithm::OneShot)?,
        };
        let all = BatchSums::from_tensor(&all)?;
        if !all.loss.is_finite() {
            blame(&self.rank, sums)?;
        }
        Ok(all)
    }

    /// A step's backward in reproducible mode: shard by shard, then along the tree.
    // ANCHOR: by_shard
    fn backward_by_shard(&self, share: &Share, tree: &FixedTree) -> Result<Step, Error> {
        let (mut of_shards, mut sums) = (Vec::new(), Vec::new());
        for (number, shard) in share.shards.iter().enumerate() {
            self.network.norms().shard(number);
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

//! The field's real bugs, in a wrapped model: stage 4's, where a wrapper makes them easier.
//!
//! A loop that trains the network inside the wrapper never synchronises, and nothing complains. Bugs in what
//! each rank's loop is told ([`Breakage::options`]) do not get so far: ranks compare that before they train.

use std::cell::Cell;

use candle_core::{ModuleT, Tensor};
use datasets::Dataset;
use harness::records::BatchSums;
use ops::parameters::overwrite;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;
use scratch_data_parallel::breakage::{Breakage, lone_broadcast};
use single_gpu::evaluate::evaluate;
use single_gpu::train::Step;

use super::{Ddp, receive_buffers};
use crate::model::Model;
use crate::weights::Weights;
use crate::{Error, Network, Precision};
use split_batch::loader::{LocalBatch, Shards};

/// A [`Ddp`] model, broken on purpose.
pub struct Broken<M> {
    ddp: Ddp<M>,
    breakage: Breakage,
    /// The network as if it had never been wrapped, where that is the bug: it is trained in place of the wrapped one.
    unwrapped: Option<Network<M>>,
    updated: Cell<bool>,
}

impl<M: ModuleT> Broken<M> {
    /// Breaks a model; all ranks have to, in the same way.
    ///
    /// # Errors
    ///
    /// When there is no memory for a second replica.
    pub fn new(ddp: Ddp<M>, breakage: Breakage) -> Result<Self, Error> {
        let unwrapped = match breakage {
            Breakage::SkipAllreduce | Breakage::ReduceParams => {
                let network = ddp.network.replica(ddp.rank.device())?;
                network.norms().share_as(ddp.network.norms());
                Some(network)
            }
            _ => None,
        };
        Ok(Self { ddp, breakage, unwrapped, updated: Cell::new(false) })
    }

    /// What the loop trains.
    fn trained(&self) -> &Network<M> {
        self.unwrapped.as_ref().unwrap_or(&self.ddp.network)
    }

    /// This rank's gradients alone.
    fn backward_unwrapped(&self, network: &Network<M>, share: &LocalBatch) -> Result<Step, Error> {
        // What should have been done to the gradients is done to what they have changed.
        if self.breakage == Breakage::ReduceParams && self.updated.replace(true) {
            self.sum_parameters()?;
        }
        let step = network.backward(share)?;
        let sums = self.ddp.sums_of_all(&[step.sums])?;
        Ok(Step { sums, ..step })
    }

    fn sum_parameters(&self) -> Result<(), Error> {
        for named in &self.weights().parameters {
            let sum = self.ddp.rank.all_reduce(&named.tensor.detach(), Algorithm::Ring)?;
            overwrite(&named.tensor, &sum)?;
        }
        Ok(())
    }
}

impl<M: ModuleT> Model for Broken<M> {
    fn hosts(&self) -> Shards {
        match self.breakage {
            Breakage::SameShard => Shards { held: 0..1, ..self.ddp.hosts() },
            _ => self.ddp.hosts(),
        }
    }

    fn backward(&self, share: &LocalBatch) -> Result<Step, Error> {
        if let Some(network) = &self.unwrapped {
            return self.backward_unwrapped(network, share);
        }
        match self.breakage {
            Breakage::LoneBroadcast => {
                lone_broadcast(&*self.ddp.rank)?;
                self.ddp.backward(share)
            }
            Breakage::MeanForSum => {
                let Step { sums, gradients } = self.ddp.backward(share)?;
                let ranks = self.ddp.rank.world_size() as f64;
                let means = gradients.iter().map(|sum: &Tensor| sum / ranks);
                Ok(Step { sums, gradients: means.collect::<candle_core::Result<_>>()? })
            }
            // What is wrong is what the loop is told, or was done above.
            _ => self.ddp.backward(share),
        }
    }

    fn precision(&self) -> Precision {
        self.ddp.precision()
    }

    fn weights(&self) -> &Weights {
        self.trained().weights()
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        self.ddp.rank()
    }

    fn evaluate(&self, images: &Dataset) -> Result<Option<BatchSums>, Error> {
        let network = self.trained();
        receive_buffers(&self.ddp.rank, network.weights())?;
        // Replicas may differ: rank 0 answers for itself.
        let alone = || Ok(evaluate(network, images, network.dtype(), network.device())?);
        (self.ddp.rank.rank() == 0).then(alone).transpose()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use datasets::Split;
    use datasets::synthetic::dataset;
    use devices::DevicePlan;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};

    use params_and_allreduce::communicator::Communicator as _;

    use super::*;
    use crate::ddp::Reduction;
    use crate::resnet::ResNet18;

    /// What the first batch norm's running mean is after a step on other images on each of two ranks.
    fn running_means(breakage: Breakage, synchronised: bool) -> Vec<Vec<f32>> {
        let plan = DevicePlan::slices(2).unwrap();
        let images = dataset(Split::Train, 4);
        let network =
            Network::new(1, DType::F32, &Device::Cpu, |vb, norms| ResNet18::new(2, norms, vb));
        let network = network.unwrap();
        let means = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let mine = [2 * rank.rank() as u32, 2 * rank.rank() as u32 + 1];
            let model = Ddp::new(network.replica(rank.device())?, rank, Reduction::default())?;
            let model = if synchronised { model.synchronise_norms()? } else { model };
            let model = Broken::new(model, breakage)?;
            model.backward(&LocalBatch {
                samples: 4,
                shards: vec![images.batch(&mine, DType::F32)?],
            })?;
            Ok::<_, Error>(model.weights().buffers[0].tensor.to_vec1()?)
        });
        means.unwrap()
    }

    #[test]
    fn a_network_that_was_never_wrapped_keeps_what_its_batch_norms_saw() {
        for breakage in [Breakage::SkipAllreduce, Breakage::ReduceParams] {
            let local = running_means(breakage, false);
            assert!(local.iter().flatten().all(|mean| *mean != 0.0), "{breakage:?}: {local:?}");
            assert_ne!(local[0], local[1], "{breakage:?}");
            let synchronised = running_means(breakage, true);
            assert_eq!(synchronised[0], synchronised[1], "{breakage:?}");
            assert_ne!(synchronised[0], local[0], "{breakage:?}");
        }
    }
}

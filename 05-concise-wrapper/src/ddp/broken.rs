//! The field's real bugs, in a wrapped model: stage 4's, where a wrapper makes them easier.
//!
//! A loop that trains the network inside the wrapper never synchronises, and nothing complains. Bugs in what
//! each rank's loop is told ([`Breakage::options`]) do not get so far: ranks compare that before they train.

use std::cell::Cell;

use candle_core::{ModuleT, Tensor};
use params_and_allreduce::communicator::{Communicator as _, SharedCommunicator};
use params_and_allreduce::{Algorithm, allreduce};
use scratch_data_parallel::breakage::{Breakage, lone_broadcast};
use single_gpu::data::Dataset;
use single_gpu::evaluate::Part;
use single_gpu::parameters::overwrite;
use single_gpu::train::{BatchSums, Step};

use super::Ddp;
use crate::model::{Hosts, Model};
use crate::shares::Share;
use crate::weights::Weights;
use crate::{Error, Precision};

/// A [`Ddp`] model, broken on purpose.
pub struct Broken<M> {
    ddp: Ddp<M>,
    breakage: Breakage,
    updated: Cell<bool>,
}

impl<M: ModuleT> Broken<M> {
    /// Breaks a model; all ranks have to, in the same way.
    pub fn new(ddp: Ddp<M>, breakage: Breakage) -> Self {
        Self { ddp, breakage, updated: Cell::new(false) }
    }

    /// This rank's gradients alone, as if the network had never been wrapped.
    fn unwrapped(&self, share: &Share) -> Result<Step, Error> {
        let replica = self.ddp.network.replica(self.ddp.rank.device())?;
        let step = replica.backward(share)?;
        let sums = self.ddp.sums_of_all(&[step.sums])?;
        Ok(Step { sums, ..step })
    }

    fn sum_parameters(&self) -> Result<(), Error> {
        for named in &self.weights().parameters {
            let sum = allreduce(&self.ddp.rank, &named.tensor.detach(), Algorithm::Ring)?;
            overwrite(&named.tensor, &sum)?;
        }
        Ok(())
    }
}

impl<M: ModuleT> Model for Broken<M> {
    fn hosts(&self) -> Hosts {
        match self.breakage {
            Breakage::SameShard => Hosts { shards: 0..1, ..self.ddp.hosts() },
            _ => self.ddp.hosts(),
        }
    }

    fn backward(&self, share: &Share) -> Result<Step, Error> {
        match self.breakage {
            Breakage::SameShard | Breakage::OwnShuffle | Breakage::LeaveEarly => {
                self.ddp.backward(share)
            }
            Breakage::LoneBroadcast => {
                lone_broadcast(&self.ddp.rank)?;
                self.ddp.backward(share)
            }
            Breakage::SkipAllreduce => self.unwrapped(share),
            Breakage::MeanForSum => {
                let Step { sums, gradients } = self.ddp.backward(share)?;
                let ranks = self.ddp.rank.world_size() as f64;
                let means = gradients.iter().map(|sum: &Tensor| sum / ranks);
                Ok(Step { sums, gradients: means.collect::<candle_core::Result<_>>()? })
            }
            Breakage::ReduceParams => {
                // What should have been done to the gradients is done to what they have changed.
                if self.updated.replace(true) {
                    self.sum_parameters()?;
                }
                self.unwrapped(share)
            }
        }
    }

    fn precision(&self) -> Precision {
        self.ddp.precision()
    }

    fn weights(&self) -> &Weights {
        self.ddp.weights()
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        self.ddp.rank()
    }

    fn evaluate(&self, images: &Dataset) -> Result<Option<BatchSums>, Error> {
        self.ddp.share_buffers()?;
        // Replicas may differ: rank 0 answers for itself.
        let alone = || Ok(self.ddp.evaluate_alone(images, Part::WHOLE)?.total());
        (self.ddp.rank.rank() == 0).then(alone).transpose()
    }
}

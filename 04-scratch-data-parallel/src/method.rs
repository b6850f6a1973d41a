//! How the gradients of several devices become one update.

use std::fmt;

use datasets::Batch;
use harness::cli::name_of;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::Communicator;
use single_gpu::lenet::Lenet;
use single_gpu::train::Step;

use crate::breakage::{Breakage, train_batch_broken};
use crate::{Error, train_batch, train_batch_reproducible};

/// What a run does between backward and update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Every device's gradients are added up.
    AllReduce(Algorithm),
    /// The gradients of a fixed number of shards are added up along a fixed tree: the same bits on any
    /// number of devices.
    Reproducible {
        /// The number of shards.
        shards: usize,
    },
    /// A bug on purpose.
    Broken(Breakage, Algorithm),
}

impl Method {
    /// The algorithm of its all-reduces, if it has one.
    pub fn algorithm(&self) -> Option<Algorithm> {
        match *self {
            Self::AllReduce(algorithm) | Self::Broken(_, algorithm) => Some(algorithm),
            Self::Reproducible { .. } => None,
        }
    }

    /// The bug, if it is one.
    pub fn breakage(&self) -> Option<Breakage> {
        match *self {
            Self::Broken(breakage, _) => Some(breakage),
            _ => None,
        }
    }

    /// One step by this method; all ranks call it together, with the same batch.
    ///
    /// # Errors
    ///
    /// Those of the step.
    pub fn step(
        &self,
        rank: &(impl Communicator + ?Sized),
        model: &Lenet,
        batch: &Batch,
        learning_rate: f64,
    ) -> Result<Step, Error> {
        match *self {
            Self::AllReduce(algorithm) => train_batch(rank, model, batch, learning_rate, algorithm),
            Self::Reproducible { shards } => {
                train_batch_reproducible(rank, model, batch, learning_rate, shards)
            }
            Self::Broken(breakage, algorithm) => {
                train_batch_broken(rank, model, batch, learning_rate, algorithm, breakage)
            }
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllReduce(algorithm) => write!(f, "all-reduce: {algorithm}"),
            Self::Reproducible { shards } => write!(f, "reproducible: {shards} shards"),
            Self::Broken(breakage, algorithm) => {
                let name = name_of(breakage);
                write!(f, "broken on purpose: {name} (all-reduce: {algorithm})")
            }
        }
    }
}

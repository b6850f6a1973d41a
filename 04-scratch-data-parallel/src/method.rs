//! How the gradients of several devices become one update.

use std::fmt;

use std::sync::Arc;

use harness::cli::name_of;
use harness::records::TrainOptions;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, SharedCommunicator};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, Rank};

use crate::Error;
use crate::breakage::Breakage;

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

    /// Returns the communicator of a rank that has the method's all-reduce.
    ///
    /// # Errors
    ///
    /// When there is no native all-reduce, or NCCL cannot connect the ranks.
    pub(crate) fn communicator(&self, rank: &Rank) -> Result<SharedCommunicator, Error> {
        let rank: SharedCommunicator = Arc::new(rank.clone());
        match self.algorithm() {
            Some(Algorithm::Native) => Ok(backends::native(rank, DEFAULT_TIMEOUT)?),
            _ => Ok(rank),
        }
    }

    /// Returns the options of a rank's loop. All ranks have the same, unless a bug on purpose changes them.
    pub(crate) fn options(
        &self,
        options: &TrainOptions,
        rank: &(impl Communicator + ?Sized),
    ) -> TrainOptions {
        match self.breakage() {
            Some(breakage) => breakage.options(*options, rank.rank(), rank.world_size()),
            None => *options,
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

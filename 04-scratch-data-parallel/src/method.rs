//! The ways to turn the gradients of several devices into one update.

use std::fmt;

use harness::cli::name_of;
use harness::records::TrainOptions;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, SharedCommunicator};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, Rank};
use split_batch::loader::Shards;

use crate::breakage::Breakage;
use crate::{Error, FixedTree};

// ANCHOR: method
/// The kind of training step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Add up the gradients of all devices.
    AllReduce(Algorithm),
    /// Add up the gradients of a fixed number of shards along a fixed tree. The bits are the same on any number of devices.
    Reproducible {
        /// The number of shards.
        shards: usize,
    },
    /// Train with a deliberate bug, in the step or outside of it.
    Broken(Breakage, Algorithm),
}
// ANCHOR_END: method

impl Method {
    /// Returns the algorithm of the all-reduces. The reproducible mode has none.
    pub fn algorithm(&self) -> Option<Algorithm> {
        match *self {
            Self::AllReduce(algorithm) | Self::Broken(_, algorithm) => Some(algorithm),
            Self::Reproducible { .. } => None,
        }
    }

    /// Returns the deliberate bug, if there is one.
    pub fn breakage(&self) -> Option<Breakage> {
        match *self {
            Self::Broken(breakage, _) => Some(breakage),
            _ => None,
        }
    }

    /// Returns the communicator of a rank that has the method's all-reduce.
    pub(crate) fn communicator(&self, rank: &Rank) -> SharedCommunicator {
        match self.algorithm() {
            Some(Algorithm::Native) => backends::native(rank.into(), DEFAULT_TIMEOUT),
            _ => rank.into(),
        }
    }

    /// Returns the shards of a rank. Each rank has one shard of every batch, but several in the reproducible mode. Fails
    /// when there are fewer shards than ranks.
    pub(crate) fn shards(&self, rank: &(impl Communicator + ?Sized)) -> Result<Shards, Error> {
        let (me, of) = (rank.rank(), rank.world_size());
        Ok(match *self {
            Self::Reproducible { shards } => {
                Shards { held: FixedTree::new(shards, of)?.held_by(me), of: shards }
            }
            Self::Broken(Breakage::SameShard, _) => Shards { held: 0..1, of },
            _ => Shards { held: me..me + 1, of },
        })
    }

    /// Returns the options of a rank's loop. All ranks have the same, unless a deliberate bug changes them.
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

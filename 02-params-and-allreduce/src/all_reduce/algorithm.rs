//! The ways to add up, by name.

use std::fmt;

use clap::ValueEnum;
use devices::DevicePlan;

use crate::communicator::{Engine, Error};
use crate::mpirun;

/// A way to make an all-reduce.
///
/// The default is the one that adds up LeNet's eight gradients soonest between two slices of a CPU: with a
/// core for each, in less than half the time of any other (33 µs against 79 on an AMD EPYC (Zen 4);
/// `cargo bench -p params-and-allreduce -- LeNet`). It makes the whole sum on every rank, so where ranks
/// have to share cores, its lead is small, and gone with large tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Algorithm {
    /// Everyone gets all tensors and adds them up
    #[default]
    OneShot,
    /// Gather to the first rank, add, broadcast back
    Naive,
    /// Add up along a binomial tree, broadcast down it
    Tree,
    /// Reduce-scatter, then all-gather, around a ring
    Ring,
    /// NVIDIA's library: one GPU for each rank
    Nccl,
    /// The MPI library that connects the processes
    Mpi,
}

/// What ranks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// Threads of one process. What else `mpirun` may have started takes no part.
    Threads,
    /// Processes, each one rank.
    Processes,
}

impl Algorithm {
    /// Those that are written here, over `send` and `recv`: they run on every communicator.
    pub const OURS: [Self; 4] = [Self::OneShot, Self::Naive, Self::Tree, Self::Ring];

    /// Whether ranks of this kind can run the algorithm on these devices, asked before any of them is opened.
    ///
    /// # Errors
    ///
    /// With what is missing.
    pub fn check(self, plan: &DevicePlan, ranks: Ranks) -> Result<(), Error> {
        let (engine, possible) = match self {
            Self::Nccl => (Engine::Nccl, cfg!(feature = "nccl") && plan.has_a_gpu_each()),
            Self::Mpi => {
                let connected = ranks == Ranks::Processes && mpirun::world_size().is_some();
                (Engine::Mpi, cfg!(feature = "mpi") && connected)
            }
            _ => return Ok(()),
        };
        if possible { Ok(()) } else { Err(Error::NoNativeAllReduce { engine }) }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneShot => "one-shot",
            Self::Naive => "naive",
            Self::Tree => "tree",
            Self::Ring => "ring",
            Self::Nccl => "nccl",
            Self::Mpi => "mpi",
        })
    }
}

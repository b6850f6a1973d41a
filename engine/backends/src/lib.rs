//! MPI and NCCL behind stage 2's [`Communicator`](params_and_allreduce::communicator::Communicator).
//!
//! The feature `mpi` adds ranks as processes, on one machine or many. The feature `nccl` adds NVIDIA's own collectives, between
//! GPUs. The program `all-reduce-table` uses both.

#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "nccl")]
pub mod nccl;

use std::time::Duration;

use devices::DevicePlan;
use harness::launcher;
use params_and_allreduce::Algorithm;
use params_and_allreduce::all_reduce::no_native;
use params_and_allreduce::communicator::{Error, SharedCommunicator};

/// The kind of the ranks of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// Threads of one process.
    Threads,
    /// Processes, each one rank.
    Processes,
}

/// Checks, before any device is opened, that ranks of this kind can run the algorithm on these devices.
///
/// # Errors
///
/// When a native all-reduce is wanted and nothing has one. The message names the requirements.
pub fn check(algorithm: Algorithm, plan: &DevicePlan, ranks: Ranks) -> Result<(), Error> {
    let nccl = cfg!(feature = "nccl") && plan.has_a_gpu_each();
    let mpi = ranks == Ranks::Processes && launcher::started().is_some() && cfg!(feature = "mpi");
    if algorithm != Algorithm::Native || nccl || mpi { Ok(()) } else { Err(no_native()) }
}

/// Returns the same rank with NCCL's all-reduce. All ranks call this together, each with its own GPU, and pass a barrier before
/// one of them drops the communicator: a slower rank may still read this rank's memory.
///
/// # Errors
///
/// When this build has no NCCL, when a rank's device is no GPU or two ranks share one, or when NCCL cannot connect them.
pub fn native(rank: SharedCommunicator, timeout: Duration) -> Result<SharedCommunicator, Error> {
    #[cfg(feature = "nccl")]
    return Ok(std::sync::Arc::new(nccl::NcclRank::join(rank, timeout)?));
    #[cfg(not(feature = "nccl"))]
    {
        let _ = (rank, timeout);
        Err(no_native())
    }
}

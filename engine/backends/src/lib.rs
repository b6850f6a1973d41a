//! MPI and NCCL behind stage 2's [`Communicator`](params_and_allreduce::communicator::Communicator), and the ranks of a program.
//!
//! | module | content |
//! | --- | --- |
//! | [`launch`] | ranks as threads, or as processes of a launcher |
//! | [`reduction`] | the flags of an all-reduce of gradients |
//! | [`text`] | values that ranks exchange as JSON |
//! | [`slow_link`] | a link between threads that is slower than memory |
//! | `mpi` | the feature `mpi`: ranks as processes, on one machine or many |
//! | `nccl` | the feature `nccl`: NVIDIA's own collectives, between GPUs |
//!
//! The program `all-reduce-table` measures MPI and NCCL.

pub mod launch;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "nccl")]
pub mod nccl;
pub mod reduction;
pub mod slow_link;
pub mod text;

use std::num::NonZeroUsize;
use std::time::Duration;

use devices::DevicePlan;
use harness::launcher;
use params_and_allreduce::Algorithm;
use params_and_allreduce::all_reduce::no_native;
use params_and_allreduce::communicator::{Error, SharedCommunicator};

/// The place of this process among those that were started together.
pub struct Processes {
    /// This process's end of their connections.
    pub comm: SharedCommunicator,
    /// The number of this process on its machine, from 0.
    pub local_rank: usize,
    /// The number of devices that this machine needs.
    pub devices_here: usize,
    /// The number of cores of this process: those that it shares with other processes of this machine are divided between
    /// them. `None` with NCCL alone.
    pub cores: Option<NonZeroUsize>,
}

/// Checks, before any device is opened, that ranks can run the algorithm on these devices. Fails when a native all-reduce is
/// wanted and nothing has one. The message names the requirements.
pub fn check(algorithm: Algorithm, plan: &DevicePlan) -> Result<(), Error> {
    let nccl = cfg!(feature = "nccl") && plan.has_a_gpu_each();
    let mpi = cfg!(feature = "mpi") && launcher::started().is_some_and(|it| it.processes > 1);
    if algorithm != Algorithm::Native || nccl || mpi { Ok(()) } else { Err(no_native()) }
}

/// Returns the rank with NCCL's all-reduce, if this build has NCCL and the rank has messages and a GPU. Otherwise returns the
/// rank. NCCL connects the ranks at the first native all-reduce of a connection. All ranks pass a barrier before one of them
/// drops the communicator: a slower rank may still read this rank's memory.
pub fn native(rank: SharedCommunicator, timeout: Duration) -> SharedCommunicator {
    #[cfg(feature = "nccl")]
    if rank.has_messages() && rank.device().is_cuda() {
        return std::sync::Arc::new(nccl::NcclRank::new(rank, timeout));
    }
    let _ = timeout;
    rank
}

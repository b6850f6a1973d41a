//! MPI and NCCL behind stage 2's [`Communicator`](params_and_allreduce::communicator::Communicator), and the ranks of a program.

pub mod counted;
pub mod launch;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "nccl")]
pub mod nccl;
pub mod reduction;
pub mod slow_link;
pub mod text;

use std::fmt::Display;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use devices::{ComputeDevice, DevicePlan, DeviceSlot};
use harness::launcher;
use params_and_allreduce::Algorithm;
use params_and_allreduce::all_reduce::no_native;
use params_and_allreduce::communicator::{Error, SharedCommunicator};
use params_and_allreduce::thread::{Cause, attempt};

/// All processes that were started together, and the place of this process among them. Its end waits until the work of all
/// ranks is done.
pub struct Processes {
    /// This process's end of their connections.
    pub comm: SharedCommunicator,
    /// Whether two ranks can exchange messages. If not, there are only collectives of all ranks.
    pub has_messages: bool,
    /// The number of this process on its machine, from 0.
    pub local_rank: usize,
    /// The number of devices that this machine needs.
    pub devices_here: usize,
    /// The number of cores of this process: those that it shares with other processes of this machine are divided between
    /// them. `None` with NCCL alone.
    pub cores: Option<NonZeroUsize>,
    world: Box<dyn World>,
}

/// The library that connects the processes.
trait World {
    /// Opens this process's device. Returns the device, and the end of the connections that receives tensors there.
    fn open(&self, slot: DeviceSlot) -> Result<(Arc<ComputeDevice>, SharedCommunicator), Error>;

    /// Prints `rank R`, the number of this rank, and the reason, and ends the job with exit code 1.
    fn fail(&self, why: &str) -> !;
}

impl Processes {
    /// Runs `work` for this rank, on its device of the plan, which has this machine's devices, one for each process. If the work
    /// fails or panics, standard error gets a line `rank R failed: …`, and the job ends with exit code 1.
    pub fn run<R, E>(
        &self,
        plan: &DevicePlan,
        work: impl FnOnce(&ComputeDevice, SharedCommunicator) -> Result<R, E> + Send,
    ) -> R
    where
        R: Send,
        E: From<Error> + Display + Send,
    {
        let opened = self.world.open(plan.slots()[self.local_rank]);
        let opened = opened.map_err(|error| Cause::Error(E::from(error)));
        let run = |(device, comm): (Arc<_>, _)| attempt(&device, || work(&device, comm));
        opened.and_then(run).unwrap_or_else(|cause| self.world.fail(&cause.to_string()))
    }
}

/// Checks, before any device is opened, that ranks can run the algorithm on these devices. Fails when a native all-reduce is
/// wanted and nothing has one. The message names the requirements.
pub fn check(algorithm: Algorithm, plan: &DevicePlan) -> Result<(), Error> {
    let nccl = cfg!(feature = "nccl") && plan.has_a_gpu_each();
    let mpi = cfg!(feature = "mpi") && launcher::started().is_some_and(|it| it.processes > 1);
    if algorithm != Algorithm::Native || nccl || mpi { Ok(()) } else { Err(no_native()) }
}

/// Makes NCCL's all-reduce the native one of a rank that has messages, a GPU and other ranks, if this build has NCCL. NCCL
/// connects the ranks at the first native all-reduce of a connection. All ranks call `leave` before one of them drops the
/// communicator.
pub fn native(comm: SharedCommunicator, timeout: Duration) -> SharedCommunicator {
    #[cfg(feature = "nccl")]
    if comm.world_size() > 1 && comm.device().is_cuda() {
        return std::sync::Arc::new(nccl::NcclRank::new(comm, timeout));
    }
    let _ = timeout;
    comm
}

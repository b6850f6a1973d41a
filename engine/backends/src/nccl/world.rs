//! Processes that a launcher such as `torchrun` started, connected by NCCL and nothing else.
//!
//! NCCL connects the ranks that have the same identifier, which says where rank 0 listens. NCCL makes the identifier from an
//! address that all ranks know if its variable `NCCL_COMM_ID` is set. [`cli::arguments`](harness::cli::arguments) sets it.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use candle_core::{DType, Device, Shape, Tensor};
use cudarc::nccl::safe::Id;
use devices::{ComputeDevice, DeviceKind, DevicePlan, DeviceSlot, Handover};
use harness::cli::{UsageError, end_process};
use harness::launcher::Place;
use harness::lock::locked;
use params_and_allreduce::Algorithm;
use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator};

use super::{Connection, nccl};
use crate::{Processes, World as _};

/// What a process holds of NCCL.
struct World {
    device: Arc<ComputeDevice>,
    rank: Rank,
}

/// Connects this process with all others. All of them call [`prepare`](harness::cli::prepare) and then this, once. A rank
/// waits at most `timeout` for a collective, and for all ranks to come here. Fails when this process has no GPU, or NCCL
/// cannot connect it with all others in time.
pub fn connect(place: &Place, timeout: Duration) -> anyhow::Result<Processes> {
    let local_rank = place.local_rank;
    // NCCL does not know how many processes this machine has. Process n of a machine has GPU n.
    let devices_here = local_rank + 1;
    let plan = DevicePlan::new(DeviceKind::Cuda, devices_here, None)
        .map_err(|error| UsageError::new(format_args!("NCCL connects GPUs: {error}")))?;
    let too_few = format_args!(
        "LOCAL_RANK is {local_rank}, and there is no GPU of that number here: NCCL needs one for each process \
         (nvidia-smi -L)"
    );
    ensure!(plan.has_a_gpu_each(), UsageError::new(too_few));
    let connect = || {
        let device = Arc::new(plan.slots()[local_rank].open()?);
        let open = || {
            let id = Id::new().map_err(nccl)?;
            Connection::open(device.tensors(), (place.rank, place.world_size), id, timeout)
        };
        let connection = open()?;
        // Both listen at the same address, so the first has to be complete.
        connection.barrier()?;
        let rank = Rank { connection, background: open()? };
        Ok::<_, Error>(World { device, rank })
    };
    let world = Box::new(connect().with_context(|| format!("at {}", place.meeting))?);
    let comm = Arc::new(world.rank.clone());
    Ok(Processes { comm, has_messages: false, local_rank, devices_here, cores: None, world })
}

impl crate::World for World {
    fn open(&self, _: DeviceSlot) -> Result<(Arc<ComputeDevice>, SharedCommunicator), Error> {
        Ok((Arc::clone(&self.device), Arc::new(self.rank.clone())))
    }

    fn fail(&self, why: &str) -> ! {
        // The launcher ends the other processes.
        end_process(&format!("rank {} {why}", self.rank.rank()), || ())
    }
}

impl Drop for World {
    /// Waits until the work of all ranks is done: a slower rank may still read this rank's memory.
    fn drop(&mut self) {
        let connections = [&self.rank.connection, &self.rank.background];
        // A failure is reported elsewhere.
        if connections.iter().any(|it| locked(&it.orders).is_err()) {
            return;
        }
        let outcome = connections.iter().try_for_each(|it| it.barrier());
        outcome.unwrap_or_else(|error| self.fail(&format!("failed: {error}")));
        // NCCL sends a rank's last bytes after its work is done.
        thread::sleep(Duration::from_millis(100));
        connections.iter().for_each(|it| it.leave());
    }
}

/// One rank's end of a connection to all other ranks, for any thread. It has collectives, and no messages.
#[derive(Clone)]
struct Rank {
    connection: Connection,
    background: Connection,
}

fn no_messages<T>() -> Result<T, Error> {
    let text = "NCCL alone connects these ranks: it has collectives of all ranks, and no messages between two";
    Err(Error::Other(text.to_owned()))
}

impl Communicator for Rank {
    fn rank(&self) -> usize {
        self.connection.rank
    }

    fn world_size(&self) -> usize {
        self.connection.world_size
    }

    fn device(&self) -> &Device {
        &self.connection.device
    }

    fn send(&self, _to: usize, _tensor: &Tensor) -> Result<(), Error> {
        no_messages()
    }

    fn recv(&self, _from: usize, _shape: &Shape, _dtype: DType) -> Result<Tensor, Error> {
        no_messages()
    }

    fn background(&self) -> Result<SharedCommunicator, Error> {
        Ok(Arc::new(Self { connection: self.background.clone(), ..self.clone() }))
    }

    /// NCCL's all-reduce, whatever the algorithm.
    fn all_reduce(&self, tensor: &Tensor, _: Algorithm) -> Result<Tensor, Error> {
        self.connection.all_reduce(Handover::new(tensor)?)
    }

    /// Adds up by [`Algorithm::Native`] only. DDP tells by the algorithm that two threads of a rank may not add up at once.
    fn all_reduce_handed_over(&self, tensor: Handover, how: Algorithm) -> Result<Tensor, Error> {
        if how == Algorithm::Native { self.connection.all_reduce(tensor) } else { no_messages() }
    }

    fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Tensor, Error> {
        let (rank, world_size) = (self.rank(), self.world_size());
        if root >= world_size {
            return Err(Error::NoSuchRank { rank, other: root, world_size });
        }
        self.connection.of_copy(Some(root), Handover::new(tensor)?)
    }

    /// One broadcast for each rank: NCCL's all-gather needs chunks of one length.
    fn all_gather(&self, chunk: &Tensor, len: usize) -> Result<Tensor, Error> {
        let (rank, world_size) = (self.rank(), self.world_size());
        let length = |rank| chunk_range(len, world_size, rank).len();
        let (expected, found) = (length(rank), chunk.dims());
        if found != [expected] {
            return Err(Error::Other(format!(
                "rank {rank} of {world_size} gathers {len} elements: its chunk must be [{expected}], not {found:?}"
            )));
        }
        let chunks = (0..world_size).map(|root| match root {
            _ if root == rank => self.broadcast(chunk, root),
            _ => self.broadcast(&Tensor::zeros(length(root), chunk.dtype(), self.device())?, root),
        });
        Ok(Tensor::cat(&chunks.collect::<Result<Vec<_>, _>>()?, 0)?)
    }

    fn reduce_scatter(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        let sum = self.connection.of_copy(None, Handover::new(&tensor.flatten_all()?)?)?;
        let chunk = chunk_range(sum.elem_count(), self.world_size(), self.rank());
        Ok(sum.narrow(0, chunk.start, chunk.len())?.force_contiguous()?)
    }

    fn barrier(&self) -> Result<(), Error> {
        self.connection.barrier()
    }
}

//! Processes that a launcher such as `torchrun` started, connected by NCCL and nothing else.
//!
//! ```no_run
//! use std::time::Duration;
//! use backends::nccl;
//! use candle_core::{DType, Tensor};
//! use harness::launcher;
//! use params_and_allreduce::Algorithm;
//! use params_and_allreduce::communicator::Communicator as _;
//!
//! let place = launcher::place()?.expect("RANK and WORLD_SIZE");
//! let world = nccl::World::connect(&place, Duration::from_secs(300))?;
//! let sum = world.run(|rank| {
//!     let ones = Tensor::ones(3, DType::F32, rank.device())?;
//!     rank.all_reduce(&ones, Algorithm::Native)
//! });
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! NCCL connects the ranks that have the same identifier, which says where rank 0 listens. Without messages, every rank makes
//! the identifier from an address that all know. NCCL does so if its variable `NCCL_COMM_ID` is set. A running program cannot
//! change its environment safely, so a process without the variable starts itself anew.

use std::convert::Infallible;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, exit};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fmt, fs, thread};

use candle_core::{DType, Device, Shape, Tensor};
use cudarc::nccl::safe::Id;
use devices::{ComputeDevice, DeviceKind, DevicePlan, PlanError};
use harness::launcher::{MEETING, Place};
use params_and_allreduce::Algorithm;
use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator};
use params_and_allreduce::thread::{Cause, attempt};

use super::{Connection, nccl};
use crate::print_failure;

/// NCCL's variable for the time at which ranks connect. With 0 they connect when they join, which has a time limit here, and
/// not in the first collective.
const CONNECT_LATER: &str = "NCCL_RUNTIME_CONNECT";

/// NCCL sends a rank's last bytes within this time after its work is done.
const LAST_BYTES: Duration = Duration::from_millis(100);

/// The reason why this process is not connected to other processes.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No GPUs.
    #[error("NCCL connects GPUs: {0}")]
    NoGpu(#[from] PlanError),
    /// Fewer GPUs than processes.
    #[error(
        "LOCAL_RANK is {0}, and there is no GPU of that number here: NCCL needs one for each process (nvidia-smi -L)"
    )]
    TooFewGpus(usize),
    /// The program could not be started anew.
    #[error("to set {MEETING} this program starts itself anew, and could not: {0}")]
    Restart(io::Error),
    /// The GPU or NCCL refuses.
    #[error("at {meeting}: {error}")]
    Join {
        /// The address at which the processes meet.
        meeting: String,
        /// The reason.
        error: Error,
    },
}

/// All processes that were started together, and this process's place among them.
pub struct World {
    place: Place,
    rank: Rank,
}

impl World {
    /// Connects this process with all others. All of them call this, once, before anything else: if `NCCL_COMM_ID` is not
    /// set, the program starts anew.
    ///
    /// A rank waits at most `timeout` for a collective, and for all ranks to come here.
    ///
    /// # Errors
    ///
    /// When this process has no GPU, and when NCCL cannot connect it with all others in time.
    pub fn connect(place: &Place, timeout: Duration) -> Result<Self, ConnectError> {
        if env::var_os(MEETING).is_none_or(|meeting| meeting.is_empty()) {
            start_anew(place).map_err(ConnectError::Restart)?;
        }
        // The GPUs up to this process's number.
        let plan = DevicePlan::new(DeviceKind::Cuda, place.local_rank + 1, None)?;
        if !plan.has_a_gpu_each() {
            return Err(ConnectError::TooFewGpus(place.local_rank));
        }
        let connect = || {
            let device = plan.slots()[place.local_rank].open()?;
            let open = |device| {
                let id = Id::new().map_err(nccl)?;
                Connection::open(device, (place.rank, place.world_size), id, timeout)
            };
            let main = open(device.tensors())?;
            // Both listen at the same address, so the first has to be complete.
            wait_for_all(&main, device.tensors())?;
            let background = open(device.side_stream())?;
            Ok(Rank { device: Arc::new(device), connections: [main, background], current: 0 })
        };
        let meeting = place.meeting.clone();
        let rank = connect().map_err(|error| ConnectError::Join { meeting, error })?;
        Ok(Self { place: place.clone(), rank })
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.place.rank
    }

    /// The number of processes.
    pub fn world_size(&self) -> usize {
        self.place.world_size
    }

    /// This process's number among the processes on the same machine, from 0.
    pub fn local_rank(&self) -> usize {
        self.place.local_rank
    }

    /// The name of this process's machine.
    pub fn machine(&self) -> String {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().to_owned()
    }

    /// This rank's communicator.
    pub fn communicator(&self) -> SharedCommunicator {
        Arc::new(self.rank.clone())
    }

    /// Runs `work` for this rank. Other ranks may still work when this returns. They have ended when the world has been
    /// dropped.
    ///
    /// If the work fails or panics, this prints `rank R failed: …` on standard error and ends the process, with exit code 1.
    /// The launcher then ends the job.
    pub fn run<R, E>(&self, work: impl FnOnce(&Rank) -> Result<R, E> + Send) -> R
    where
        R: Send,
        E: fmt::Display + Send,
    {
        attempt(&self.rank.device, || work(&self.rank)).unwrap_or_else(|cause| self.end(&cause))
    }

    /// Prints the reason, and ends this process. No destructors run.
    #[expect(clippy::disallowed_methods, reason = "ends a process in which nothing can return")]
    fn end<E: fmt::Display>(&self, cause: &Cause<E>) -> ! {
        print_failure(self.place.rank, cause);
        let _ = io::stdout().flush();
        exit(1)
    }
}

impl Drop for World {
    /// Waits until the work of all ranks is done: a slower rank may still read this rank's memory.
    fn drop(&mut self) {
        let connections = &self.rank.connections;
        if connections.iter().any(Connection::has_failed) {
            // The failure is reported elsewhere. The ranks no longer agree on the next collective.
            return;
        }
        let devices = [self.rank.device.tensors(), self.rank.device.side_stream()];
        for (connection, device) in connections.iter().zip(devices) {
            if let Err(error) = wait_for_all(connection, device) {
                self.end(&Cause::Error(error));
            }
        }
        thread::sleep(LAST_BYTES);
        connections.iter().for_each(Connection::leave);
    }
}

/// Starts this program anew, in this process, with NCCL's variables.
fn start_anew(place: &Place) -> io::Result<Infallible> {
    let mut again = Command::new(env::current_exe()?);
    again.args(env::args_os().skip(1)).env(MEETING, &place.meeting);
    if env::var_os(CONNECT_LATER).is_none() {
        again.env(CONNECT_LATER, "0");
    }
    let _ = io::stdout().flush();
    Err(again.exec())
}

/// No rank has the sum before every rank has given a number.
fn wait_for_all(connection: &Connection, device: &Device) -> Result<(), Error> {
    connection.all_reduce(&Tensor::zeros(1, DType::F32, device)?).map(drop)
}

/// One rank inside its own process: its GPU, and its end of a connection to all other ranks. A clone is the same end. Any
/// thread may use and drop it.
///
/// It has collectives, and no messages.
#[derive(Clone, Debug)]
pub struct Rank {
    device: Arc<ComputeDevice>,
    /// The main connection, and that of the background.
    connections: [Connection; 2],
    current: usize,
}

impl Rank {
    /// The device that this rank drives.
    pub fn compute_device(&self) -> &ComputeDevice {
        &self.device
    }

    /// The time that this rank waits for a collective.
    pub fn timeout(&self) -> Duration {
        self.connection().timeout
    }

    fn connection(&self) -> &Connection {
        &self.connections[self.current]
    }
}

fn no_messages() -> Error {
    let text = "NCCL alone connects these ranks: it has collectives of all ranks, and no messages between two";
    Error::Other(text.to_owned())
}

impl Communicator for Rank {
    fn rank(&self) -> usize {
        self.connection().rank
    }

    fn world_size(&self) -> usize {
        self.connection().world_size
    }

    /// In the background, tensors are those of the device's second [stream](ComputeDevice::side_stream).
    fn device(&self) -> &Device {
        if self.current == 0 { self.device.tensors() } else { self.device.side_stream() }
    }

    fn send(&self, _to: usize, _tensor: &Tensor) -> Result<(), Error> {
        Err(no_messages())
    }

    fn recv(&self, _from: usize, _shape: &Shape, _dtype: DType) -> Result<Tensor, Error> {
        Err(no_messages())
    }

    fn background(&self) -> Result<SharedCommunicator, Error> {
        Ok(Arc::new(Self { current: 1, ..self.clone() }))
    }

    /// Every algorithm is NCCL's.
    fn all_reduce(&self, tensor: &Tensor, _algorithm: Algorithm) -> Result<Tensor, Error> {
        self.connection().all_reduce(tensor)
    }

    fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Tensor, Error> {
        self.connection().broadcast(tensor, root)
    }

    /// One broadcast for each rank: NCCL's all-gather needs chunks of one length.
    fn all_gather(&self, chunk: &Tensor, len: usize) -> Result<Tensor, Error> {
        let chunks = (0..self.world_size()).map(|root| {
            let length = chunk_range(len, self.world_size(), root).len();
            if root != self.rank() {
                return self.broadcast(&Tensor::zeros(length, chunk.dtype(), self.device())?, root);
            }
            if chunk.dims() != [length] {
                return Err(Error::Other(format!(
                    "rank {root} of {} gathers {len} elements: its chunk must be [{length}], not {:?}",
                    self.world_size(),
                    chunk.dims()
                )));
            }
            self.broadcast(chunk, root)
        });
        Ok(Tensor::cat(&chunks.collect::<Result<Vec<_>, _>>()?, 0)?)
    }

    fn reduce_scatter(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        let sum = self.connection().all_reduce(&tensor.flatten_all()?)?;
        let chunk = chunk_range(sum.elem_count(), self.world_size(), self.rank());
        Ok(sum.narrow(0, chunk.start, chunk.len())?.force_contiguous()?)
    }

    fn barrier(&self) -> Result<(), Error> {
        wait_for_all(self.connection(), self.device())
    }

    fn has_messages(&self) -> bool {
        false
    }
}

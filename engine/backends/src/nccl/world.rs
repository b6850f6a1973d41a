//! Processes that a launcher such as `torchrun` started, connected by NCCL and nothing else.
//!
//! ```no_run
//! use std::time::Duration;
//! use candle_core::{DType, Tensor};
//! use params_and_allreduce::communicator::Communicator as _;
//! use params_and_allreduce::{Algorithm, allreduce, launcher, nccl};
//!
//! let place = launcher::place()?.expect("RANK and WORLD_SIZE");
//! let world = nccl::World::connect(&place, Duration::from_secs(300))?;
//! let sum = world.run(|rank| {
//!     let mine = Tensor::ones(3, DType::F32, rank.clone().device())?;
//!     rank.clone().all_reduce(&mine, Algorithm::Nccl)
//! });
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # How they meet
//!
//! NCCL connects whoever brings the same identifier, which says where rank 0 listens. To get it to the others,
//! something has to connect them already, MPI or a launcher's own server. Or everybody makes it, from an address that
//! all know: NCCL does so where its variable `NCCL_COMM_ID` is set. A library reads its environment when it likes, and
//! to change it in a running program is not safe; so a process that does not have the variable begins anew, with it.

use std::convert::Infallible;
use std::env;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, exit};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, fs};

use candle_core::Device;
use devices::{ComputeDevice, DeviceKind, DevicePlan, PlanError};

use super::post::Post;
use super::{Line, failure};
use crate::collective::barrier;
use crate::communicator::Error;
use crate::launcher::{MEETING, Place};
use crate::thread::{RankFailure, attempt};

/// NCCL's variable for when ranks connect: with 0 when they join, for which they have a time limit here, and not within
/// the first collective.
const CONNECT_LATER: &str = "NCCL_RUNTIME_CONNECT";

/// NCCL sends a rank's last bytes within this time after its work is done.
const LAST_BYTES: Duration = Duration::from_millis(100);

/// Why this process is not connected to the others.
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
    /// The GPU or NCCL says no.
    #[error("at {meeting}: {error}")]
    Join {
        /// Where the processes meet.
        meeting: String,
        /// What it says.
        error: Error,
    },
}

/// All processes that were started together, and this one's place among them.
pub struct World {
    place: Place,
    device: ComputeDevice,
    main: Line,
    background: Line,
    threads: Vec<JoinHandle<()>>,
}

/// One rank inside its own process: its GPU, and its lines to the others.
pub struct Rank<'a>(&'a World);

impl World {
    /// Connects this process with all others; all of them call this, once, before anything else: where
    /// `NCCL_COMM_ID` is not set, the program begins anew.
    ///
    /// A rank will wait for a collective at most `timeout`, and for the others to come here.
    ///
    /// # Errors
    ///
    /// When this process has no GPU of its own, or NCCL cannot connect it with all others in time.
    pub fn connect(place: &Place, timeout: Duration) -> Result<Self, ConnectError> {
        if env::var_os(MEETING).is_none_or(|meeting| meeting.is_empty()) {
            begin_anew(place).map_err(ConnectError::Restart)?;
        }
        // As many as it takes for one of this process's number.
        let plan = DevicePlan::new(DeviceKind::Cuda, place.local_rank + 1, None)?;
        if !plan.has_a_gpu_each() {
            return Err(ConnectError::TooFewGpus(place.local_rank));
        }
        let of_meeting = |error| ConnectError::Join { meeting: place.meeting.clone(), error };
        let device = plan.slots()[place.local_rank].open();
        let device = device.map_err(|error| of_meeting(error.into()))?;
        let connect = |name, gpu| Self::joined(name, gpu, place, timeout).map_err(of_meeting);
        let (main, its_thread) = connect("main", device.tensors())?;
        // Both listen at the same place, so the first has to be done with it.
        main.barrier().map_err(of_meeting)?;
        let (background, other) = connect("background", device.side_stream())?;
        let threads = vec![its_thread, other];
        Ok(Self { place: place.clone(), device, main, background, threads })
    }

    /// A connection with all others.
    fn joined(
        name: &str,
        device: &Device,
        place: &Place,
        timeout: Duration,
    ) -> Result<(Line, JoinHandle<()>), Error> {
        let Device::Cuda(gpu) = device else {
            return Err(failure("NCCL: this rank's device is no GPU".to_owned()));
        };
        let (post, thread) = Post::start(name, gpu, place, timeout)?;
        let (rank, world_size) = (place.rank, place.world_size);
        Ok((Line { rank, world_size, device: device.clone(), post }, thread))
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.place.rank
    }

    /// How many processes there are.
    pub fn world_size(&self) -> usize {
        self.place.world_size
    }

    /// This process's place among those on the same machine, from 0.
    pub fn local_rank(&self) -> usize {
        self.place.local_rank
    }

    /// The name of this process's machine, as Linux knows it.
    pub fn machine(&self) -> String {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().to_owned()
    }

    /// This rank's end of the connection.
    pub fn line(&self) -> Line {
        self.main.clone()
    }

    /// Runs `work` for this rank, as [`run_ranks`](crate::thread::run_ranks) does for all ranks of one process. The
    /// others' work may not be done when this returns; it is when the world has been dropped.
    ///
    /// If the work fails or panics, this prints `rank R failed: …` on stderr and ends the process, with exit code 1: a
    /// launcher then ends the others. It does not return then.
    pub fn run<R, E>(&self, work: impl FnOnce(&Rank<'_>) -> Result<R, E> + Send) -> R
    where
        R: Send,
        E: fmt::Display + Send,
    {
        match attempt(&self.device, || work(&Rank(self))) {
            Ok(result) => result,
            Err(cause) => end(&RankFailure { rank: self.rank(), cause }),
        }
    }
}

impl Drop for World {
    /// Waits until the others' work is done too: a slower one may still read this rank's buffers.
    fn drop(&mut self) {
        let lines = [&self.main, &self.background];
        if lines.iter().any(|line| line.post.has_failed()) {
            // Why is told elsewhere, and nobody can be waited for any more.
            return;
        }
        for line in lines {
            if let Err(error) = line.barrier() {
                end(&RankFailure::new(self.rank(), error));
            }
        }
        thread::sleep(LAST_BYTES);
        lines.into_iter().for_each(|line| line.post.leave());
        for thread in self.threads.drain(..) {
            // Whatever happens to it: all that the ranks do together is done.
            let _ = thread.join();
        }
    }
}

impl Rank<'_> {
    /// The device that this rank drives.
    pub fn compute_device(&self) -> &ComputeDevice {
        &self.0.device
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.0.rank()
    }

    /// How long this rank waits for another.
    pub fn timeout(&self) -> Duration {
        self.0.main.post.timeout()
    }

    /// This rank's end of the connection, to be kept, and given to operations.
    pub fn line(&self) -> Line {
        self.0.main.clone()
    }

    /// A second connection to all others, for a thread that talks while this one works. Its tensors are those of the
    /// device with a second [stream](ComputeDevice::side_stream).
    pub fn background_line(&self) -> Line {
        self.0.background.clone()
    }
}

/// Begins this program anew, in this process, with the variable that tells NCCL where to meet. It does not return,
/// unless that fails.
fn begin_anew(place: &Place) -> io::Result<Infallible> {
    let mut again = Command::new(env::current_exe()?);
    again.args(env::args_os().skip(1)).env(MEETING, &place.meeting);
    if env::var_os(CONNECT_LATER).is_none() {
        again.env(CONNECT_LATER, "0");
    }
    drop(io::stdout().flush());
    Err(again.exec())
}

/// Says why, and ends this process with exit code 1. No destructors run.
#[expect(clippy::disallowed_methods, reason = "where nothing can return")]
fn end<E: fmt::Display>(failure: &RankFailure<E>) -> ! {
    failure.tell();
    drop(io::stdout().flush());
    exit(1)
}

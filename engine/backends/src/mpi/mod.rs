//! Ranks as processes, on one machine or on many: MPI.
//!
//! `mpirun -n 4 PROGRAM` starts a program four times, and MPI connects the processes. Each is one rank.
//!
//! ```no_run
//! use std::time::Duration;
//! use params_and_allreduce::communicator::Error;
//! use params_and_allreduce::{Algorithm, allreduce, mpi};
//! use devices::{DeviceKind, DevicePlan};
//!
//! let world = mpi::World::connect(Duration::from_secs(300))?;
//! // This machine's devices, and this process takes its own.
//! let plan = DevicePlan::new(DeviceKind::Auto, world.local_size(), None)?;
//! let sum = world.run(&plan, |rank| {
//!     let mine = candle_core::Tensor::ones(3, candle_core::DType::F32, &candle_core::Device::Cpu)?;
//!     rank.all_reduce(&mine, Algorithm::Ring)
//! });
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # One thread talks
//!
//! What MPI hands out belongs to the thread that got it, just as a GPU's tensors do. So every [`Line`] has a
//! thread that talks MPI for it, a *postman*; its rank puts tensors into a channel and takes others out of
//! one. That costs every message some microseconds, and gives in return what MPI alone does not: a send
//! that returns at once, a receive with a time limit, and somebody who answers while the rank computes.
//! A rank has two lines, with two postmen and two copies of MPI's world, so that two of its threads can
//! talk at the same time.
//!
//! | file | its idea |
//! | --- | --- |
//! | `rank` | one rank inside its process: its device, and its lines |
//! | `line` | a rank's end: the two messages of [`Communicator`] |
//! | `postman` | sends what is ordered, and always fetches what has arrived |
//! | `on_its_way` | what MPI has not finished, and whom it is held up by |
//! | `note`, `parcel` | what travels: element type and shape as text, then bytes |
//! | `sum` | MPI's own all-reduce |
//! | `inquiry`, `waiting` | who is to blame when nothing comes |
//! | `pace` | how often a postman looks |
//!
//! # When a rank dies
//!
//! A process that is killed takes the job along: `mpirun` sees it and ends the others. A rank that fails or
//! panics says so on stderr, and ends the job itself. A rank that stalls is named by those that wait for it
//! when their time is up; then they end the job. Tensors on a GPU pass through the host: `nccl` is
//! faster there, and works over these lines as over any others.

mod inquiry;
mod line;
mod note;
mod on_its_way;
mod pace;
mod parcel;
mod postman;
mod rank;
mod sum;
mod waiting;

use std::io::Write as _;
use std::marker::PhantomData;
use std::process::exit;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, io};

use ::mpi::Threading;
use ::mpi::environment::{Universe, processor_name};
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::Communicator as _;
use candle_core::Device;
use devices::{DevicePlan, DeviceSlot};

#[cfg(doc)]
use crate::communicator::Communicator;
use crate::communicator::Error;
use crate::mpirun::{self, Started};
use crate::thread::{Cause, RankFailure, attempt};
use line::Ends;
pub use line::Line;
pub use rank::Rank;

/// Bytes for questions and answers that have not left. One takes less than 200 with what MPI adds, and of each rank a
/// rank asks one at a time.
const NOTES: usize = 1 << 20;

/// A job that cannot be ended in the friendly way within this time is ended in the other.
const GRACE: Duration = Duration::from_secs(5);

/// Why this process has no connection to others.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// [`World::connect`] was called before in this process.
    #[error("this process is connected through MPI already, or was: that can be done once")]
    Twice,
    /// The library was built for programs of one thread.
    #[error("this MPI library does not let several threads talk (it offers {0:?}, not Multiple)")]
    Threads(Threading),
    /// MPI has found fewer processes than there are, so each would train alone.
    #[error(
        "{started}, and MPI connects {connected} of them: this program was built with another MPI library than the \
         launcher's, or srun wants another --mpi (srun --mpi=list)"
    )]
    Strangers {
        /// What the launcher says.
        started: Started,
        /// What MPI says.
        connected: usize,
    },
    /// The system gave no thread.
    #[error("a thread for MPI could not be started: {0}")]
    Thread(#[from] io::Error),
}

/// All processes that were started together, and this one's place among them.
///
/// It belongs to the thread that made it, as MPI has to be finished where it was begun.
pub struct World {
    rank: usize,
    world_size: usize,
    local_rank: usize,
    local_size: usize,
    main: Arc<Ends>,
    background: Arc<Ends>,
    postmen: Vec<JoinHandle<()>>,
    /// Dropped last: that ends MPI.
    _universe: Universe,
    _of_one_thread: PhantomData<*const ()>,
}

impl World {
    /// Connects this process with all others that `mpirun` started; a program that was started without it
    /// is a world of one. All processes call this, once, before anything else.
    ///
    /// A rank will wait for a message at most `timeout`.
    ///
    /// # Errors
    ///
    /// When this process was connected before, MPI cannot be used by several threads, or it has found another number
    /// of processes than the launcher has started.
    pub fn connect(timeout: Duration) -> Result<Self, ConnectError> {
        let begun = ::mpi::initialize_with_threading(Threading::Multiple);
        let (mut universe, threading) = begun.ok_or(ConnectError::Twice)?;
        if threading < Threading::Multiple {
            return Err(ConnectError::Threads(threading));
        }
        let world = universe.world();
        let connected = world.size() as usize;
        if let Some(started) = mpirun::launcher().filter(|said| said.processes != connected) {
            return Err(ConnectError::Strangers { started, connected });
        }
        universe.set_buffer_size(NOTES);
        // Those that share this machine's memory, in the order of their ranks.
        let here = world.split_shared(world.rank());
        let (main, postman) = Ends::connect("main", timeout)?;
        let (background, other) = Ends::connect("background", timeout)?;
        Ok(Self {
            rank: world.rank() as usize,
            world_size: world.size() as usize,
            local_rank: here.rank() as usize,
            local_size: here.size() as usize,
            main: Arc::new(main),
            background: Arc::new(background),
            postmen: vec![postman, other],
            _universe: universe,
            _of_one_thread: PhantomData,
        })
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many processes there are.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// This process's place among those on the same machine, from 0.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// How many processes there are on this machine: it has to have a device for each.
    pub fn local_size(&self) -> usize {
        self.local_size
    }

    /// The name of this process's machine, as MPI knows it.
    pub fn machine(&self) -> String {
        processor_name()
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// This rank's end of the connections before it has a device: what it receives is in CPU memory.
    ///
    /// It is the same connection that [`run`](Self::run) hands out.
    pub fn line(&self) -> Line {
        Line::new(&self.main, &Device::Cpu)
    }

    /// Runs `work` for this rank, as [`run_ranks`](crate::thread::run_ranks) does for all ranks of one
    /// process. The others' work may not be done when this returns; it is when the world has been dropped.
    ///
    /// The plan has this machine's devices, one for each process on it. `mpirun` may have bound each process
    /// to a core of its own: start it with `--bind-to none` where a device shall have more.
    ///
    /// If the work fails or panics, this prints `rank R failed: …` on stderr and ends the job, with exit
    /// code 1. It does not return then.
    pub fn run<R, E>(
        &self,
        plan: &DevicePlan,
        work: impl FnOnce(&Rank<'_>) -> Result<R, E> + Send,
    ) -> R
    where
        R: Send,
        E: From<Error> + fmt::Display + Send,
    {
        let outcome = match plan.slots().get(self.local_rank) {
            Some(slot) => self.attempt(slot, work),
            None => {
                let (rank, devices) = (self.local_rank, plan.len());
                let text = format!("{devices} devices are too few: this is process {rank} here");
                Err(Cause::Error(E::from(Error::Other(text))))
            }
        };
        match outcome {
            Ok(result) => result,
            Err(cause) => {
                RankFailure { rank: self.rank, cause }.tell();
                abort()
            }
        }
    }

    fn attempt<R: Send, E: From<Error> + Send>(
        &self,
        slot: &DeviceSlot,
        work: impl FnOnce(&Rank<'_>) -> Result<R, E> + Send,
    ) -> Result<R, Cause<E>> {
        let device = slot.open().map_err(|error| Cause::Error(E::from(error.into())))?;
        let rank = Rank::new(device, &self.main, &self.background);
        attempt(rank.compute_device(), || work(&rank))
    }
}

impl Drop for World {
    /// Tells the others that this rank's work is done, and waits until theirs is.
    fn drop(&mut self) {
        self.main.leave();
        self.background.leave();
        for postman in self.postmen.drain(..) {
            if postman.join().is_err() {
                abort();
            }
        }
    }
}

/// Ends all processes of the job, with exit code 1. No destructors run.
#[expect(
    clippy::disallowed_methods,
    reason = "the other way to end a job, where nothing can return"
)]
pub fn abort() -> ! {
    drop(io::stdout().flush());
    // MPI's own way may wait for a postman. `mpirun` ends the job, too, when one process ends like this.
    thread::spawn(|| {
        thread::sleep(GRACE);
        exit(1);
    });
    SimpleCommunicator::world().abort(1)
}

//! A connection of a rank to all other ranks: sending, waiting with a time limit, and a thread that lets MPI work.
//!
//! MPI moves a large message only while somebody calls MPI. A rank that waits calls it again and again. While the rank
//! computes, the connection's *progress thread* does.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep, yield_now};
use std::time::{Duration, Instant};
use std::{fmt, io, mem};

use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator as _, Equivalence};
use candle_core::Tensor;
use harness::lock::locked;
use harness::stopwatch::Stopwatch;
use params_and_allreduce::communicator::Error;
use safetensors::View as _;

use super::abort;
use super::progress::Progress;
use super::transfer::{Header, Transfer};
use super::wait_graph::{ALL, ANSWER_LIMIT, NOBODY, find_cause};
use crate::print_error;

/// The time in which rank 0 grants the right to report a failure, and in which the rank that has it ends the job.
const CLAIM_LIMIT: Duration = Duration::from_secs(3);

/// The time in which a waiting rank looks without a pause. A rank that works on the awaited message sends it within this
/// time, or much later.
const AWAKE: Duration = Duration::from_micros(200);

/// The pause between two looks after that, and of the progress thread while a message is on its way.
const NAP: Duration = Duration::from_micros(50);

/// The pause of the progress thread otherwise: so long a large message waits before it is fetched.
const LONG_NAP: Duration = Duration::from_micros(500);

/// A rank's end of one connection to all other ranks. Any thread may use it.
pub(super) struct Connection {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) timeout: Duration,
    /// `None` when the work of all ranks is done.
    progress: Mutex<Option<Progress>>,
    /// Wakes the progress thread.
    changed: Condvar,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection of rank {} of {}", self.rank, self.world_size)
    }
}

impl Connection {
    /// Opens a connection, and starts its progress thread. All ranks call this together, for one connection
    /// at a time. Messages of two duplicates of MPI's world never meet.
    pub(super) fn open(name: &str, timeout: Duration) -> io::Result<(Arc<Self>, JoinHandle<()>)> {
        let world = SimpleCommunicator::world().duplicate();
        let (rank, world_size) = (world.rank() as usize, world.size() as usize);
        let (progress, changed) = (Mutex::new(Some(Progress::new(world))), Condvar::new());
        let connection = Arc::new(Self { rank, world_size, timeout, progress, changed });
        let its_connection = Arc::clone(&connection);
        let thread = thread::Builder::new().name(format!("mpi {name}"));
        Ok((connection, thread.spawn(move || its_connection.run_progress_thread())?))
    }

    /// Lets MPI work until the work of all ranks is done.
    fn run_progress_thread(&self) {
        let mut guard = locked(&self.progress);
        while let Some(progress) = &mut *guard {
            progress.advance();
            if progress.is_done() {
                *guard = None;
                return;
            }
            let nap = if progress.is_busy() { NAP } else { LONG_NAP };
            let woken = self.changed.wait_timeout(guard, nap);
            guard = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn with<R>(&self, work: impl FnOnce(&mut Progress) -> R) -> Result<R, Error> {
        match &mut *locked(&self.progress) {
            Some(progress) if !progress.has_left => Ok(work(progress)),
            _ => {
                let (rank, why) = (self.rank, "has ended".to_owned());
                Err(Error::RankStopped { rank, why, waiting: rank })
            }
        }
    }

    pub(super) fn check(&self, other: usize) -> Result<(), Error> {
        let (rank, world_size) = (self.rank, self.world_size);
        if other == rank || other >= world_size {
            return Err(Error::NoSuchRank { rank, other, world_size });
        }
        Ok(())
    }

    /// Sends a copy of a tensor in CPU memory.
    pub(super) fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        let (dtype, dims) = (tensor.dtype(), tensor.dims().to_vec());
        let Some(header) = (Header::Tensor { dtype, dims }).encode() else {
            let dtype = dtype.as_str();
            return Err(Error::Other(format!("tensors of {dtype} are not sent between processes")));
        };
        let bytes = tensor.data().into_owned();
        let is_busy = self.with(|progress| {
            progress.send(to, header, bytes);
            progress.is_busy()
        })?;
        if is_busy {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Waits for the next message of a rank.
    pub(super) fn receive(&self, from: usize) -> Result<(Option<Header>, Vec<u8>), Error> {
        match self.wait(from, |progress| progress.take(from))? {
            (Some(Header::Farewell), _) => {
                let why = "returned early".to_owned();
                Err(Error::RankStopped { rank: from, why, waiting: self.rank })
            }
            message => Ok(message),
        }
    }

    /// Adds up the numbers of all ranks with MPI's all-reduce.
    pub(super) fn all_reduce<T>(&self, addends: Vec<T>) -> Result<Vec<T>, Error>
    where
        T: Equivalence + Clone + Default + 'static,
    {
        let mut transfer = self.with(|progress| Transfer::all_reduce(&progress.world, addends))?;
        match self.wait(ALL, |_| transfer.is_complete().then_some(())) {
            Ok(()) => Ok(transfer.into_memory()),
            Err(error) => {
                // MPI cannot call an all-reduce off: it may still write to this memory.
                mem::forget(transfer);
                let _ = self.with(|progress| progress.gave_up_a_sum = true);
                Err(error)
            }
        }
    }

    /// Waits until `look` finds something. Other ranks that ask learn for whom this rank waits, also after an error.
    fn wait<T>(
        &self,
        whom: usize,
        mut look: impl FnMut(&mut Progress) -> Option<T>,
    ) -> Result<T, Error> {
        let (started, mut clock) = (Instant::now(), Stopwatch::start());
        loop {
            let found = self.with(|progress| {
                progress.waits_for = whom;
                progress.advance();
                look(progress).inspect(|_| progress.waits_for = NOBODY)
            })?;
            if let Some(found) = found {
                return Ok(found);
            }
            if clock.elapsed() >= self.timeout {
                self.with(Progress::ask)?;
                self.poll(ANSWER_LIMIT, |progress| !progress.answers.contains(&None))?;
                let answers = self.with(|progress| progress.answers.clone())?;
                return Err(find_cause(self.rank, self.timeout, &answers));
            }
            if started.elapsed() < AWAKE {
                // The awaited rank may need this core.
                yield_now();
            } else {
                sleep(NAP);
            }
        }
    }

    /// Lets MPI work until a condition holds, at most for `limit`.
    fn poll(&self, limit: Duration, holds: impl Fn(&Progress) -> bool) -> Result<(), Error> {
        let mut clock = Stopwatch::start();
        while clock.elapsed() < limit {
            let done = self.with(|progress| {
                progress.advance();
                holds(progress)
            })?;
            if done {
                break;
            }
            sleep(NAP);
        }
        Ok(())
    }

    /// Waits until this rank is to report its failure. Ranks often fail together, for one cause. The first reports it, and
    /// ends the job while all others wait here. If the job goes on, they report it, too.
    pub(super) fn wait_to_report(&self) {
        let _ = self.with(Progress::claim);
        let _ = self.poll(CLAIM_LIMIT, |progress| progress.may_report);
    }

    /// The rank's work is done. Every later call fails.
    pub(super) fn leave(&self) {
        let gave_up = self.with(|progress| {
            progress.leave();
            progress.gave_up_a_sum
        });
        self.changed.notify_one();
        if let Ok(true) = gave_up {
            let rank = self.rank;
            print_error(&format!(
                "rank {rank} failed: it left while a sum of all ranks was unfinished"
            ));
            abort()
        }
    }
}

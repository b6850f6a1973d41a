//! Ranks as threads of one process: one thread drives one device.
//!
//! [`run_ranks`] starts a thread for every device of a plan. The ranks exchange tensors through mailboxes.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, yield_now};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use candle_core::{DType, Device, Shape, Tensor};
use devices::{ComputeDevice, DevicePlan, move_view};
use harness::cli;
use harness::lock::locked;
use harness::stopwatch::{STRETCH, Stopwatch};

use crate::communicator::{Communicator, Error, SharedCommunicator, check_other, wait_chain};

/// The time that a rank waits for a message, if the caller has no better value.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// The additional time for a rank to end, after it has waited in vain.
pub const GRACE: Duration = Duration::from_secs(10);

/// The time that a rank spins before it sleeps. To wake a thread takes the system longer than a small message.
const AWAKE: Duration = Duration::from_micros(50);

/// The number of spins before a rank lets other threads have its core between two spins.
const SPINS: usize = 100;

// ANCHOR: mailbox
/// For each sender, its messages in the order in which they were sent.
type Messages = BTreeMap<usize, VecDeque<Tensor>>;

/// The messages that have arrived for one rank, through one of its connections.
// Ranks that send at the same time would otherwise take a cache line from each other.
#[derive(Default)]
#[repr(align(128))]
struct Mailbox {
    messages: Mutex<Messages>,
    arrived: Condvar,
    /// Counts messages and ends of ranks. A spinning rank watches this number, without the lock.
    news: AtomicUsize,
    sleepers: AtomicUsize,
    /// The rank that the mailbox's owner waits for, plus 1. 0 means that the owner does not wait.
    waits_for: AtomicUsize,
}

impl Mailbox {
    fn put(&self, from: usize, message: Tensor) {
        locked(&self.messages).entry(from).or_default().push_back(message);
        self.wake();
    }

    /// Makes the owner look again.
    fn wake(&self) {
        self.news.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // The owner holds the lock from its last look until it sleeps. After this line, it looks once more or sleeps.
            drop(locked(&self.messages));
            self.arrived.notify_all();
        }
    }
    // ANCHOR_END: mailbox

    // ANCHOR: wait
    /// Waits until `look` finds something among the messages: awake for a moment, then asleep. Returns `None` after
    /// `timeout`.
    fn wait<T>(
        &self,
        timeout: Duration,
        mut look: impl FnMut(&mut Messages) -> Option<T>,
    ) -> Option<T> {
        let (started, mut seen) = (Instant::now(), None);
        for spins in 0.. {
            let news = self.news.load(Ordering::SeqCst);
            if seen != Some(news) {
                seen = Some(news);
                let found = look(&mut locked(&self.messages));
                if found.is_some() {
                    return found;
                }
            } else if spins < SPINS {
                spin_loop();
            } else if started.elapsed() < AWAKE.min(timeout) {
                // The rank that is waited for may need this core.
                yield_now();
            } else {
                break;
            }
        }
        self.sleep(timeout.saturating_sub(AWAKE), look)
    }

    fn sleep<T>(
        &self,
        timeout: Duration,
        mut look: impl FnMut(&mut Messages) -> Option<T>,
    ) -> Option<T> {
        let mut clock = Stopwatch::start();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // Either `wake`, which writes `news` and then reads `sleepers`, sees this sleeper, or this read sees the write of
        // `wake`, and `look` finds the news.
        self.news.load(Ordering::SeqCst);
        let mut messages = locked(&self.messages);
        let found = loop {
            let found = look(&mut messages);
            let left = timeout.saturating_sub(clock.elapsed());
            if found.is_some() || left.is_zero() {
                break found;
            }
            let woken = self.arrived.wait_timeout(messages, left.min(STRETCH));
            messages = woken.unwrap_or_else(PoisonError::into_inner).0;
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        found
    }
}
// ANCHOR_END: wait

// ANCHOR: ends
/// The end of a rank's work.
enum End {
    Returned,
    Failed {
        why: String,
        /// The cause, if the rank failed because a message did not come.
        because_of: Option<Origin>,
    },
}

/// The beginning of a chain of failures: a rank that ended, one that sent nothing in time, or ranks that wait in a circle.
#[derive(Clone, Debug)]
enum Origin {
    Rank { rank: usize, why: String },
    Silent { rank: usize },
    Deadlock { circle: Vec<usize> },
}

/// A call of a communicator that failed because of another rank.
struct CallError {
    text: String,
    origin: Origin,
    at: Instant,
}
// ANCHOR_END: ends

/// The number of messages that a rank has sent, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of messages.
    pub messages: u64,
    /// The bytes of their elements.
    pub bytes: u64,
}

// ANCHOR: world
/// The ranks of one call of [`run_ranks`].
struct World {
    timeout: Duration,
    /// For each connection, a mailbox for each rank.
    connections: [Vec<Mailbox>; 2],
    /// For each rank, the end of its work, once it has ended.
    ends: Vec<OnceLock<End>>,
    /// For each rank, the last call that failed because of another rank.
    last_error: Vec<Mutex<Option<CallError>>>,
    sent: Vec<Mutex<Traffic>>,
}
// ANCHOR_END: world

// ANCHOR: rank
/// One rank: its device, and its end of a connection. A clone is the same end, for any thread; one thread at a time receives
/// on a connection. When the rank's work has ended, every call fails.
#[derive(Clone)]
pub struct Rank {
    rank: usize,
    device: Arc<ComputeDevice>,
    world: Arc<World>,
    /// 0, or 1 for the background.
    connection: usize,
}

impl Communicator for Rank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world.ends.len()
    }

    /// The background connection receives to CPU memory, also on a GPU: the GPU then goes on with the work of the main thread.
    fn device(&self) -> &Device {
        if self.connection == 0 { self.device.tensors() } else { &Device::Cpu }
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        let tensor = tensor.detach();
        // From a GPU, the way to CPU memory is a copy already.
        let copy = if tensor.device().is_cpu() { tensor.force_contiguous()? } else { tensor };
        self.send_shared(to, &copy)
    }

    fn send_shared(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        check_other(self, to)?;
        let message = move_view(&tensor.detach(), &Device::Cpu)?.contiguous()?;
        if self.has_ended() || self.world.ends[to].get().is_some() {
            return Err(self.stopped(to));
        }
        let bytes = ops::size_in_bytes(&message);
        self.mailbox(to).put(self.rank, message);
        let mut sent = locked(&self.world.sent[self.rank]);
        sent.messages += 1;
        sent.bytes += bytes as u64;
        Ok(())
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        check_other(self, from)?;
        let (mailbox, since) = (self.mailbox(self.rank), Instant::now());
        mailbox.waits_for.store(from + 1, Ordering::SeqCst);
        let found = mailbox.wait(self.world.timeout, |messages| {
            // The end first: otherwise a rank could send its last message and end between the two looks.
            let ended = self.has_ended() || self.world.ends[from].get().is_some();
            match messages.get_mut(&from).and_then(VecDeque::pop_front) {
                Some(message) => Some(Ok(message)),
                None => ended.then(|| Err(self.stopped(from))),
            }
        });
        // `timed_out` follows `waits_for` from rank to rank, so the entry of this rank must still be set.
        let message = found.unwrap_or_else(|| Err(self.timed_out(from, since)));
        mailbox.waits_for.store(0, Ordering::SeqCst);
        let message = message?;
        if message.shape() != shape || message.dtype() != dtype {
            return Err(Error::Mismatch {
                rank: from,
                found: format!("{:?} {:?}", message.dtype(), message.dims()),
                expected: format!("{dtype:?} {:?}", shape.dims()),
                waiting: self.rank,
            });
        }
        Ok(message.to_device(self.device())?)
    }

    fn background(&self) -> Result<SharedCommunicator, Error> {
        if self.connection == 1 {
            return Err(Error::Other("a background connection has no background".to_owned()));
        }
        Ok(Arc::new(Self { connection: 1, ..self.clone() }))
    }

    fn shares_memory(&self) -> bool {
        self.device().is_cpu()
    }
}
// ANCHOR_END: rank

impl From<Rank> for SharedCommunicator {
    fn from(rank: Rank) -> Self {
        Arc::new(rank)
    }
}

impl From<&Rank> for SharedCommunicator {
    fn from(rank: &Rank) -> Self {
        rank.clone().into()
    }
}

impl Rank {
    /// The messages that this rank has sent so far, through both connections.
    pub fn traffic(&self) -> Traffic {
        *locked(&self.world.sent[self.rank])
    }

    fn mailbox(&self, rank: usize) -> &Mailbox {
        &self.world.connections[self.connection][rank]
    }

    fn has_ended(&self) -> bool {
        self.world.ends[self.rank].get().is_some()
    }

    // ANCHOR: failures
    /// The other rank has ended. If it failed because of a third rank, the third rank is the cause.
    fn stopped(&self, other: usize) -> Error {
        if self.has_ended() {
            let (rank, why) = (self.rank, "has ended".to_owned());
            return Error::RankStopped { rank, why, waiting: rank };
        }
        self.error(match self.world.ends[other].get() {
            Some(End::Failed { because_of: Some(origin), .. }) => origin.clone(),
            Some(End::Failed { why, .. }) => Origin::Rank { rank: other, why: why.clone() },
            _ => Origin::Rank { rank: other, why: "returned early".to_owned() },
        })
    }

    /// Nothing came in time. The cause is at the end of the chain of waiting ranks, or the chain is a circle.
    fn timed_out(&self, other: usize, since: Instant) -> Error {
        let waits_for = |connection: usize, rank: usize| {
            let waits_for = &self.world.connections[connection][rank].waits_for;
            waits_for.load(Ordering::SeqCst).checked_sub(1)
        };
        let (mut chain, circle) = wait_chain(other, |chain| {
            let rank = *chain.last()?;
            // A rank without a message to wait for may wait for its own second thread, which waits for a message.
            waits_for(self.connection, rank).or_else(|| waits_for(1 - self.connection, rank))
        });
        if let Some(circle) = circle {
            // Ranks that exchange messages wait for each other, too, for a moment. In a deadlock, none of them sends.
            let messages = |rank: &usize| locked(&self.world.sent[*rank]).messages;
            let before: u64 = circle.iter().map(messages).sum();
            let all_wait = circle.iter().all(|&rank| waits_for(self.connection, rank).is_some());
            thread::sleep(Duration::from_millis(50));
            if all_wait && circle.iter().map(messages).sum::<u64>() == before {
                return self.error(Origin::Deadlock { circle });
            }
            chain.truncate(1);
        }
        let mut rank = chain[chain.len() - 1];
        if self.world.ends[rank].get().is_some() {
            return self.stopped(rank);
        }
        // That rank may have given up at the same moment. Then it knows more.
        let its_error = locked(&self.world.last_error[rank])
            .as_ref()
            .and_then(|error| (error.at >= since).then(|| error.origin.clone()));
        match its_error.filter(|_| rank != self.rank) {
            Some(Origin::Silent { rank: silent }) if silent != self.rank => rank = silent,
            Some(Origin::Silent { .. }) | None => {}
            Some(origin) => return self.error(origin),
        }
        let error = Error::TimedOut { rank, seconds: self.seconds(), waiting: self.rank };
        self.note(&error, Origin::Silent { rank });
        error
    }

    fn error(&self, origin: Origin) -> Error {
        let stopped = |rank, why| Error::RankStopped { rank, why, waiting: self.rank };
        let error = match &origin {
            Origin::Rank { rank, why } => stopped(*rank, why.clone()),
            Origin::Silent { rank } => {
                stopped(*rank, format!("sent nothing for {:.1} s", self.seconds()))
            }
            Origin::Deadlock { circle } => Error::Deadlock { circle: circle.clone() },
        };
        self.note(&error, origin);
        error
    }

    /// The longest wait for a message.
    fn seconds(&self) -> f64 {
        self.world.timeout.as_secs_f64()
    }

    /// Remembers the origin of an error, in case the rank fails with it.
    fn note(&self, error: &Error, origin: Origin) {
        let error = CallError { text: error.to_string(), origin, at: Instant::now() };
        *locked(&self.world.last_error[self.rank]) = Some(error);
    }
    // ANCHOR_END: failures
}

/// The failure of a run: the rank that failed first, and why.
#[derive(Debug)]
pub struct RankFailure<E> {
    /// The first rank that failed.
    pub rank: usize,
    /// The reason.
    pub cause: Cause<E>,
}

/// The way in which a rank failed.
#[derive(Debug)]
pub enum Cause<E> {
    /// The rank returned an error.
    Error(E),
    /// The rank panicked, with this message.
    Panic(String),
}

impl<E: fmt::Display> fmt::Display for RankFailure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} {}", self.rank, self.cause)
    }
}

impl<E: fmt::Display> fmt::Display for Cause<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // An error with a context, such as anyhow's, shows its causes in this form only.
            Self::Error(error) if f.alternate() => write!(f, "failed: {error:#}"),
            Self::Error(error) => write!(f, "failed: {error}"),
            Self::Panic(message) => write!(f, "panicked: {message}"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for RankFailure<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            // The message of the error is part of this one's.
            Cause::Error(error) => error.source(),
            Cause::Panic(_) => None,
        }
    }
}

/// Does a rank's work on its device. A panic is a failure, too. Fails when `work` fails.
pub fn attempt<R: Send, E: Send>(
    device: &ComputeDevice,
    work: impl FnOnce() -> Result<R, E> + Send,
) -> Result<R, Cause<E>> {
    caught(|| device.run(work))
}

/// Runs `work` like [`run_ranks_with`], without values for the ranks. Fails as [`run_ranks_with`] does.
pub fn run_ranks<R, E>(
    plan: &DevicePlan,
    timeout: Duration,
    work: impl Fn(&Rank) -> Result<R, E> + Sync,
) -> Result<Vec<R>, RankFailure<E>>
where
    R: Send,
    E: From<Error> + fmt::Display + Send,
{
    run_ranks_with(plan, timeout, vec![(); plan.len()], |_, comm: Rank, ()| work(&comm))
}

// ANCHOR: run_ranks
/// Runs `work` once for every device of a plan, each in its own thread and with its own value. Returns the results in rank
/// order. `work` gets the rank as a [`Rank`] or as a [`SharedCommunicator`]. Parallel code in `work` uses the cores of this
/// rank's device only.
///
/// A rank waits for a message at most `timeout`, without the time for which the whole program was stopped. When a rank ends,
/// every call that waits for the rank returns an error. When ranks wait for each other in a circle, each gets an error that
/// names the circle, after `timeout`.
///
/// A thread cannot be ended from outside. If a rank has failed, and another rank does not end within `timeout` plus
/// [`GRACE`], this function reports both. The course's programs, which begin with [`cli::arguments`], then exit with code 1.
/// Any other program goes on waiting. Fails when a rank fails, with the failure of the *first* rank that failed. Panics when
/// there is not one value for each device.
pub fn run_ranks_with<C, T, R, E>(
    plan: &DevicePlan,
    timeout: Duration,
    of_ranks: Vec<T>,
    work: impl Fn(&ComputeDevice, C, T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, RankFailure<E>>
where
    C: From<Rank>,
    T: Send,
    R: Send,
    E: From<Error> + fmt::Display + Send,
{
    assert_eq!(of_ranks.len(), plan.len(), "one for each device");
    let world = Arc::new(World::new(plan.len(), timeout));
    let (ended, ends) = channel();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (number, (slot, own)) in plan.slots().iter().zip(of_ranks).enumerate() {
            let (at_end, world, work) = (ended.clone(), Arc::clone(&world), &work);
            let run = move || {
                let outcome = caught(|| {
                    let device = slot.open_in_this_thread().map_err(|it| E::from(it.into()))?;
                    let device = Arc::new(device);
                    let (rank, on) = (number, Arc::clone(&device));
                    let comm = Rank { rank, device: on, world, connection: 0 };
                    work(&device, comm.into(), own)
                });
                let _ = at_end.send((number, outcome));
            };
            match thread_of(number).name(slot.to_string()).spawn_scoped(scope, run) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    let text = format!("its thread could not be started: {error}");
                    let cause = Cause::Error(E::from(Error::Other(text)));
                    let _ = ended.send((number, Err(cause)));
                }
            }
        }
        // In the order in which the ranks end.
        let (mut results, mut failed) = (BTreeMap::new(), None);
        for _ in plan.slots() {
            let (rank, outcome) = world.next_end(&ends, failed.as_mut());
            // The other ranks learn of the end, and may fail because of it.
            world.end(rank, outcome.as_ref().err());
            match outcome {
                Ok(result) => drop(results.insert(rank, result)),
                Err(cause) if failed.is_none() => {
                    failed = Some((RankFailure { rank, cause }, Stopwatch::start()));
                }
                Err(_) => {}
            }
        }
        threads.into_iter().for_each(|thread| drop(thread.join()));
        failed.map_or_else(|| Ok(results.into_values().collect()), |(first, _)| Err(first))
    })
}
// ANCHOR_END: run_ranks

/// The thread of a rank. Tests can make a thread that the system cannot start.
fn thread_of(_rank: usize) -> thread::Builder {
    #[cfg(test)]
    if tests::NO_THREAD_FOR.get() == Some(_rank) {
        return thread::Builder::new().stack_size(isize::MAX as usize);
    }
    thread::Builder::new()
}

/// Runs `work`. A panic is a failure like others.
fn caught<R, E>(work: impl FnOnce() -> Result<R, E>) -> Result<R, Cause<E>> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(outcome) => outcome.map_err(Cause::Error),
        Err(payload) => {
            let text = payload.downcast_ref::<&str>().copied();
            let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            Err(Cause::Panic(text.unwrap_or("no message").to_owned()))
        }
    }
}

impl World {
    fn new(world_size: usize, timeout: Duration) -> Self {
        fn of_each<T: Default>(world_size: usize) -> Vec<T> {
            (0..world_size).map(|_| T::default()).collect()
        }
        Self {
            timeout,
            connections: [of_each(world_size), of_each(world_size)],
            ends: of_each(world_size),
            last_error: of_each(world_size),
            sent: of_each(world_size),
        }
    }

    // ANCHOR: end
    /// Records the end of a rank's work, and wakes every rank that may wait for it.
    fn end<E: fmt::Display>(&self, rank: usize, failure: Option<&Cause<E>>) {
        let end = failure.map_or(End::Returned, |cause| {
            let last_error = locked(&self.last_error[rank]);
            // A rank may have handled the last error of its communicator, and failed for another reason.
            let propagated = last_error.iter().find(|it| format!("{cause:#}").contains(&it.text));
            let because_of = propagated.map(|error| error.origin.clone());
            End::Failed { why: cause.to_string(), because_of }
        });
        let _ = self.ends[rank].set(end);
        self.connections.iter().flatten().for_each(Mailbox::wake);
    }
    // ANCHOR_END: end

    // ANCHOR: stuck
    /// Waits for the next end. `failed` is the failure of the rank that failed first, with the time since then. If other ranks
    /// do not end, reports this.
    fn next_end<T, E>(
        &self,
        ends: &Receiver<T>,
        failed: Option<&mut (RankFailure<E>, Stopwatch)>,
    ) -> T {
        if let Some((RankFailure { rank: first, .. }, clock)) = failed
            && let Some(End::Failed { why, because_of }) = self.ends[*first].get()
        {
            let running = (0..self.ends.len()).filter(|&rank| self.ends[rank].get().is_none());
            let running: Vec<usize> = running.collect();
            // A rank that was waited for in vain has had its time before.
            let (stuck, limit) = match because_of {
                Some(Origin::Rank { rank, .. } | Origin::Silent { rank })
                    if running.contains(rank) =>
                {
                    (vec![*rank], GRACE)
                }
                _ => (running, self.timeout.saturating_add(GRACE)),
            };
            let mut waited = clock.elapsed();
            while waited < limit {
                if let Ok(ended) = ends.recv_timeout(STRETCH.min(limit - waited)) {
                    return ended;
                }
                waited = clock.elapsed();
            }
            let (seconds, have) = (waited.as_secs(), if stuck.len() == 1 { "has" } else { "have" });
            let ranks: Vec<String> = stuck.iter().map(|rank| format!("rank {rank}")).collect();
            let ranks = ranks.join(" and ");
            cli::give_up(&anyhow!(
                "rank {first} {why}; {seconds} s later {ranks} {have} not come back"
            ));
        }
        ends.recv().expect("every rank reports its end")
    }
    // ANCHOR_END: stuck
}

#[cfg(test)]
mod tests;

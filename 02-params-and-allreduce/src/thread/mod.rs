//! Devices as threads of one process: one thread drives one device.

mod line;
mod link;
pub(crate) mod patience;
pub(crate) mod roster;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use candle_core::{DType, Device, Shape, Tensor};
use single_gpu::device::{ComputeDevice, DevicePlan, DeviceSlot};

use crate::communicator::{Communicator, Error, Received};
pub use line::Line;
use link::Link;
pub use link::Traffic;
use roster::Roster;

/// How long a rank waits for another before it gives up, where the caller has no better idea.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// One rank inside its own thread: its device, and its links to the others.
#[derive(Debug)]
pub struct Rank<'a> {
    device: ComputeDevice,
    links: &'a Links,
}

/// One rank's connections: two, so that two of its threads can talk at the same time.
#[derive(Debug)]
struct Links {
    main: Arc<Link>,
    background: Arc<Link>,
}

impl Links {
    /// Connects every rank with every other, twice; in rank order.
    fn connect(roster: &Arc<Roster>, world_size: usize, timeout: Duration) -> Vec<Self> {
        let other = Arc::new(roster.of_other_threads());
        let links = |roster| Link::connect(world_size, roster, timeout).into_iter().map(Arc::new);
        let both = links(roster).zip(links(&other));
        both.map(|(main, background)| Self { main, background }).collect()
    }
}

impl Drop for Links {
    /// Tells the others, even while a thread of this rank still waits for one of them.
    fn drop(&mut self) {
        self.main.close();
        self.background.close();
    }
}

impl Rank<'_> {
    /// The device that this rank drives.
    pub fn compute_device(&self) -> &ComputeDevice {
        &self.device
    }

    /// How long this rank waits for another before it gives up.
    pub fn timeout(&self) -> Duration {
        self.links.main.timeout()
    }

    /// What this rank has sent so far.
    pub fn traffic(&self) -> Traffic {
        self.links.main.traffic()
    }

    /// This rank's end of the connections as a value that can be kept, and given to operations.
    ///
    /// It is the same connection: what is sent here and there arrives in one row. After the rank has
    /// ended, every call fails.
    pub fn line(&self) -> Line {
        Line::new(&self.links.main, self.device())
    }

    /// A second connection to all others, for a thread that talks while this one works.
    ///
    /// What is sent through one connection never meets what is sent through the other.
    pub fn background_line(&self) -> Line {
        Line::new(&self.links.background, self.device())
    }
}

impl Communicator for Rank<'_> {
    fn rank(&self) -> usize {
        self.links.main.rank()
    }

    fn world_size(&self) -> usize {
        self.links.main.world_size()
    }

    fn device(&self) -> &Device {
        self.device.tensors()
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.links.main.send(to, tensor)
    }

    fn share(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.links.main.share(to, tensor)
    }

    fn lend(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.links.main.lend(to, tensor)
    }

    fn reclaim(&self) -> Result<(), Error> {
        self.links.main.reclaim()
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        Ok(self.borrow(from, shape, dtype)?.into_shared()?)
    }

    fn borrow(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Received, Error> {
        Ok(self.links.main.recv(from, shape, dtype)?.moved_to(self.device())?)
    }
}

/// The failure of a run: the rank that failed first, and why.
#[derive(Debug)]
pub struct RankFailure<E> {
    /// The first rank that failed. The others failed because of it.
    pub rank: usize,
    /// What happened to it.
    pub cause: Cause<E>,
}

/// How a rank failed.
#[derive(Debug)]
pub enum Cause<E> {
    /// It returned an error.
    Error(E),
    /// It panicked, with this message.
    Panic(String),
}

impl<E> RankFailure<E> {
    /// A rank that returned an error.
    pub fn new(rank: usize, error: E) -> Self {
        Self { rank, cause: Cause::Error(error) }
    }
}

impl<E: fmt::Display> fmt::Display for RankFailure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} {}", self.rank, self.cause)
    }
}

impl<E: fmt::Display> fmt::Display for Cause<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => write!(f, "failed: {error}"),
            Self::Panic(message) => write!(f, "panicked: {message}"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for RankFailure<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            // Its own message is already part of ours.
            Cause::Error(error) => error.source(),
            Cause::Panic(_) => None,
        }
    }
}

/// Runs `work` once for every device of a plan, each in a thread of its own, and waits for all.
///
/// Inside, everything parallel stays on the rank's own device. The results come in rank order.
///
/// A rank waits for a message at most `timeout`. When a rank fails, every other rank's pending call
/// returns an error that names it, so nobody waits for a rank that is gone. Ranks that wait for each other
/// in a circle are all told so when the first of them has waited long enough.
///
/// # Errors
///
/// The failure of the rank that failed *first*.
pub fn run_ranks<R, E>(
    plan: &DevicePlan,
    timeout: Duration,
    work: impl Fn(&Rank<'_>) -> Result<R, E> + Sync,
) -> Result<Vec<R>, RankFailure<E>>
where
    R: Send,
    E: From<Error> + fmt::Display + Send,
{
    let roster = Arc::new(Roster::new(plan.len()));
    let outcomes: Vec<Result<R, Cause<E>>> = thread::scope(|scope| {
        let threads: Vec<_> = plan
            .slots()
            .iter()
            .zip(Links::connect(&roster, plan.len(), timeout))
            .map(|(slot, links)| {
                let (roster, work) = (&roster, &work);
                // The links are let go at the end of the thread, after a failure has been written down:
                // whoever wakes because of that looks there for the cause.
                let rank = links.main.rank();
                let spawned = thread::Builder::new()
                    .spawn_scoped(scope, move || run_rank(slot, &links, roster, work));
                spawned.map_err(|error| {
                    let error = E::from(candle_core::Error::wrap(error).into());
                    let cause = Cause::Error(error);
                    roster.failed(rank, cause.to_string());
                    cause
                })
            })
            .collect();
        let join = |thread: Result<ScopedJoinHandle<'_, _>, _>| {
            thread?.join().unwrap_or_else(|payload| Err(Cause::Panic(message(&*payload))))
        };
        threads.into_iter().map(join).collect()
    });
    let mut results = Vec::with_capacity(outcomes.len());
    let mut failures = Vec::new();
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(result) => results.push(result),
            Err(cause) => failures.push(RankFailure { rank, cause }),
        }
    }
    let first = roster.first_failure();
    failures.sort_by_key(|failure| Some(failure.rank) != first);
    match failures.into_iter().next() {
        Some(failure) => Err(failure),
        None => Ok(results),
    }
}

/// One rank's thread.
fn run_rank<R: Send, E: From<Error> + fmt::Display + Send>(
    slot: &DeviceSlot,
    links: &Links,
    roster: &Roster,
    work: &(impl Fn(&Rank<'_>) -> Result<R, E> + Sync),
) -> Result<R, Cause<E>> {
    // Opened here, in the thread that drives it.
    let opened = slot.open().map_err(|error| Cause::Error(E::from(error.into())));
    let outcome = opened.and_then(|device| {
        let rank = Rank { device, links };
        match catch_unwind(AssertUnwindSafe(|| rank.device.run(|| work(&rank)))) {
            Ok(outcome) => outcome.map_err(Cause::Error),
            Err(payload) => Err(Cause::Panic(message(&*payload))),
        }
    });
    if let Err(cause) = &outcome {
        roster.failed(links.main.rank(), cause.to_string());
    }
    outcome
}

/// What a panic said.
pub(crate) fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Barrier;

    use single_gpu::device::DeviceKind;

    use super::*;

    /// Nobody waits this long, unless something is wrong.
    const LONG: Duration = Duration::from_secs(30);

    /// Soon over, for the test in which everybody does wait.
    const SHORT: Duration = Duration::from_millis(300);

    fn plan(ranks: usize) -> DevicePlan {
        DevicePlan::new(DeviceKind::Cpu, ranks, NonZeroUsize::new(1)).unwrap()
    }

    fn number(value: f32) -> Tensor {
        Tensor::new(value, &Device::Cpu).unwrap()
    }

    fn recv_number(rank: &Rank<'_>, from: usize) -> Result<f32, Error> {
        Ok(rank.recv(from, &Shape::from(()), DType::F32)?.to_scalar()?)
    }

    /// Rank 0 waits for 1, 1 for 2, …; the last rank misbehaves. Returns each rank's complaint.
    fn chain(timeout: Duration, misbehave: impl Fn() -> Result<(), Error> + Sync) -> Vec<String> {
        let complaints = std::sync::Mutex::new(vec![String::new(); 4]);
        let outcome = run_ranks(&plan(4), timeout, |rank| {
            let next = rank.rank() + 1;
            if next == rank.world_size() {
                return misbehave();
            }
            let outcome = recv_number(rank, next);
            if let Err(error) = &outcome {
                complaints.lock().unwrap()[rank.rank()] = error.to_string();
            }
            outcome.map(|_| ())
        });
        assert!(outcome.is_err());
        let mut complaints = complaints.into_inner().unwrap();
        complaints.pop();
        complaints
    }

    #[test]
    fn results_come_in_rank_order() {
        let squares = run_ranks(&plan(5), LONG, |rank| Ok::<_, Error>(rank.rank() * rank.rank()));
        assert_eq!(squares.unwrap(), [0, 1, 4, 9, 16]);
    }

    #[test]
    fn a_message_is_the_value_at_the_time_it_was_sent() {
        let received = run_ranks(&plan(2), LONG, |rank| {
            if rank.rank() == 0 {
                let value = candle_core::Var::from_tensor(&number(1.0))?;
                rank.send(1, &value)?;
                value.set(&number(2.0))?;
                rank.send(1, &value)?;
                return Ok(vec![]);
            }
            Ok::<_, Error>(vec![recv_number(rank, 0)?, recv_number(rank, 0)?])
        });
        assert_eq!(received.unwrap()[1], [1.0, 2.0]);
    }

    #[test]
    fn everyone_names_the_rank_that_panicked() {
        for complaint in chain(LONG, || panic!("on purpose")) {
            assert!(complaint.contains("rank 3 panicked: on purpose"), "{complaint}");
        }
    }

    #[test]
    fn everyone_names_the_rank_that_failed() {
        for complaint in chain(LONG, || Err(candle_core::Error::Msg("disk full".into()).into())) {
            assert!(complaint.contains("rank 3 failed: disk full"), "{complaint}");
        }
    }

    #[test]
    fn everyone_names_the_rank_that_returned_early() {
        for complaint in chain(LONG, || Ok(())) {
            assert!(complaint.contains("rank 3 returned early"), "{complaint}");
        }
    }

    #[test]
    fn everyone_names_the_rank_that_stalled() {
        let stall = || {
            std::thread::sleep(5 * SHORT);
            Ok(())
        };
        for complaint in chain(SHORT, stall) {
            assert!(complaint.contains("rank 3"), "{complaint}");
        }
    }

    /// Three ranks in a ring, of which each waits for the next to send first, and one that waits for them.
    #[test]
    fn ranks_that_wait_in_a_circle_are_told_so() {
        let (complaints, start) = (std::sync::Mutex::new(Vec::new()), Barrier::new(4));
        let outcome = run_ranks(&plan(4), 5 * SHORT, |rank| {
            let (own, next) = (number(1.0), (rank.rank() + 1) % 3);
            // Nobody's time is up before the last has begun to wait.
            start.wait();
            let outcome = recv_number(rank, next);
            if let Err(error) = &outcome {
                complaints.lock().unwrap().push(error.to_string());
            }
            outcome.and_then(|_| rank.send(next, &own))
        });
        let circle =
            "deadlock: rank 0 waits for rank 1, which waits for rank 2, which waits for rank 0";
        assert_eq!(complaints.into_inner().unwrap(), [circle; 4]);
        let failure = outcome.unwrap_err();
        assert!(matches!(failure.cause, Cause::Error(Error::Deadlock { .. })), "{failure}");
    }

    #[test]
    fn two_loans_that_are_never_read_are_a_deadlock_too() {
        let start = Barrier::new(2);
        let outcome = run_ranks(&plan(2), 5 * SHORT, |rank| {
            start.wait();
            let large = Tensor::zeros(10_000, DType::F32, rank.device())?;
            rank.lend(1 - rank.rank(), &large)?;
            rank.reclaim()
        });
        let failure = outcome.unwrap_err().to_string();
        let circle = "failed: deadlock: rank 0 waits for rank 1, which waits for rank 0";
        assert!(failure.ends_with(circle), "{failure}");
    }

    #[test]
    fn a_rank_that_does_not_exist_is_refused() {
        for other in [0, 2, usize::MAX] {
            let failure = run_ranks(&plan(2), LONG, |rank| match rank.rank() {
                0 => rank.send(other, &number(1.0)),
                _ => Ok(()),
            });
            let failure = failure.unwrap_err();
            assert!(matches!(failure.cause, Cause::Error(Error::NoSuchRank { .. })), "{failure}");
        }
    }
}

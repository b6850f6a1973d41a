//! Devices as threads of one process: one thread drives one device.

mod channels;
mod failure;
mod for_rank_0;
mod line;
mod link;
pub(crate) mod patience;
mod rank;
pub(crate) mod roster;
#[cfg(test)]
mod tests;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use devices::{DevicePlan, DeviceSlot};

use crate::communicator::Error;
pub(crate) use failure::attempt;
use failure::message;
#[cfg(feature = "mpi")]
pub(crate) use failure::tell;
pub use failure::{Cause, RankFailure};
pub use for_rank_0::ForRank0;
pub use line::Line;
pub use link::Traffic;
pub use patience::asleep;
use rank::Links;
pub use rank::Rank;
use roster::Roster;

/// How long a rank waits for another before it gives up, where the caller has no better idea.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// How much longer whoever watches ranks waits than they do: one that waits for another in vain notices by itself that
/// its time is up, and it knows whom it waited for.
pub const GRACE: Duration = Duration::from_secs(10);

/// Runs `work` once for every device of a plan, each in a thread of its own, and waits for all.
///
/// Inside, everything parallel stays on the rank's own device, in a program that begins with
/// [`prepare`](harness::cli::prepare); without it, candle's own operations use all cores. The results come in rank order.
///
/// `work` may fail with any error that an [`Error`] can become and that can be shown, such as `anyhow::Error`. A
/// [`RankFailure`] is an error itself only where its cause is one, which `anyhow::Error` is not: there, `?` wants
/// `.map_err(|failure| anyhow::anyhow!("{failure}"))`.
///
/// A rank waits for a message at most `timeout`, without time for which the whole program was stopped. When a rank
/// fails, every other rank's pending call returns an error that names it, so nobody waits for a rank that is gone.
/// Ranks that wait for each other in a circle are all told so when the first of them has waited long enough.
///
/// # A rank that never ends
///
/// A thread cannot be ended from outside, and this cannot return before all are. So when a rank has failed, and another that was
/// waited for in vain has not ended [`GRACE`] later, or any other `timeout` and [`GRACE`] later, both are told on standard
/// error. A program that began with [`prepare`](harness::cli::prepare), as ours do, ends there, with exit code 1
/// ([`give_up`](harness::cli::give_up)). Any other process is not this function's to end: it goes on waiting.
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
    let nothing = vec![(); plan.len()];
    let thread_of = |_| thread::Builder::new();
    run_in_threads(plan, timeout, nothing, thread_of, Some(timeout), |rank, ()| work(rank))
}

/// [`run_ranks`], each with something of its own, in rank order: what a thread is told through, for instance.
///
/// It is dropped at the end of its rank's thread at the latest, also if the rank's device cannot be opened.
///
/// A rank that never ends is waited for without a word: whoever tells ranks something is in another thread than this call, and
/// can go on without it.
///
/// # Errors
///
/// As [`run_ranks`].
///
/// # Panics
///
/// When there is not one thing for each device.
pub fn run_ranks_with<T, R, E>(
    plan: &DevicePlan,
    timeout: Duration,
    of_ranks: Vec<T>,
    work: impl Fn(&Rank<'_>, T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, RankFailure<E>>
where
    T: Send,
    R: Send,
    E: From<Error> + fmt::Display + Send,
{
    assert_eq!(of_ranks.len(), plan.len(), "one for each device");
    run_in_threads(plan, timeout, of_ranks, |_| thread::Builder::new(), None, work)
}

/// [`run_ranks_with`], each rank in a thread that is made as `thread_of` it says. With `patience` as [`run_ranks`]: so long may
/// a rank be silent that nobody has waited for.
fn run_in_threads<T, R, E>(
    plan: &DevicePlan,
    timeout: Duration,
    of_ranks: Vec<T>,
    thread_of: impl Fn(usize) -> thread::Builder,
    patience: Option<Duration>,
    work: impl Fn(&Rank<'_>, T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, RankFailure<E>>
where
    T: Send,
    R: Send,
    E: From<Error> + fmt::Display + Send,
{
    let roster = Arc::new(Roster::new(plan.len()));
    // Of each thread one end, which is closed when the rank has ended.
    let (failed, failures) = channel();
    let outcomes: Vec<Result<R, Cause<E>>> = thread::scope(|scope| {
        let threads: Vec<_> = plan
            .slots()
            .iter()
            .zip(Links::connect(&roster, plan.len(), timeout))
            .zip(of_ranks)
            .map(|((slot, links), own)| {
                let (roster, work) = (&roster, &work);
                // The links are let go after a failure has been written down: whoever wakes because of that
                // looks there for the cause. So they are held here as well, until the thread has begun.
                let (rank, links) = (links.rank(), Arc::new(links));
                let held = Arc::clone(&links);
                let of_rank = failed.clone();
                let spawned = thread_of(rank).spawn_scoped(scope, move || {
                    let outcome = run_rank(slot, &links, roster, own, work);
                    if outcome.is_err() {
                        // Nobody may be watching.
                        let _ = of_rank.send(());
                    }
                    outcome
                });
                let spawned = spawned.map_err(|error| {
                    let text = format!("its thread could not be started: {error}");
                    let cause = Cause::Error(E::from(Error::Other(text)));
                    roster.failed(rank, cause.to_string());
                    let _ = failed.send(());
                    cause
                });
                drop(held);
                spawned
            })
            .collect();
        drop(failed);
        if let Some(patience) = patience {
            watch::until_all_end(&failures, &roster, patience, || {
                let ranks = threads.iter().enumerate();
                let running = ranks.filter(|(_, it)| it.as_ref().is_ok_and(|it| !it.is_finished()));
                running.map(|(rank, _)| rank).collect()
            });
        }
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
    let first = roster.first_failure().map(|(rank, _)| rank);
    failures.sort_by_key(|failure| Some(failure.rank) != first);
    match failures.into_iter().next() {
        Some(failure) => Err(failure),
        None => Ok(results),
    }
}

/// One rank's thread.
fn run_rank<T: Send, R: Send, E: From<Error> + fmt::Display + Send>(
    slot: &DeviceSlot,
    links: &Links,
    roster: &Roster,
    own: T,
    work: &(impl Fn(&Rank<'_>, T) -> Result<R, E> + Sync),
) -> Result<R, Cause<E>> {
    // Opened here, in the thread that drives it.
    let opened = slot.open().map_err(|error| Cause::Error(E::from(error.into())));
    let outcome = opened.and_then(|device| {
        let rank = Rank::new(device, links);
        attempt(rank.compute_device(), || work(&rank, own))
    });
    if let Err(cause) = &outcome {
        roster.failed(links.rank(), cause.to_string());
    }
    outcome
}

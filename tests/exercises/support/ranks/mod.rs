//! An answer on k ranks, each on a one-core slice of the CPU.
//!
//! The ranks of stage 2 wait for each other until a time limit. In an exercise, a failure is reported at once, always in the
//! same words and with its place. All messages pass through one meeting point, where the state of every rank is known.

mod meeting;
mod rank;

use std::sync::Arc;
use std::time::Duration;

use devices::DevicePlan;
use harness::report::counted;
use params_and_allreduce::communicator::{Communicator as _, Error};
use params_and_allreduce::thread::run_ranks;

use crate::limit::{LIMIT, try_within};
use crate::{mismatch, panic};
use meeting::{CUT, Fault, Meeting};
pub use meeting::{Sends, Sent};
pub use rank::{PROMISE, PROMISE_BROKEN, Rank};

/// Runs `work` on every rank and returns the results in rank order.
/// Panics when a rank returns an error, panics, or never ends, when ranks wait for each other in a circle, when a
/// message is sent that nobody receives, and when memory is written to that was shared. The message names the ranks.
#[track_caller]
pub fn run<R: Send + 'static>(
    world_size: usize,
    sends: Sends,
    work: impl Fn(&Rank) -> Result<R, Error> + Send + Sync + 'static,
) -> Vec<R> {
    match attempt(world_size, sends, work) {
        Ok(results) => results,
        Err(failure) => panic!("on {}: {failure}", counted(world_size, "rank")),
    }
}

/// [`run`]s `work`.
/// Fails with the message of `run`'s panic.
pub fn attempt<R: Send + 'static>(
    world_size: usize,
    sends: Sends,
    work: impl Fn(&Rank) -> Result<R, Error> + Send + Sync + 'static,
) -> Result<Vec<R>, String> {
    attempt_within(LIMIT, world_size, sends, work)
}

/// Parts of the failures of ranks that miss each other.
const BETWEEN_RANKS: [&str; 5] = [
    "deadlock: ",
    " returned early",
    " returned without receiving",
    " still needed it",
    "never received",
];

/// Whether ranks missed each other, and no rank failed by itself.
pub fn is_between_ranks(failure: &str) -> bool {
    BETWEEN_RANKS.iter().any(|part| failure.contains(part))
}

/// Ends a check: there is no `what`, since an [`attempt`] ended with this `failure`.
///
/// The `law` demands that all ranks take part. The message names it if ranks miss each other, or if a rank has an `empty` shard.
/// It would be misleading if an operation failed for another reason, such as its element type.
#[track_caller]
pub fn fail(what: &str, expected: &str, failure: &str, law: &str, empty: bool) -> ! {
    if empty || is_between_ranks(failure) {
        mismatch::fail(what, expected, failure, law)
    }
    mismatch::fail_without_law(what, expected, failure)
}

/// Demands that errors are passed on. The messages of one rank fail, the first rank's or the last one's: sends, receives
/// or both. That rank has to return an error before it misses another rank. Where both fail, the rank takes no part, and all other ranks have to
/// return an error too.
/// Panics when a rank returns a result or panics instead; the message begins with `what`.
#[track_caller]
pub fn errors_are_passed_on<R: Send + 'static>(
    what: &str,
    world_size: usize,
    sends: Sends,
    work: impl Fn(&Rank) -> Result<R, Error> + Send + Sync + Clone + 'static,
) {
    for rank in [world_size - 1, 0] {
        for (what_fails, in_sends, in_receives) in
            [("messages", true, true), ("sends", true, false), ("receives", false, true)]
        {
            let fault = Fault { rank, sends: in_sends, receives: in_receives };
            let meeting = Arc::new(Meeting::new(world_size, sends, Some(fault)));
            let (joined, work) = (Arc::clone(&meeting), work.clone());
            let Some(outcomes) = try_within(LIMIT, move || outcomes(&joined, &work)) else {
                panic!(
                    "{what}: the {what_fails} of rank {rank} fail: {}",
                    meeting.standstill(LIMIT)
                );
            };
            if !meeting.fault_was_met() {
                continue;
            }
            let outcomes = outcomes.unwrap_or_else(|failure| panic!("{what}: {failure}"));
            let alone = !(in_sends && in_receives);
            for (other, outcome) in
                outcomes.iter().enumerate().filter(|(other, _)| !alone || *other == rank)
            {
                let (wanted, got) = match outcome {
                    Ok(_) => ("an error", "a result".to_owned()),
                    Err(why) if why.starts_with("panicked: ") => ("an error", why.clone()),
                    // Another text may be the answer's own for the error. But this rank has gone on.
                    Err(why) if other == rank && !why.contains(CUT) && is_between_ranks(why) => {
                        ("the error of the message", why.clone())
                    }
                    Err(_) => continue,
                };
                mismatch::fail(
                    &format!(
                        "{what}: the {what_fails} of rank {rank} fail, and rank {other} does not say so"
                    ),
                    wanted,
                    &got,
                    "a rank returns the error of a message, and every rank that needs this rank returns an error too",
                );
            }
        }
    }
}

fn attempt_within<R: Send + 'static>(
    limit: Duration,
    world_size: usize,
    sends: Sends,
    work: impl Fn(&Rank) -> Result<R, Error> + Send + Sync + 'static,
) -> Result<Vec<R>, String> {
    let meeting = Arc::new(Meeting::new(world_size, sends, None));
    let joined = Arc::clone(&meeting);
    let outcomes = try_within(limit, move || outcomes(&joined, &work));
    let outcomes = outcomes.unwrap_or_else(|| Err(meeting.standstill(limit)))?;
    meeting.verdict()?;
    Ok(outcomes.into_iter().flatten().collect())
}

/// Runs all ranks, waits for them, and returns the result or the failure of each.
fn outcomes<R: Send>(
    meeting: &Arc<Meeting>,
    work: &(impl Fn(&Rank) -> Result<R, Error> + Sync),
) -> Result<Vec<Result<R, String>>, String> {
    let plan = DevicePlan::slices(meeting.world_size()).map_err(|error| error.to_string())?;
    let results = run_ranks(&plan, LIMIT, |slot| {
        let rank = Rank::new(slot, meeting);
        let outcome = match panic::catch(|| work(&rank)) {
            Ok(Ok(result)) => rank.promises_kept().map(|()| result),
            Ok(Err(error)) => Err(format!("failed: {error}")),
            Err(panic) => Err(format!("panicked: {panic}")),
        };
        meeting.leave(rank.rank(), outcome.as_ref().err());
        Ok::<_, Error>(outcome)
    });
    results.map_err(|failure| failure.to_string())
}

#[cfg(test)]
mod tests;

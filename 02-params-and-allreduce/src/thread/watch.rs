//! Waiting for ranks of which one may never end.
//!
//! When a rank has failed, the others are told as soon as they wait for anybody, and end too. One that does not wait for
//! anybody is at work, or it is stuck: in a file system that does not answer, a pipe that nobody reads, a lock. From
//! outside the two look alike, and what tells them apart is time.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use harness::cli;

use super::GRACE;
use super::patience::Waited;
use super::roster::Roster;

/// Returns when all ranks have ended, which closes `failures`; through it comes word of each that failed.
///
/// Also returns, having told it, when one has failed and others do not come back: [`GRACE`] later where one of these was
/// waited for in vain, else `patience` and [`GRACE`] later. In a program of ours that is its end.
pub(super) fn until_all_end(
    failures: &Receiver<()>,
    roster: &Roster,
    patience: Duration,
    running: impl Fn() -> Vec<usize>,
) {
    if failures.recv().is_err() {
        return;
    }
    let mut since = Waited::new();
    if all_end(failures, &mut since, GRACE) {
        return;
    }
    // It has had its time before.
    let in_vain = roster.accused().filter(|rank| running().contains(rank));
    let given = if in_vain.is_some() { GRACE } else { patience.saturating_add(GRACE) };
    if all_end(failures, &mut since, given) {
        return;
    }
    // Others may be at work, and have not had theirs.
    let stuck = in_vain.map_or_else(running, |rank| vec![rank]);
    if let (Some((rank, why)), false) = (roster.first_failure(), stuck.is_empty()) {
        let (seconds, missing) = (since.so_far().as_secs(), in_words(&stuck));
        cli::give_up(&anyhow::anyhow!(
            "rank {rank} {why}; {seconds} s later {missing} not come back"
        ));
    }
}

/// Whether all ranks end before so much time has passed.
fn all_end(failures: &Receiver<()>, since: &mut Waited, given: Duration) -> bool {
    loop {
        match since.asleep(failures, given) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => return true,
            Err(RecvTimeoutError::Timeout) => return false,
        }
    }
}

/// `rank 1 has`, `ranks 1, 2 have`
fn in_words(ranks: &[usize]) -> String {
    match ranks {
        [rank] => format!("rank {rank} has"),
        ranks => {
            let ranks: Vec<String> = ranks.iter().map(ToString::to_string).collect();
            format!("ranks {} have", ranks.join(", "))
        }
    }
}

//! A rank that panics, fails, returns early or stalls, before or in the middle of every collective.
//!
//! What is promised of the others, and checked ten times for every fault in every collective, with `FULL=1` in the
//! environment a hundred times:
//!
//! - Nobody hangs. A rank that is gone is noticed at once, a rank that stalls within the time-out.
//! - Whoever gets an error is told the rank that began it.
//! - Whoever gets a result has the right one. A rank that has all it needs when the fault happens may
//!   well finish; but where everyone needs the faulty rank and it never sent a thing, nobody does.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

#[path = "../collective.rs"]
mod collective;
mod disagreement;
mod faulty;
mod trial;

use std::env;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use collective::COLLECTIVES;
use faulty::Fault;
use trial::{Trial, check, random_trial};

/// How long a rank waits where the fault is noticed at once: far longer than noticing may take.
const PATIENT: Duration = Duration::from_secs(30);
const HUNG: Duration = Duration::from_secs(100);
/// Trials at a time: nearly all of them only wait.
const AT_A_TIME: usize = 48;

fn trials_in_each(fault: Fault) {
    let trials = if env::var_os("FULL").is_some() { 100 } else { 10 };
    let (finished, next) = (AtomicU64::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::SeqCst);
                    let Some(&collective) = COLLECTIVES.get(index / trials) else { break };
                    in_limited_time(random_trial(collective, fault, index as u64));
                    finished.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(finished.into_inner(), (COLLECTIVES.len() * trials) as u64);
}

/// Checks a trial in a thread that can be left behind, if it should hang.
fn in_limited_time(trial: Trial) {
    let (done, waiting) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        check(&trial);
        // Nobody listens any more if the trial was given up.
        let _ = done.send(());
    });
    match waiting.recv_timeout(HUNG) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("this hangs: {trial:?}"),
        _ => thread.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload)),
    }
}

#[test]
fn everyone_names_a_rank_that_panics() {
    trials_in_each(Fault::Panic);
}

#[test]
fn everyone_names_a_rank_that_fails() {
    trials_in_each(Fault::Error);
}

#[test]
fn everyone_names_a_rank_that_returns_early() {
    trials_in_each(Fault::EarlyReturn);
}

#[test]
fn everyone_names_a_rank_that_stalls() {
    trials_in_each(Fault::Stall);
}

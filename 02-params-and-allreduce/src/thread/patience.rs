//! How a rank waits: awake for a moment, then asleep.
//!
//! To put a thread to sleep and wake it takes the system tens of microseconds: longer than a small message
//! takes to arrive from a rank that is at work on it. So a rank looks again and again for about as long,
//! and sleeps only then. Whenever it guesses wrong it has lost no more than it could have won, and a core
//! that waits for a much slower rank is soon free for others.
//!
//! The rank that it waits for may need this very core: there may be more ranks than cores, and other
//! programs run too. So after its first few looks it lets others go first before each of the next.
//!
//! And it counts only time in which the others could have worked: while the program is stopped (Ctrl-Z in a terminal,
//! a debugger) clocks go on. So it sleeps in short stretches, and one that took far longer counts as a short one.

use std::hint::spin_loop;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// How long a rank stays awake.
const AWAKE: Duration = Duration::from_micros(50);

/// How often it looks before it lets others go first: a few microseconds.
const LOOKS: usize = 100;

/// How long it sleeps at a stretch.
const STRETCH: Duration = Duration::from_millis(500);

/// The next message of a channel.
///
/// # Errors
///
/// As [`asleep`].
pub(crate) fn wait<T>(channel: &Receiver<T>, timeout: Duration) -> Result<T, RecvTimeoutError> {
    for _ in 0..LOOKS {
        if let Some(outcome) = look(channel) {
            return outcome;
        }
        spin_loop();
    }
    let started = Instant::now();
    loop {
        if started.elapsed() >= AWAKE.min(timeout) {
            return asleep(channel, timeout.saturating_sub(AWAKE));
        }
        if let Some(outcome) = look(channel) {
            return outcome;
        }
        yield_now();
    }
}

/// What is in a channel now; `None` for nothing yet.
fn look<T>(channel: &Receiver<T>) -> Option<Result<T, RecvTimeoutError>> {
    match channel.try_recv() {
        Ok(message) => Some(Ok(message)),
        Err(TryRecvError::Disconnected) => Some(Err(RecvTimeoutError::Disconnected)),
        Err(TryRecvError::Empty) => None,
    }
}

/// The next message of a channel; the thread sleeps until it comes.
///
/// Time for which the whole program was stopped counts for nothing.
///
/// # Errors
///
/// When the other end is closed, and when nothing came before `timeout`.
pub fn asleep<T>(channel: &Receiver<T>, timeout: Duration) -> Result<T, RecvTimeoutError> {
    Waited::new().asleep(channel, timeout)
}

/// How long something has been waited for, without the time for which the program was stopped.
#[derive(Debug)]
pub(crate) struct Waited {
    counted: Duration,
    looked: Instant,
}

impl Waited {
    /// Begins now.
    pub(crate) fn new() -> Self {
        Self { counted: Duration::ZERO, looked: Instant::now() }
    }

    /// How long by now. To be asked at least every [`STRETCH`]: what took longer than two was a stop.
    pub(crate) fn so_far(&mut self) -> Duration {
        let now = Instant::now();
        self.counted += (now - self.looked).min(2 * STRETCH);
        self.looked = now;
        self.counted
    }

    /// The next message of a channel, until so much has been waited in all; as [`asleep`].
    pub(crate) fn asleep<T>(
        &mut self,
        channel: &Receiver<T>,
        timeout: Duration,
    ) -> Result<T, RecvTimeoutError> {
        loop {
            let left = timeout.saturating_sub(self.so_far());
            match channel.recv_timeout(left.min(STRETCH)) {
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
                outcome => return outcome,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    /// Far longer than anything here may take.
    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn whoever_waits_gives_up_in_time_awake_or_asleep() {
        let (_open, empty) = channel::<()>();
        for timeout in [Duration::ZERO, AWAKE / 2, AWAKE, 100 * AWAKE, STRETCH + AWAKE] {
            let started = Instant::now();
            assert_eq!(wait(&empty, timeout), Err(RecvTimeoutError::Timeout));
            let waited = started.elapsed();
            assert!(waited >= timeout && waited < LONG, "{waited:?} of {timeout:?}");
        }
    }

    #[test]
    fn a_stop_counts_for_nothing() {
        let Some(an_hour_ago) = Instant::now().checked_sub(Duration::from_secs(3600)) else {
            return eprintln!("skipped: this machine has not been up for an hour");
        };
        let mut waited = Waited { counted: AWAKE, looked: an_hour_ago };
        assert_eq!(waited.so_far(), AWAKE + 2 * STRETCH);
        assert!(waited.so_far() < AWAKE + 3 * STRETCH);
    }

    #[test]
    fn what_comes_early_and_what_comes_late_is_seen() {
        for delay in [Duration::ZERO, AWAKE / 2, 100 * AWAKE] {
            let (to, from) = channel();
            let started = Instant::now();
            thread::scope(|scope| {
                scope.spawn(move || {
                    thread::sleep(delay);
                    to.send(7)
                });
                assert_eq!(wait(&from, LONG), Ok(7));
                // The sender is gone by the end of its thread.
                assert_eq!(wait(&from, LONG), Err(RecvTimeoutError::Disconnected));
            });
            assert!(started.elapsed() < LONG, "after {delay:?}");
        }
    }
}

//! Time without the time for which the whole program was stopped.
//!
//! While a program is stopped, by Ctrl-Z or by a debugger, clocks go on. A time limit for another thread must not.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// The longest sleep at a time. A sleep that takes much longer means that the program was stopped.
pub const STRETCH: Duration = Duration::from_millis(500);

/// Measures time without stops of the program.
#[derive(Debug)]
pub struct Stopwatch {
    counted: Duration,
    looked: Instant,
}

impl Stopwatch {
    /// Begins now.
    pub fn start() -> Self {
        Self { counted: Duration::ZERO, looked: Instant::now() }
    }

    /// Returns the time since the start. Ask at least every [`STRETCH`]: of a longer gap, two stretches count.
    pub fn elapsed(&mut self) -> Duration {
        let now = Instant::now();
        self.counted += (now - self.looked).min(2 * STRETCH);
        self.looked = now;
        self.counted
    }
}

/// Receives the next message of a channel, like [`Receiver::recv_timeout`]. A stop of the program does not count. Fails
/// when the other end is closed, and when nothing came before `timeout`.
pub fn recv_timeout<T>(channel: &Receiver<T>, timeout: Duration) -> Result<T, RecvTimeoutError> {
    let mut stopwatch = Stopwatch::start();
    loop {
        let left = timeout.saturating_sub(stopwatch.elapsed());
        match channel.recv_timeout(left.min(STRETCH)) {
            Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
            outcome => return outcome,
        }
    }
}

/// Pauses between two looks for something that comes within 200 µs, or much later.
pub fn pause(waited: Duration) {
    match waited.as_micros() {
        // The awaited thread may need this core.
        ..200 => thread::yield_now(),
        _ => thread::sleep(Duration::from_micros(50)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Far longer than anything here may take.
    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn a_stop_counts_for_nothing() {
        let Some(an_hour_ago) = Instant::now().checked_sub(Duration::from_secs(3600)) else {
            return eprintln!("skipped: this machine has not been up for an hour");
        };
        let counted = Duration::from_micros(50);
        let mut stopwatch = Stopwatch { counted, looked: an_hour_ago };
        assert_eq!(stopwatch.elapsed(), counted + 2 * STRETCH);
        assert!(stopwatch.elapsed() < counted + 3 * STRETCH);
    }

    #[test]
    fn a_receiver_gives_up_in_time() {
        let (_open, empty) = channel::<()>();
        for timeout in [Duration::ZERO, Duration::from_millis(1), STRETCH + STRETCH / 10] {
            let started = Instant::now();
            assert_eq!(recv_timeout(&empty, timeout), Err(RecvTimeoutError::Timeout));
            let waited = started.elapsed();
            assert!(waited >= timeout && waited < LONG, "{waited:?} of {timeout:?}");
        }
    }

    #[test]
    fn early_and_late_messages_and_the_end_arrive() {
        for delay in [Duration::ZERO, Duration::from_millis(5), STRETCH + STRETCH / 10] {
            let (sender, receiver) = channel();
            thread::scope(|scope| {
                scope.spawn(move || {
                    thread::sleep(delay);
                    sender.send(7)
                });
                assert_eq!(recv_timeout(&receiver, LONG), Ok(7));
                // The sender is gone by the end of its thread.
                assert_eq!(recv_timeout(&receiver, LONG), Err(RecvTimeoutError::Disconnected));
            });
        }
    }
}

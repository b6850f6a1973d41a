//! How a rank waits: awake for a moment, then asleep.
//!
//! To put a thread to sleep and wake it takes the system tens of microseconds: longer than a small message
//! takes to arrive from a rank that is at work on it. So a rank looks again and again for about as long,
//! and sleeps only then. It never waits more than twice as long as the better choice would have made it,
//! and a core that waits for a slower rank is soon free for others.
//!
//! That holds where every thread has a core. With more threads than cores, whoever stays awake keeps a core
//! from the very rank that it waits for; there a rank sleeps at once.

use std::hint::spin_loop;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// How long a rank stays awake, where every thread has a core.
pub(super) const AWAKE: Duration = Duration::from_micros(50);

/// How a rank waits for another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// How long it looks again and again.
    pub(super) awake: Duration,
    /// After how long it gives up.
    pub(super) timeout: Duration,
}

impl Patience {
    /// The next message of a channel.
    pub(super) fn wait<T>(self, channel: &Receiver<T>) -> Result<T, RecvTimeoutError> {
        /// Looks between two at the clock.
        const LOOKS: usize = 16;
        let started = Instant::now();
        let awake = self.awake.min(self.timeout);
        loop {
            for _ in 0..LOOKS {
                match channel.try_recv() {
                    Ok(message) => return Ok(message),
                    Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                    Err(TryRecvError::Empty) => spin_loop(),
                }
            }
            let waited = started.elapsed();
            if waited >= awake {
                return channel.recv_timeout(self.timeout.saturating_sub(waited));
            }
        }
    }
}

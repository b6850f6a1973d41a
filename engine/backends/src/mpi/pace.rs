//! How often a postman looks: all the time for a moment, then now and then.
//!
//! MPI moves large messages only while it is called, and tells nobody when one has come. So a postman has
//! to look again and again; but it shares its core with the rank that computes.

use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

/// How long after the last event a postman goes on looking without a pause. A rank that is at work on what
/// is waited for sends it within this time, or much later.
const AWAKE: Duration = Duration::from_micros(200);

/// How long it sleeps then, while its rank waits: far shorter than anything that takes so long.
const NAP: Duration = Duration::from_micros(50);

/// How long while nobody here waits: others' large messages lie that long before they are fetched.
const LONG_NAP: Duration = Duration::from_micros(500);

/// When something last happened.
#[derive(Debug)]
pub(super) struct Pace {
    last_event: Instant,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { last_event: Instant::now() }
    }

    /// Something happened: more may follow soon.
    pub(super) fn event(&mut self) {
        self.last_event = Instant::now();
    }

    /// How long to sleep before the next look. Where that is not at all, others that need the core have
    /// been let go first.
    pub(super) fn nap(&self, awaited: bool) -> Option<Duration> {
        if !awaited {
            return Some(LONG_NAP);
        }
        if self.last_event.elapsed() >= AWAKE {
            return Some(NAP);
        }
        yield_now();
        None
    }

    /// The same, and the sleep itself.
    pub(super) fn pause(&self) {
        if let Some(nap) = self.nap(true) {
            sleep(nap);
        }
    }
}

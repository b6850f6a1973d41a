//! The port of a rank: what goes out of it, and what comes in, one message at a time each.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use harness::lock::locked;

/// How many stretches of time are remembered in which messages came in. A message that left before them is taken to
/// have found the port free.
const KEPT: usize = 256;

/// A rank's port, for all its threads. All times are counted from when it was made.
pub(super) struct Port {
    origin: Instant,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// Until when messages go out.
    out: Duration,
    /// When messages come in: in order, and none overlaps another.
    into: Vec<Range<Duration>>,
    /// By rank, when its clock began at the latest, in seconds: no announcement has come sooner after it was sent.
    began: HashMap<usize, f64>,
}

impl Port {
    pub fn new() -> Self {
        Self { origin: Instant::now(), taken: Mutex::default() }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        locked(&self.taken)
    }

    pub fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// When a message leaves that comes to the port `now` and takes so long: after those before it.
    pub fn leave(&self, now: Duration, takes: Duration) -> Duration {
        let mut taken = self.taken();
        let leaves = taken.out.max(now);
        taken.out = leaves.saturating_add(takes);
        leaves
    }

    /// When a message of another rank leaves, on this rank's clock. By that rank's, in seconds, it was `announced` then
    /// and `leaves` then.
    ///
    /// The sender's clock is not known here, only that it was read before its announcement came. So it is taken to be
    /// as far behind as the quickest of its announcements says: a message never arrives too early, and a rank that
    /// comes to receive late does not wait for what has long arrived.
    pub fn left(&self, from: usize, announced: f64, leaves: f64) -> Duration {
        let latest = self.now().as_secs_f64() - announced;
        let mut taken = self.taken();
        let began = taken.began.entry(from).or_insert(latest);
        *began = began.min(latest);
        Duration::try_from_secs_f64((*began + leaves).max(0.0)).unwrap_or(Duration::MAX)
    }

    /// When a message has come in that left then and takes so long: as soon as the port has room for it. Whoever asks
    /// late may be told of a time that has passed.
    ///
    /// A thread may ask for a message before another asks for one that left sooner. So the room is not behind all that
    /// were asked for, but where the message fits in between them.
    pub fn arrive(&self, left: Duration, takes: Duration) -> Duration {
        let mut taken = self.taken();
        let mut room = left..left.saturating_add(takes);
        for busy in &taken.into {
            if room.end <= busy.start {
                break;
            }
            let begins = room.start.max(busy.end);
            room = begins..begins.saturating_add(takes);
        }
        let place = taken.into.partition_point(|busy| busy.start < room.start);
        let arrival = room.end;
        // Neighbours that touch are one, from the later to the earlier.
        match taken.into.get_mut(place) {
            Some(next) if next.start == room.end => next.start = room.start,
            _ => taken.into.insert(place, room),
        }
        if let Some(before) = place.checked_sub(1)
            && taken.into[before].end == taken.into[place].start
        {
            let after = taken.into.remove(place);
            taken.into[before].end = after.end;
        }
        let forgotten = taken.into.len().saturating_sub(KEPT);
        taken.into.drain(..forgotten);
        arrival
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn messages_leave_one_after_the_other() {
        let port = Port::new();
        assert_eq!(port.leave(ms(5), ms(10)), ms(5));
        assert_eq!(port.leave(ms(6), ms(10)), ms(15));
        assert_eq!(port.leave(ms(40), ms(10)), ms(40));
    }

    #[test]
    fn a_message_comes_in_where_it_fits_between_the_others() {
        let port = Port::new();
        assert_eq!(port.arrive(ms(100), ms(50)), ms(150));
        // Asked for later, it left sooner, and is there before the first begins to come.
        assert_eq!(port.arrive(ms(20), ms(50)), ms(70));
        // It would overlap the first: 70 to 100 is too short for it.
        assert_eq!(port.arrive(ms(60), ms(40)), ms(190));
        // This one is not too long.
        assert_eq!(port.arrive(ms(0), ms(30)), ms(100));
        assert_eq!(port.arrive(ms(0), ms(20)), ms(20));
        // Without a gap, they are one.
        assert_eq!(port.taken().into, [ms(0)..ms(190)]);
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let port = Port::new();
        for second in 0..2 * KEPT as u64 {
            port.arrive(ms(1000 * second), ms(1));
        }
        assert_eq!(port.taken().into.len(), KEPT);
        assert_eq!(port.arrive(ms(0), ms(5000)), ms(5000));
    }

    #[test]
    fn a_clock_is_as_far_behind_as_its_quickest_announcement() {
        let port = Port::new();
        // It began an hour before this port, as far as can be told.
        let left = port.left(1, 3600.0, 3601.0);
        assert!(left >= ms(1000) && left < ms(1500), "{left:?}");
        // Announced ten seconds before it came, so it is no news of when that clock began.
        let late = port.left(1, 3590.0, 3601.0);
        assert_eq!(late, left);
    }
}

//! Messages that MPI has not finished: they are looked after, and whom they are held up by is told.

use std::time::{Duration, Instant};

use ::mpi::request::{LocalScope, Request};

use super::pace::Pace;
use super::postman::Postman;

/// Who has not taken a message, or given all of it, after this time holds a postman up. Others take milliseconds; and
/// ranks wait for each other for longer.
const HELD_UP: Duration = Duration::from_secs(1);

/// A message, and the rank to or from which it is.
pub(super) type OnItsWay<'a, 's> = (usize, Request<'a, [u8], &'s LocalScope<'a>>);

impl Postman {
    /// Looks after messages until MPI has finished all of them, and converses with other postmen. In between it does
    /// what else is to be done: `meanwhile` says whether that was anything.
    ///
    /// Meanwhile another message may come that is looked after in the same way. Who holds up the first then still does.
    pub(super) fn attend(
        &mut self,
        mut pending: Vec<OnItsWay<'_, '_>>,
        meanwhile: fn(&mut Self) -> bool,
    ) {
        let mut pace = Pace::new();
        let mut since = Instant::now();
        let outer = self.line.hold_up(None);
        loop {
            let before = pending.len();
            pending = unfinished(pending);
            let Some((other, _)) = pending.first() else { break };
            if pending.len() < before {
                since = Instant::now();
            }
            let own = (since.elapsed() >= HELD_UP).then_some(*other);
            self.line.hold_up(own.or(outer));
            let busy = self.converse();
            match meanwhile(self) || busy {
                true => pace.event(),
                false => pace.pause(),
            }
        }
        self.line.hold_up(outer);
    }
}

/// What MPI has not finished.
fn unfinished<'a, 's>(pending: Vec<OnItsWay<'a, 's>>) -> Vec<OnItsWay<'a, 's>> {
    let test = |(other, request): OnItsWay<'a, 's>| Some((other, request.test().err()?));
    pending.into_iter().filter_map(test).collect()
}

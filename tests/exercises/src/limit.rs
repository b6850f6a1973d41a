//! A time limit around work that may never end.
//!
//! A thread cannot be stopped from outside. So the work gets a thread of its own, which is left behind
//! when its time is up, and goes when the program does.
//!
//! An answer that does not end in one test of a check seldom ends in the next. So after the first, the
//! others get less time: nobody wants to wait for the same news six times.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{self, Builder};
use std::time::Duration;

/// Whether something has run out of time in this program.
static SOMETHING_HANGS: AtomicBool = AtomicBool::new(false);

/// What the others get then: plenty for what takes milliseconds.
const AFTERWARDS: Duration = Duration::from_secs(2);

/// `limit`, or less if something has run out of time before.
pub(crate) fn still_allowed(limit: Duration) -> Duration {
    if SOMETHING_HANGS.load(Ordering::Relaxed) { limit.min(AFTERWARDS) } else { limit }
}

/// What `work` returns, or `None` when it takes longer than `limit`.
/// Panics when `work` does, or no thread can be started.
pub fn try_within<R: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> R + Send + 'static,
) -> Option<R> {
    let (done, waiting) = channel();
    // A panic is reported under the name of the test that it belongs to.
    let name = thread::current().name().unwrap_or("check").to_owned();
    let worker = Builder::new().name(name).spawn(move || {
        // Nobody listens any more when the time was up.
        let _ = done.send(work());
    });
    let worker = worker.expect("a check needs one more thread");
    match waiting.recv_timeout(limit) {
        Ok(result) => Some(result),
        Err(RecvTimeoutError::Timeout) => {
            SOMETHING_HANGS.store(true, Ordering::Relaxed);
            None
        }
        Err(RecvTimeoutError::Disconnected) => match worker.join() {
            Err(panic) => resume_unwind(panic),
            Ok(()) => unreachable!("a worker that does not panic sends its result"),
        },
    }
}

/// What `work` returns.
/// Panics when `work` does, or takes longer than `limit` (2 s, if something has taken too long before): the message
/// then says that it was `what` that did not end.
#[track_caller]
pub fn within<R: Send + 'static>(
    limit: Duration,
    what: &str,
    work: impl FnOnce() -> R + Send + 'static,
) -> R {
    let limit = still_allowed(limit);
    let Some(result) = try_within(limit, work) else {
        let seconds = limit.as_secs_f64();
        panic!("{what} did not end within {seconds:.1} s: is there a loop that never ends?");
    };
    result
}

/// The same for a call of an answer's function: where it panics, its message is followed by the `call`.
/// Panics as [`within`] does.
#[track_caller]
pub fn called_within<R: Send + 'static>(
    limit: Duration,
    call: &str,
    work: impl FnOnce() -> R + Send + 'static,
) -> R {
    let outcome = within(limit, call, move || catch_unwind(AssertUnwindSafe(work)));
    outcome.unwrap_or_else(|panic| {
        eprintln!("that was {call}");
        resume_unwind(panic)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn message_of(
        limit: Duration,
        work: impl FnOnce() -> u32 + Send + std::panic::UnwindSafe + 'static,
    ) -> String {
        let panic = catch_unwind(|| within(limit, "counting", work));
        *panic.unwrap_err().downcast().unwrap()
    }

    #[test]
    fn work_that_ends_gives_its_result() {
        assert_eq!(within(LONG, "adding", || 1 + 1), 2);
    }

    #[test]
    fn work_that_never_ends_is_named() {
        let message = message_of(Duration::from_millis(50), || {
            loop {
                thread::sleep(LONG);
            }
        });
        assert!(message.contains("counting did not end within 0.1 s"), "{message}");
    }

    #[test]
    fn a_panic_keeps_its_message() {
        // A backtrace, where one is asked for, takes its time.
        let message = message_of(LONG, || panic!("{} apples", std::hint::black_box(3)));
        assert_eq!(message, "3 apples");
    }
}

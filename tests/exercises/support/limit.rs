//! A time limit around work that may never end.
//!
//! A thread cannot be stopped from outside. The work runs in a separate thread, which is left behind when its time is up and
//! ends with the program.
//!
//! An answer that hangs in one law usually hangs in the next law too. After the first time limit, all others are shorter.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

use harness::lock::locked;

use crate::panic::{catch, given, go_on, share_input, shared_input};

/// The time that an answer gets: far more than any of them needs.
pub const LIMIT: Duration = Duration::from_secs(10);

/// Whether something has run out of time in this program.
static SOMETHING_HANGS: AtomicBool = AtomicBool::new(false);

/// The time limit after that: plenty for milliseconds of work.
const AFTERWARDS: Duration = Duration::from_secs(2);

/// `limit`, or less if something has run out of time before.
pub(crate) fn still_allowed(limit: Duration) -> Duration {
    if SOMETHING_HANGS.load(Ordering::Relaxed) { limit.min(AFTERWARDS) } else { limit }
}

/// The result of `work`, or `None` when it takes longer than `limit`.
/// Panics when `work` does, or no thread can be started.
pub fn try_within<R: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> R + Send + 'static,
) -> Option<R> {
    let (done, waiting) = channel();
    let input = shared_input();
    let worker = Builder::new().spawn(move || {
        share_input(input);
        // After the time limit nobody receives the result.
        let _ = done.send(catch(work));
    });
    worker.expect("a check needs one more thread");
    match waiting.recv_timeout(limit) {
        Ok(result) => Some(result.unwrap_or_else(|panic| go_on(panic))),
        Err(_) => {
            SOMETHING_HANGS.store(true, Ordering::Relaxed);
            None
        }
    }
}

/// The result of `work`, which calls the answer with the `input`; `work` may describe other inputs with [`given`].
/// Panics when `work` does, or takes longer than [`LIMIT`] (2 s, if something has taken too long before). The message
/// names the input.
#[track_caller]
pub fn within<R: Send + 'static>(input: &str, work: impl FnOnce() -> R + Send + 'static) -> R {
    within_limit(LIMIT, input, work)
}

#[track_caller]
fn within_limit<R: Send + 'static>(
    limit: Duration,
    input: &str,
    work: impl FnOnce() -> R + Send + 'static,
) -> R {
    given(input);
    let limit = still_allowed(limit);
    let Some(result) = try_within(limit, work) else {
        let (input, seconds) = (locked(&shared_input()).clone(), limit.as_secs_f64());
        panic!("{input} did not end within {seconds:.1} s: is there a loop that never ends?");
    };
    given("");
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_of(limit: Duration, work: impl FnOnce() -> u32 + Send + 'static) -> String {
        catch(|| within_limit(limit, "counting", work)).unwrap_err().message
    }

    #[test]
    fn work_that_ends_gives_its_result() {
        assert_eq!(within("adding", || 1 + 1), 2);
    }

    #[test]
    fn work_that_never_ends_is_named_by_its_last_input() {
        let message = message_of(Duration::from_millis(50), || {
            given("counting apples");
            loop {
                std::thread::sleep(LIMIT);
            }
        });
        assert!(message.contains("counting apples did not end within 0.1 s"), "{message}");
    }

    #[test]
    fn a_panic_keeps_its_message_and_names_the_input() {
        let message = message_of(LIMIT, || panic!("{} apples", std::hint::black_box(3)));
        assert_eq!(message, "counting: a panic: 3 apples");
    }
}

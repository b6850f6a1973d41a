//! A limit around work that may never end.
//!
//! The limit is processor time: a busy machine does not end an answer that is only slow. An answer that waits for ever takes no
//! processor time, and is ended when this program has taken none for as long.
//!
//! A thread cannot be stopped from outside. The work runs in a separate thread, which is left behind at the limit and ends with
//! the program. [`laws`](mod@crate::laws) checks nothing more after that.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::{Duration, Instant};

use harness::lock::locked;

use crate::panic::{catch, given, go_on, share_input, shared_input};

/// The limit of an answer. The slowest call of our solutions takes a fifth of it.
pub const LIMIT: Duration = Duration::from_secs(2);

/// The time between two readings of the processor time.
const LOOK: Duration = Duration::from_millis(250);

/// Whether something has passed its limit.
static SOMETHING_HANGS: AtomicBool = AtomicBool::new(false);

/// Whether something has passed its limit since the last call.
pub(crate) fn take_hang() -> bool {
    SOMETHING_HANGS.swap(false, Ordering::Relaxed)
}

/// The result of `work`, or `None` when it passes the `limit`.
/// Panics when `work` does, or no thread can be started.
pub fn try_within<R: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> R + Send + 'static,
) -> Option<R> {
    let (done, waiting) = channel();
    let input = shared_input();
    let started = Instant::now();
    let before = processor_time(started);
    let worker = Builder::new().spawn(move || {
        share_input(input);
        // After the limit nobody receives the result.
        let _ = done.send(catch(work));
    });
    worker.expect("a check needs one more thread");
    let (mut last, mut last_change) = (before, started);
    while last.saturating_sub(before) < limit && last_change.elapsed() < limit {
        if let Ok(result) = waiting.recv_timeout(LOOK.min(limit)) {
            return Some(result.unwrap_or_else(|panic| go_on(panic)));
        }
        let now = processor_time(started);
        if now != last {
            (last, last_change) = (now, Instant::now());
        }
    }
    SOMETHING_HANGS.store(true, Ordering::Relaxed);
    None
}

/// The processor time of this program, in steps of a hundredth of a second. Only Linux has it in a file; elsewhere it is a third
/// of the time since `started`.
fn processor_time(started: Instant) -> Duration {
    let ticks = || {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The name of the program, in parentheses, may have spaces. Eleven fields later come the ticks of the program and of
        // the system's work for it.
        let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(2);
        fields.map(|ticks| ticks.parse::<u64>().ok()).sum::<Option<u64>>()
    };
    ticks().map_or_else(|| started.elapsed() / 3, |ticks| Duration::from_millis(10 * ticks))
}

/// The result of `work`, which calls the answer with the `input`; `work` may describe other inputs with [`given`].
/// Panics when `work` does, or passes the [`LIMIT`]. The message names the input.
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
        let message = message_of(Duration::from_millis(400), || {
            given("counting apples");
            loop {
                std::thread::park();
            }
        });
        assert!(message.contains("counting apples did not end within 0.4 s"), "{message}");
    }

    #[test]
    fn a_panic_keeps_its_message_and_names_the_input() {
        let message = message_of(LIMIT, || panic!("{} apples", std::hint::black_box(3)));
        assert_eq!(message, "counting: a panic: 3 apples");
    }
}

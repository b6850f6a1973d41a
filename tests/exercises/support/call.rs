//! Calls of an answer: panics with their place and input, and a limit around work that may never end.
//!
//! The limit is processor time: a busy machine does not end an answer that is only slow. Work that waits for ever takes no
//! processor time, and is given up when this program has taken hardly any for as long.
//!
//! A thread cannot be stopped from outside. The work runs in a separate thread, which is left behind at the limit and ends with
//! the program. [`laws`](mod@crate::laws) checks nothing more after that.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::fs;
use std::panic::{
    AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind, set_hook, take_hook,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, Once};
use std::thread::Builder;
use std::time::Duration;

use harness::lock::locked;
use harness::stopwatch::Stopwatch;

use crate::outcome::{Finding, Outcome};

/// The limit of an answer for one case. The slowest call of our solutions takes a fifth of it.
pub const LIMIT: Duration = Duration::from_secs(2);

/// The time between two looks at work that may hang.
const LOOK: Duration = Duration::from_millis(10);

/// The looks between two readings of the processor time.
const READING: u32 = 25;

/// Work waits if the program takes at most this part of a core.
const IDLE: u32 = 50;

/// Whether an answer has passed its limit.
static SOMETHING_HANGS: AtomicBool = AtomicBool::new(false);

/// The first `todo!` that a law came to, in any thread.
static TODO: Mutex<Option<Panic>> = Mutex::new(None);

thread_local! {
    /// Whether this thread catches panics.
    static CATCHES: Cell<bool> = const { Cell::new(false) };
    /// The last panic of this thread.
    static LAST: RefCell<Option<Panic>> = const { RefCell::new(None) };
    /// The input of the answer. A thread that works for a check shares the input with that check.
    static INPUT: RefCell<Arc<Mutex<String>>> = RefCell::default();
}

/// A panic that was caught.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Panic {
    /// The message.
    pub message: String,
    /// File, line and column; none if a check or its support panicked.
    pub place: Option<String>,
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.place.iter().try_for_each(|place| write!(f, " ({place})"))
    }
}

/// Describes the input of the calls that come next. The message of a panic begins with this description.
pub fn given(input: impl Into<String>) {
    *locked(&INPUT.with_borrow(Arc::clone)) = input.into();
}

/// The `todo!` that was met since the last call.
pub(crate) fn take_todo() -> Option<Panic> {
    locked(&TODO).take()
}

/// Whether an answer has passed its limit since the last call.
pub(crate) fn take_hang() -> bool {
    SOMETHING_HANGS.swap(false, Ordering::Relaxed)
}

/// The result of `work`, or its panic.
///
/// Nothing is printed: when all ranks panic in one line, one report is easier to read than seven.
pub(crate) fn catch<R>(work: impl FnOnce() -> R) -> Result<R, Panic> {
    static LISTEN: Once = Once::new();
    LISTEN.call_once(listen);
    let outer = CATCHES.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    CATCHES.set(outer);
    outcome.map_err(|payload| match payload.downcast::<Panic>() {
        Ok(panic) => *panic,
        Err(_) => LAST.take().unwrap_or_default(),
    })
}

/// Keeps panics in threads that catch them. All others are printed as before.
fn listen() {
    let print = take_hook();
    set_hook(Box::new(move |info| {
        if !CATCHES.get() {
            return print(info);
        }
        let panic = Panic::of(info);
        if panic.place.is_some() && panic.message.contains("not yet implemented") {
            locked(&TODO).get_or_insert_with(|| panic.clone());
        }
        LAST.set(Some(panic));
    }));
}

impl Panic {
    fn of(info: &PanicHookInfo<'_>) -> Self {
        let message = info.payload_as_str().unwrap_or("a panic without a message").to_owned();
        let Some(place) = info.location() else { return Self { message, place: None } };
        let file = place.file().replace('\\', "/");
        let ours = ["exercises/support/", "exercises/checks/"].iter().any(|own| file.contains(own));
        if ours && !cfg!(test) {
            return Self { message, place: None };
        }
        let input = locked(&INPUT.with_borrow(Arc::clone)).clone();
        let message = match input.as_str() {
            "" => message,
            input => format!("{input}: a panic: {message}"),
        };
        // Of another crate's file, the folders above the crate are of no interest.
        let (_, inside) = file.split_once("/registry/src/").unwrap_or_default();
        let file = inside.split_once('/').map_or(&*file, |(_, inside)| inside);
        Self { message, place: Some(format!("{file}:{}:{}", place.line(), place.column())) }
    }
}

/// The result of `work`, which calls the answer with the `input`; `work` may describe other inputs with [`given`].
/// Fails when `work` passes the [`LIMIT`]; the message names the input. Panics when `work` does.
pub fn within<R: Send + 'static>(
    input: &str,
    work: impl FnOnce() -> R + Send + 'static,
) -> Outcome<R> {
    given(input);
    let shared = INPUT.with_borrow(Arc::clone);
    let result = watched(LIMIT, work, || None).map_err(|waited| {
        let (input, seconds) = (locked(&shared).clone(), waited.seconds.as_secs_f64());
        Finding::new(format!(
            "{input} did not end within {seconds:.1} s: is there a loop that never ends?"
        ))
    })?;
    given("");
    Ok(result)
}

/// Work that was given up.
pub(crate) struct GivenUp {
    /// The limit, or the time until `look` found a reason.
    pub(crate) seconds: Duration,
    /// The reason, if it was not the limit.
    pub(crate) why: Option<String>,
}

/// The result of `work`. Fails at the `limit`, or when `look`, which is asked all the time, finds a reason to give up.
/// Panics when `work` does, or no thread can be started.
pub(crate) fn watched<R: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> R + Send + 'static,
    mut look: impl FnMut() -> Option<String>,
) -> Result<R, GivenUp> {
    let (done, waiting) = channel();
    let input = INPUT.with_borrow(Arc::clone);
    let worker = Builder::new().spawn(move || {
        INPUT.set(input);
        // Nobody receives the result of work that was given up.
        let _ = done.send(catch(work));
    });
    worker.expect("a check needs one more thread");
    let mut clock = Stopwatch::start();
    let before = processor_time().unwrap_or_default();
    // The processor time and the time at which the work did not wait.
    let mut last = (before, Duration::ZERO);
    for looks in 1u32.. {
        match waiting.recv_timeout(LOOK) {
            // The thread that waits panics in place of the thread that worked.
            Ok(result) => return Ok(result.unwrap_or_else(|panic| resume_unwind(Box::new(panic)))),
            Err(RecvTimeoutError::Disconnected) => unreachable!("the worker sends before it ends"),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let (why, seconds) = (look(), clock.elapsed());
        if why.is_some() {
            return Err(GivenUp { seconds, why });
        }
        if looks.is_multiple_of(READING) {
            // Elsewhere than on Linux, a third of the time counts.
            let now = processor_time().unwrap_or(seconds / 3);
            if now.saturating_sub(last.0) > (seconds - last.1) / IDLE {
                last = (now, seconds);
            }
            if now.saturating_sub(before) >= limit || seconds - last.1 >= limit {
                break;
            }
        }
    }
    // Tests of this module run at the same time as others.
    SOMETHING_HANGS.store(!cfg!(test), Ordering::Relaxed);
    Err(GivenUp { seconds: limit, why: None })
}

/// The processor time of this program, in steps of a hundredth of a second. Only Linux has it in a file.
fn processor_time() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in parentheses, may have spaces. Eleven fields later come the ticks of the program and those of
    // the system's work for it.
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(2);
    let ticks: Option<u64> = fields.map(|ticks| ticks.parse::<u64>().ok()).sum();
    Some(Duration::from_millis(10 * ticks?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_has_its_input_and_its_place() {
        let line = line!() + 1;
        let panic = catch(|| -> u32 { panic!("{} apples", 3) }).unwrap_err();
        assert_eq!(panic.message, "3 apples");
        assert!(panic.place.unwrap().starts_with(&format!("{}:{line}:", file!())));
        given("a batch of 0");
        let panic = catch(|| -> u32 { panic!("no sample") }).unwrap_err();
        assert_eq!(panic.message, "a batch of 0: a panic: no sample");
        assert_eq!(catch(|| 7), Ok(7));
    }

    #[test]
    fn work_ends_with_its_result_or_by_its_time_or_for_a_reason() {
        assert_eq!(within("adding", || 1 + 1), Ok(2));
        let sleep = || std::thread::sleep(5 * LIMIT);
        let given_up = watched(LIMIT, sleep, || Some("stuck".to_owned())).unwrap_err();
        assert_eq!(given_up.why.as_deref(), Some("stuck"));
        assert!(
            watched(Duration::from_millis(50), sleep, || None).is_err_and(|it| it.why.is_none())
        );
    }
}

//! How a program begins, and how it ends: its error message and its exit code.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::{ExitCode, exit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{env, fmt, thread};

use itertools::Itertools as _;
use serde::{Deserialize, Serialize};
use signal_hook::{consts::SIGXFSZ, flag};

use crate::interrupt::Interrupted;
use crate::launcher::{self, MEETING};
use crate::machine::DATA_FOLDER;
use crate::report::{StdoutClosed, error_line, line, remove_partial_files};
use crate::{allocator, interrupt};

/// The environment variable with the web addresses of Fashion-MNIST.
pub const DATA_MIRRORS: &str = "COURSE_MIRRORS";

/// Whether this process has called [`prepare`].
static PREPARED: AtomicBool = AtomicBool::new(false);

/// Whether a file has exceeded `ulimit -f`. With a handler for the signal, the write returns an error and the process goes on.
static TOO_LARGE: AtomicBool = AtomicBool::new(false);

/// A step of ending a program that takes longer than this is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// The time in which a launcher reads a line of standard error.
const FORWARDED: Duration = Duration::from_millis(200);

/// Prepares the process. `main` calls this function before anything else.
///
/// - The allocator keeps freed memory. A failed allocation ends the process in one line, with exit code 1.
/// - candle's elementwise operations run in the thread that calls them, and not in one pool of all slices.
/// - Empty environment variables of the course, of candle and of NCCL count as unset.
/// - NCCL gets its variables if a launcher such as `torchrun` started this process.
/// - A file that exceeds the system's limit causes an error with the name of the file.
/// - [`give_up`] ends the process.
///
/// A process that may have several threads keeps its environment and the allocator's setting: another thread may read them.
#[expect(unsafe_code, reason = "candle, NCCL, clap and the allocator offer no other way")]
pub fn prepare() {
    PREPARED.store(true, Ordering::SeqCst);
    // Without the handler the signal ends the process, as by default.
    let _ = flag::register(SIGXFSZ, &TOO_LARGE);
    allocator::end_without_memory();
    if num_threads::is_single_threaded() != Some(true) {
        return;
    }
    // SAFETY: this is the only thread, so no other thread frees memory, or could begin to.
    unsafe { allocator::keep_pages() }
    // An error in the launcher's variables is reported when the processes connect.
    let place = launcher::place().ok().flatten();
    for (variable, default) in [
        ("CANDLE_NUM_THREADS", Some("1")),
        (MEETING, place.as_ref().map(|place| &*place.meeting)),
        // With 0 ranks connect when they join, which has a time limit here, and not in the first collective.
        ("NCCL_RUNTIME_CONNECT", place.as_ref().map(|_| "0")),
        (DATA_FOLDER, None),
        (DATA_MIRRORS, None),
        // An empty value does not count, by no-color.org; `console` counts it.
        ("NO_COLOR", None),
    ] {
        // A shell user writes `VARIABLE= program` to run a program without the variable.
        if env::var_os(variable).is_some_and(|value| !value.is_empty()) {
            continue;
        }
        // SAFETY: no other thread exists, as above, so none reads or writes the environment.
        unsafe {
            match default {
                Some(value) => env::set_var(variable, value),
                None => env::remove_var(variable),
            }
        }
    }
}

/// A flag that makes no sense, alone or together with other flags.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(String);

impl UsageError {
    /// Makes an error with a message that says what is wrong and what would be right.
    pub fn new(message: impl fmt::Display) -> Self {
        Self(message.to_string())
    }
}

/// An error that another process has reported, one for all processes: only an exit code is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("exit code {0}, for a reason that is reported elsewhere")]
pub struct ReportedElsewhere(pub u8);

/// Reports an error, if there is one, and returns the exit code for `main`.
pub fn conclude(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => interrupt::exit_code().map_or(ExitCode::SUCCESS, ExitCode::from),
        Err(error) => ExitCode::from(report_error(&error)),
    }
}

/// Reports an error on standard error, or clap's `--help` on standard output. Returns the exit code.
pub fn report_error(error: &anyhow::Error) -> u8 {
    if let Some(help) = error.downcast_ref::<clap::Error>().filter(|error| !error.use_stderr()) {
        let text = help.render();
        let text =
            if console::colors_enabled() { text.ansi().to_string() } else { text.to_string() };
        // Standard output may be closed.
        let _ = line(text.trim_end());
    }
    let ErrorReport { code, message } = ErrorReport::of(error);
    if let Some(message) = message {
        error_line(format_args!("error: {message}"));
    }
    code
}

/// Reports an error, removes half-written files and ends the program, for a `main` that cannot return because one of its threads
/// never ends. A process that has not called [`prepare`], such as a test, prints the same message and goes on.
#[expect(clippy::disallowed_methods, reason = "where nothing can return")]
pub fn give_up(error: &anyhow::Error) {
    let ErrorReport { code, message } = ErrorReport::of(error);
    // A progress bar may be in this line.
    let new_line = if io::stderr().is_terminal() { "\n" } else { "" };
    let line = format!("{new_line}error: {}", message.unwrap_or_default());
    at_most(STUCK_AFTER, move || error_line(line));
    if PREPARED.load(Ordering::SeqCst) {
        at_most(STUCK_AFTER, remove_partial_files);
        // This prints buffered output, unless the thread that never ends holds the lock of standard output.
        exit(code.into())
    }
}

/// Does work that comes before the first line of a run. On a terminal, work of more than a second is announced as `activity`, such as
/// `drawing images`. Ctrl-C ends the process with one line. Fails when the system refuses to report signals.
pub fn before_a_run<T>(activity: &str, work: impl FnOnce() -> T) -> io::Result<T> {
    interrupt::watch()?;
    let (working, done) = channel::<()>();
    Ok(thread::scope(|scope| {
        let accompany = move || accompany(activity, &done);
        // Without another thread, the work is done in silence.
        let _ = thread::Builder::new().spawn_scoped(scope, accompany);
        let result = work();
        drop(working);
        result
    }))
}

/// Watches work until the other end of `done` is dropped.
fn accompany(activity: &str, done: &Receiver<()>) {
    /// A signal waits so long at most.
    const LOOK: Duration = Duration::from_millis(50);
    /// Work of this length seems stuck.
    const SILENT: Duration = Duration::from_secs(1);
    let begun = Instant::now();
    let mut is_silent = io::stderr().is_terminal();
    loop {
        let has_ended = done.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout);
        if interrupt::requested() {
            return give_up(&Interrupted(activity.to_owned()).into());
        }
        if has_ended {
            return;
        }
        if is_silent && begun.elapsed() >= SILENT {
            error_line(format_args!("{activity} …"));
            is_silent = false;
        }
    }
}

/// Ends this process, one of several, with exit code 1. Prints the reason, and calls `end_job`, which may end the others.
#[expect(clippy::disallowed_methods, reason = "ends a job in which nothing can return")]
pub fn end_process(reason: &str, end_job: impl FnOnce() + Send + 'static) -> ! {
    let line = reason.to_owned();
    at_most(STUCK_AFTER, move || error_line(line));
    // A launcher that forwards standard error has to read the line before the job ends.
    thread::sleep(FORWARDED);
    at_most(5 * STUCK_AFTER, || {
        let _ = io::stdout().flush();
        end_job();
    });
    exit(1)
}

/// Calls `work` in another thread and waits for at most `limit`. The work may be stuck, as in a pipe without a reader.
fn at_most(limit: Duration, work: impl FnOnce() + Send + 'static) {
    let (working, done) = channel::<()>();
    let work = move || {
        work();
        drop(working);
    };
    if thread::Builder::new().spawn(work).is_ok() {
        let _ = done.recv_timeout(limit);
    }
}

/// The exit code and the message of an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReport {
    /// 2 for flags that make no sense, 1 for any other failure, 0 for `--help`.
    pub code: u8,
    /// One line. `None` if there is nothing to report.
    pub message: Option<String>,
}

impl ErrorReport {
    /// Describes an error.
    pub fn of(error: &anyhow::Error) -> Self {
        let (code, message) = if let Some(ReportedElsewhere(code)) = error.downcast_ref() {
            (*code, None)
        } else if let Some(error) = error.downcast_ref::<clap::Error>() {
            let refusal = error.use_stderr().then(|| one_line(&error.to_string()));
            (if refusal.is_some() { 2 } else { 0 }, refusal)
        } else if error.is::<UsageError>() {
            (2, Some(error.to_string()))
        } else if error.is::<Interrupted>() {
            (interrupt::exit_code().unwrap_or(1), Some(error.to_string()))
        } else if is_stdout_closed(error) {
            (0, None)
        } else {
            (1, Some(with_hint(with_causes(error))))
        };
        Self { code, message }
    }
}

/// Joins the messages of an error and of its causes. A cause that the error repeats is left out.
fn with_causes(error: &anyhow::Error) -> String {
    error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), |message, cause| {
        if message.contains(&cause) { message } else { format!("{message}: {cause}") }
    })
}

/// Whether the reader of standard output has closed it, as `| head` does.
fn is_stdout_closed(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()?.get_ref());
    causes.any(|inner| inner.is::<StdoutClosed>())
}

/// Shortens a message of clap to one line, without the usage and the hint at `--help`.
fn one_line(message: &str) -> String {
    let text = message.strip_prefix("error: ").unwrap_or(message);
    let ends = ["\n\nUsage:", "\n\nFor more information"].map(|end| text.find(end));
    let text = &text[..ends.into_iter().flatten().min().unwrap_or(text.len())];
    text.split("\n  tip: ").map(|part| part.split_whitespace().join(" ")).join("; ")
}

/// Appends a hint to a message with an error code of CUDA or its libraries that a user can do something about.
fn with_hint(message: String) -> String {
    let has = |code| message.contains(code);
    let hint = if has("CUDA_ERROR_OUT_OF_MEMORY") || has("_STATUS_ALLOC_FAILED") {
        "the GPU's memory is full: take a smaller --batch-size, give fewer devices a share of that GPU, or end what else is \
         running there (nvidia-smi)"
    } else if has("CUDA_ERROR_NO_BINARY_FOR_GPU") {
        "the program's kernels are for another GPU: build it with CUDA_COMPUTE_CAP set to this one's compute capability, \
         without the dot (nvidia-smi --query-gpu=compute_cap --format=csv)"
    } else if has("CUDA_ERROR_UNSUPPORTED_PTX_VERSION") {
        "the GPU's driver is older than the CUDA that the program was built with: take a newer driver, or an older CUDA"
    } else {
        return message;
    };
    format!("{message}; {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_of_standard_output_may_leave_and_no_other() {
        let code = |error: io::Error| {
            ErrorReport::of(&anyhow::Error::from(error).context("while training")).code
        };
        assert_eq!(code(io::Error::new(io::ErrorKind::BrokenPipe, StdoutClosed)), 0);
        assert_eq!(code(io::ErrorKind::BrokenPipe.into()), 1);
    }

    #[test]
    fn a_full_gpu_is_explained_and_other_errors_are_left_as_they_are() {
        let driver = r#"rank 0 failed: DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")"#;
        let message = with_hint(driver.to_owned());
        assert!(
            message.starts_with(driver) && message.contains("smaller --batch-size"),
            "{message}"
        );
        assert_eq!(with_hint("no such file".to_owned()), "no such file");
    }
}

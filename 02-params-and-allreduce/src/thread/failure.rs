//! How ranks fail.

use std::any::Any;
use std::fmt;
#[cfg(any(feature = "mpi", feature = "nccl"))]
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(any(feature = "mpi", feature = "nccl"))]
use std::time::Duration;

use devices::ComputeDevice;

/// A failure's message is read by what started the process within this time.
#[cfg(any(feature = "mpi", feature = "nccl"))]
const TO_BE_READ: Duration = Duration::from_millis(200);

/// The failure of a run: the rank that failed first, and why.
#[derive(Debug)]
pub struct RankFailure<E> {
    /// The first rank that failed. The others failed because of it.
    pub rank: usize,
    /// What happened to it.
    pub cause: Cause<E>,
}

/// How a rank failed.
#[derive(Debug)]
pub enum Cause<E> {
    /// It returned an error.
    Error(E),
    /// It panicked, with this message.
    Panic(String),
}

impl<E> RankFailure<E> {
    /// A rank that returned an error.
    pub fn new(rank: usize, error: E) -> Self {
        Self { rank, cause: Cause::Error(error) }
    }
}

#[cfg(any(feature = "mpi", feature = "nccl"))]
impl<E: fmt::Display> RankFailure<E> {
    /// Says on stderr why this process is about to end.
    pub(crate) fn tell(&self) {
        tell(&self.to_string());
        // Whoever forwards this may let go of what has not been read when the job is ended.
        std::thread::sleep(TO_BE_READ);
    }
}

impl<E: fmt::Display> fmt::Display for RankFailure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} {}", self.rank, self.cause)
    }
}

impl<E: fmt::Display> fmt::Display for Cause<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => write!(f, "failed: {error}"),
            Self::Panic(message) => write!(f, "panicked: {message}"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for RankFailure<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            // Its own message is already part of ours.
            Cause::Error(error) => error.source(),
            Cause::Panic(_) => None,
        }
    }
}

/// Says one line on stderr: in one piece, as other ranks may say something there at the same time.
#[cfg(any(feature = "mpi", feature = "nccl"))]
pub(crate) fn tell(text: &str) {
    // Nothing is left to be done about a stderr that is gone.
    drop(io::stderr().write_all(format!("{text}\n").as_bytes()));
}

/// Does a rank's work on its device. A panic is a failure like others.
pub(crate) fn attempt<R: Send, E: Send>(
    device: &ComputeDevice,
    work: impl FnOnce() -> Result<R, E> + Send,
) -> Result<R, Cause<E>> {
    match catch_unwind(AssertUnwindSafe(|| device.run(work))) {
        Ok(outcome) => outcome.map_err(Cause::Error),
        Err(payload) => Err(Cause::Panic(message(&*payload))),
    }
}

/// What a panic said.
pub(super) fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

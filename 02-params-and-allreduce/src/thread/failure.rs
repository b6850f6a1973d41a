//! How ranks fail.

use std::any::Any;
use std::fmt;

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

/// What a panic said.
pub(crate) fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

//! What GPUs did when: kernels, copies, and settings of memory, by the GPUs' own clocks.

use std::sync::Arc;
use std::time::Instant;

/// Something that a GPU did.
#[derive(Clone, Debug)]
pub(crate) struct Activity {
    /// The GPU's number, as in `cuda:0`.
    pub(crate) device: u32,
    /// Its stream.
    pub(crate) stream: u32,
    pub(crate) kind: Kind,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

/// What it was.
#[cfg_attr(
    not(any(test, feature = "cuda")),
    expect(dead_code, reason = "a build without CUDA has no GPU that would do anything")
)]
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// A kernel, by its name.
    Kernel(Arc<str>),
    /// A copy, from where to where.
    Copy(&'static str),
    /// Memory that was filled with one byte.
    Set,
}

impl Kind {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Kernel(name) => name,
            Self::Copy(way) => way,
            Self::Set => "fill memory",
        }
    }
}

/// Asks to be told of everything that this process's GPUs do from now on.
///
/// # Errors
///
/// Why nothing will be told.
#[cfg(feature = "cuda")]
pub(crate) fn watch() -> Result<(), String> {
    super::cupti::watch()
}

/// Asks to be told of what there is none of.
#[cfg(not(feature = "cuda"))]
pub(crate) fn watch() -> Result<(), String> {
    Err("this binary was built without CUDA".to_owned())
}

/// What was told since [`watch`], and how much more there was than is kept.
pub(crate) fn activities() -> (Vec<Activity>, usize) {
    #[cfg(feature = "cuda")]
    return super::cupti::activities();
    #[cfg(not(feature = "cuda"))]
    (Vec::new(), 0)
}

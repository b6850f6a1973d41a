//! What GPUs did when: kernels, copies, and memory that was set.

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
    Memset,
}

impl Kind {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Kernel(name) => name,
            Self::Copy(from_where_to_where) => from_where_to_where,
            Self::Memset => "memset",
        }
    }
}

/// What was told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// In no order.
    pub(crate) activities: Vec<Activity>,
    /// How many more there were than is kept.
    pub(crate) left_out: usize,
    /// When the first of these began: what was told of the time before is all that there was.
    pub(crate) whole_until: Option<Instant>,
    /// What else is missing or wrong, and why.
    pub(crate) flaws: Vec<String>,
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

/// Fetches what is known so far, if somebody watches: for a thread whose GPU may be given back next, as nobody promises
/// that its records outlive it.
pub(crate) fn fetch() {
    #[cfg(feature = "cuda")]
    super::cupti::fetch();
}

/// Takes what was told since [`watch`], or since this was called last.
pub(crate) fn take() -> Told {
    #[cfg(feature = "cuda")]
    return super::cupti::take();
    #[cfg(not(feature = "cuda"))]
    Told::default()
}

#[cfg(feature = "cuda")]
#[cfg(test)]
mod tests {
    use std::time::Duration;

    use candle_core::{DType, Device, Tensor};

    use super::*;
    use crate::ops::{on_a_gpu, relu};

    #[test]
    fn a_gpu_tells_what_it_did() {
        let Some(gpu) = on_a_gpu::device() else { return };
        let gpu = gpu.tensors();
        if let Err(why) = watch() {
            eprintln!("SKIPPED: {why}");
            return;
        }
        let before = Instant::now();
        let x = Tensor::ones((70, 31), DType::F64, &Device::Cpu).unwrap().to_device(gpu).unwrap();
        let y = relu(&x).unwrap().to_device(&Device::Cpu).unwrap();
        assert_eq!(y.dims(), [70, 31]);
        gpu.synchronize().unwrap();
        // What other tests' threads have under way is not finished.
        fetch();
        let told = take();
        assert_eq!(told.left_out, 0, "{:?}", told.flaws);
        let done = told.activities;
        // CUPTI computes the system's times from those of the GPU.
        let tolerance = Duration::from_millis(1);
        let (after, before) = (Instant::now() + tolerance, before - tolerance);
        // Other tests have kernels of this name, too.
        for name in ["relu", "copy to the GPU", "copy to the host"] {
            let of_name = |activity: &&Activity| activity.kind.name() == name;
            let found = done.iter().filter(of_name).find(|activity| activity.start >= before);
            let found = found.unwrap_or_else(|| panic!("no {name} among {done:?}"));
            assert!(found.end >= found.start && found.end <= after, "{found:?}");
        }
    }
}

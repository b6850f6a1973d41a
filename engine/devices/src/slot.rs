//! One device of a plan, and how it is opened.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::OnceLock;

use candle_core::{Device, Result};
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::{ComputeDevice, compute_capability, open_gpu};
use harness::report::counted;

/// The hardware of one device of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    CpuSlice { threads: NonZeroUsize },
    Gpu { ordinal: usize, shared: bool },
}

/// One device of a plan. It is not open yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSlot {
    pub(super) index: usize,
    pub(super) placement: Placement,
}

impl DeviceSlot {
    /// Opens the device. Call this in the thread that will use the device.
    ///
    /// # Errors
    ///
    /// When the GPU cannot be opened or the slice's threads cannot be started.
    pub fn open(&self) -> Result<ComputeDevice> {
        let (device, pool) = match self.placement {
            Placement::CpuSlice { threads } => {
                (Device::Cpu, Some(self.start_threads(threads.get())?))
            }
            // Each replica gets its own stream, so replicas on one GPU do not wait for each other.
            Placement::Gpu { ordinal, .. } => (open_gpu(ordinal)?, None),
        };
        Ok(ComputeDevice { slot: *self, device, side_stream: OnceLock::new(), pool })
    }

    /// Opens a second stream of the same GPU. Returns `None` for a CPU slice, or if the GPU has no memory for it.
    pub(super) fn side_stream(&self) -> Option<Device> {
        match self.placement {
            Placement::CpuSlice { .. } => None,
            Placement::Gpu { ordinal, .. } => open_gpu(ordinal).ok(),
        }
    }

    /// Returns the compute capability of a GPU, such as (9, 0), and `None` for a CPU slice.
    ///
    /// # Errors
    ///
    /// When the GPU does not answer.
    pub fn compute_capability(&self) -> Result<Option<(i32, i32)>> {
        match self.placement {
            Placement::CpuSlice { .. } => Ok(None),
            Placement::Gpu { ordinal, .. } => compute_capability(ordinal).map(Some),
        }
    }

    fn start_threads(&self, threads: usize) -> Result<ThreadPool> {
        let index = self.index;
        ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(move |thread| format!("cpu:{index}/{thread}"))
            .build()
            .map_err(|error| {
                let threads = counted(threads, "thread");
                candle_core::Error::Msg(format!("cpu:{index}: cannot start {threads}: {error}"))
            })
    }
}

impl fmt::Display for DeviceSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.placement {
            Placement::CpuSlice { threads } => {
                write!(f, "cpu:{} ({})", self.index, counted(threads.get(), "core"))
            }
            Placement::Gpu { ordinal, shared: false } => write!(f, "cuda:{ordinal}"),
            Placement::Gpu { ordinal, shared: true } => write!(f, "cuda:{ordinal} (shared)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(index: usize, threads: usize) -> DeviceSlot {
        let threads = NonZeroUsize::new(threads).unwrap();
        DeviceSlot { index, placement: Placement::CpuSlice { threads } }
    }

    #[test]
    fn a_slice_has_no_compute_capability() {
        assert_eq!(slice(0, 1).compute_capability().unwrap(), None);
    }

    #[test]
    fn a_slice_runs_on_threads_of_its_own_and_no_more() {
        let device = slice(1, 3).open().unwrap();
        let (threads, name) = device.run(|| {
            let name = std::thread::current().name().map(str::to_owned);
            (rayon::current_num_threads(), name.unwrap_or_default())
        });
        assert_eq!(threads, 3);
        assert!(name.starts_with("cpu:1/"), "ran on {name}");
    }
}

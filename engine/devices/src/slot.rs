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
        self.open_with(false)
    }

    /// Opens the device, and makes the calling thread one of its threads until the thread ends. Code of this thread then
    /// runs on the device without [`ComputeDevice::run`]. For a program with one device: a thread belongs to one device
    /// only, and its memory in the thread pool is never freed.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open), and when the calling thread belongs to a device already.
    pub fn open_in_this_thread(&self) -> Result<ComputeDevice> {
        self.open_with(true)
    }

    fn open_with(&self, this_thread: bool) -> Result<ComputeDevice> {
        let (device, pool) = match self.placement {
            Placement::CpuSlice { threads } => {
                (Device::Cpu, Some(self.start_threads(threads.get(), this_thread)?))
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

    fn start_threads(&self, threads: usize, this_thread: bool) -> Result<ThreadPool> {
        let index = self.index;
        let pool = ThreadPoolBuilder::new().num_threads(threads);
        let pool = if this_thread { pool.use_current_thread() } else { pool };
        pool.thread_name(move |thread| format!("cpu:{index}/{thread}")).build().map_err(|error| {
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
    fn the_opening_thread_is_one_of_the_slices_threads() {
        let opened = std::thread::spawn(|| {
            let device = slice(1, 3).open_in_this_thread().unwrap();
            let this = std::thread::current().id();
            assert_eq!(device.run(|| std::thread::current().id()), this);
            assert_eq!(rayon::current_num_threads(), 3);
            let threads = rayon::broadcast(|_| std::thread::current().id());
            assert!(threads.contains(&this));
            // A thread belongs to one device.
            slice(2, 1).open_in_this_thread().unwrap_err().to_string()
        });
        let error = opened.join().unwrap();
        assert!(error.starts_with("cpu:2: cannot start 1 thread"), "{error}");
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

//! The devices that tests run on, of operations and of several ranks.

use std::num::NonZeroUsize;

use candle_core::{Device, Result, Tensor};
use devices::{DeviceKind, DevicePlan};

/// The environment variable that says which: `cuda` is the GPUs, anything else, or nothing, the CPU.
pub const VARIABLE: &str = "TEST_DEVICE";

/// Whether tests run on GPUs.
pub fn on_gpus() -> bool {
    std::env::var(VARIABLE).is_ok_and(|name| name == "cuda")
}

/// So many devices: slices of one core, or GPUs, which share those that there are.
/// Panics when a GPU was asked for and there is none.
#[expect(clippy::expect_used, reason = "a test that was to run on GPUs cannot do without")]
pub fn plan(devices: usize) -> DevicePlan {
    let (kind, threads) = match on_gpus() {
        true => (DeviceKind::Cuda, None),
        false => (DeviceKind::Cpu, NonZeroUsize::new(1)),
    };
    DevicePlan::new(kind, devices, threads).expect("devices")
}

/// The device of this thread's test: one for each thread, as work on a GPU has an order within a thread.
/// Panics when a GPU was asked for and there is none.
#[expect(clippy::expect_used, reason = "a test that was to run on a GPU cannot do without one")]
pub fn device() -> Device {
    thread_local! {
        static DEVICE: Device = match on_gpus() {
            true => plan(1).slots()[0].open().expect("a GPU that works").tensors().clone(),
            false => Device::Cpu,
        };
    }
    DEVICE.with(Device::clone)
}

/// The same tensors in CPU memory, in which they may go to another thread.
/// Fails when a copy from the device fails.
pub fn on_the_cpu(tensors: &[Tensor]) -> Result<Vec<Tensor>> {
    tensors.iter().map(|tensor| tensor.to_device(&Device::Cpu)).collect()
}

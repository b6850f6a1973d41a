//! The device that tests of operations run on.

use candle_core::Device;
use single_gpu::device::{DeviceKind, DevicePlan};

/// The environment variable that says which: `cuda` is the first GPU, anything else, or nothing, the CPU.
pub const VARIABLE: &str = "TEST_DEVICE";

/// The device of this thread's test: one for each thread, as work on a GPU has an order within a thread.
///
/// # Panics
///
/// When a GPU was asked for and there is none.
#[expect(clippy::expect_used, reason = "a test that was to run on a GPU cannot do without one")]
pub fn device() -> Device {
    thread_local! {
        static DEVICE: Device = match std::env::var(VARIABLE) {
            Ok(name) if name == "cuda" => {
                let plan = DevicePlan::new(DeviceKind::Cuda, 1, None).expect("a GPU");
                plan.slots()[0].open().expect("a GPU that works").tensors().clone()
            }
            _ => Device::Cpu,
        };
    }
    DEVICE.with(Device::clone)
}

//! The plan of a run's devices, before any of them is opened.

use std::fmt;
use std::num::NonZeroUsize;

use super::slot::{DeviceSlot, Placement};
use super::{DeviceKind, available_cores, gpu_count, why_no_gpu};
use harness::report::counted;

/// The most devices of a run.
pub const MAX_DEVICES: usize = 1024;

/// The most CPU threads of a run, over all devices.
pub const MAX_THREADS: usize = 4096;

/// The most threads of a CPU slice on a machine with `cores` cores. Idle threads search for work and slow the busy ones
/// down: on two cores, two steps of LeNet took 0.04 s on two threads, 1.4 s on 256 and 30 s on 900.
fn most_threads(cores: usize) -> usize {
    (32 * cores).clamp(256, MAX_THREADS)
}

/// Why this machine cannot have the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No devices, or more than [`MAX_DEVICES`].
    #[error("{0} devices: a run has 1 to {MAX_DEVICES}")]
    Devices(usize),
    /// More threads than [`MAX_THREADS`].
    #[error("{devices} devices of {threads} threads: a run has at most {MAX_THREADS} threads")]
    Threads {
        /// The number of devices.
        devices: usize,
        /// The threads of each device.
        threads: usize,
    },
    /// More threads on one device than are useful on this machine.
    #[error("a device of {threads} threads: with {}, one has at most {most}", counted(*.cores, "core"))]
    ThreadsOfADevice {
        /// The threads of each device.
        threads: usize,
        /// The most threads of a device on this machine.
        most: usize,
        /// The cores of this machine.
        cores: usize,
    },
    /// The user asked for CUDA, and there is no GPU. The text has the reason.
    #[error("{0}")]
    NoGpu(&'static str),
}

/// The devices of a run, in rank order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePlan {
    slots: Vec<DeviceSlot>,
    note: Option<String>,
}

impl DevicePlan {
    /// Plans `devices` devices of a kind on this machine.
    ///
    /// `threads_per_device` is the number of cores of a CPU slice. If it is `None`, each slice gets the same number of
    /// cores, at least one. GPUs ignore it. There may be more devices than GPUs, or more threads than cores; then the plan
    /// has a [note](DevicePlan::note).
    ///
    /// # Errors
    ///
    /// - `devices` is not in `1..=`[`MAX_DEVICES`].
    /// - There are more than [`MAX_THREADS`] threads, or too many threads on one device.
    /// - The user asks for CUDA, and there is no GPU.
    pub fn new(
        kind: DeviceKind,
        devices: usize,
        threads_per_device: Option<NonZeroUsize>,
    ) -> Result<Self, PlanError> {
        if !(1..=MAX_DEVICES).contains(&devices) {
            return Err(PlanError::Devices(devices));
        }
        let gpus = if kind == DeviceKind::Cpu { 0 } else { gpu_count() };
        match (kind, gpus) {
            (DeviceKind::Cuda, 0) => Err(PlanError::NoGpu(why_no_gpu())),
            (_, 0) => Self::cpu_slices(devices, threads_per_device),
            (_, gpus) => Ok(Self::gpus(devices, gpus)),
        }
    }

    /// Plans slices of the CPU with one core each, for tests.
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Self::new).
    pub fn slices(devices: usize) -> Result<Self, PlanError> {
        Self::new(DeviceKind::Cpu, devices, NonZeroUsize::new(1))
    }

    fn cpu_slices(
        devices: usize,
        threads_per_device: Option<NonZeroUsize>,
    ) -> Result<Self, PlanError> {
        let cores = available_cores();
        let share = NonZeroUsize::new(cores / devices).unwrap_or(NonZeroUsize::MIN);
        let threads = threads_per_device.unwrap_or(share);
        let all = threads.get().saturating_mul(devices);
        if all > MAX_THREADS {
            return Err(PlanError::Threads { devices, threads: threads.get() });
        }
        let (threads_of_one, most) = (threads.get(), most_threads(cores));
        if threads_of_one > most {
            return Err(PlanError::ThreadsOfADevice { threads: threads_of_one, most, cores });
        }
        let slots = (0..devices)
            .map(|index| DeviceSlot { index, placement: Placement::CpuSlice { threads } })
            .collect();
        let note = (all > cores).then(|| {
            let cores = counted(cores, "core");
            format!("{all} threads share {cores}: times show overhead, not speed-up")
        });
        Ok(Self { slots, note })
    }

    fn gpus(devices: usize, gpus: usize) -> Self {
        let slot = |index| {
            let ordinal = index % gpus;
            // Devices are dealt to the GPUs in rounds. A GPU is shared if the second round reaches it.
            let shared = gpus + ordinal < devices;
            DeviceSlot { index, placement: Placement::Gpu { ordinal, shared } }
        };
        let slots = (0..devices).map(slot).collect();
        let note = (devices > gpus).then(|| {
            let gpus = counted(gpus, "GPU");
            format!("{devices} replicas share {gpus}: times show overhead, not speed-up")
        });
        Self { slots, note }
    }

    /// The devices, in rank order.
    pub fn slots(&self) -> &[DeviceSlot] {
        &self.slots
    }

    /// The number of devices.
    #[expect(clippy::len_without_is_empty, reason = "a plan has at least one device")]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// A note about times that are measured on these devices, for example that devices share a core.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Adds a sentence to the note.
    #[must_use]
    pub fn with_note(self, more: &str) -> Self {
        let notes = self.note.iter().map(String::as_str).chain([more]);
        Self { note: Some(notes.collect::<Vec<_>>().join("; ")), ..self }
    }

    /// Whether every device is a GPU and no two devices share one.
    pub fn has_a_gpu_each(&self) -> bool {
        let alone =
            |slot: &DeviceSlot| matches!(slot.placement, Placement::Gpu { shared: false, .. });
        self.slots.iter().all(alone)
    }

    /// Whether the devices are slices of the CPU.
    pub fn is_of_slices(&self) -> bool {
        self.threads_per_device().is_some()
    }

    /// The number of threads of each CPU slice. `None` on GPUs.
    pub fn threads_per_device(&self) -> Option<NonZeroUsize> {
        match self.slots[0].placement {
            Placement::CpuSlice { threads } => Some(threads),
            Placement::Gpu { .. } => None,
        }
    }
}

impl fmt::Display for DevicePlan {
    /// `[cpu:0 (1 core), cpu:1 (1 core)]`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.slots.iter().map(DeviceSlot::to_string).collect();
        write!(f, "[{}]", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slices(devices: usize, threads: usize) -> DevicePlan {
        DevicePlan::new(DeviceKind::Cpu, devices, NonZeroUsize::new(threads)).unwrap()
    }

    #[test]
    fn a_device_has_as_many_threads_as_a_machine_can_bear() {
        assert_eq!([1, 2, 64, 1000].map(most_threads), [256, 256, 2048, MAX_THREADS]);
        let cores = available_cores();
        let (most, over) = (most_threads(cores), most_threads(cores) + 1);
        if over <= MAX_THREADS {
            assert_eq!(slices(1, most).slots()[0].to_string(), format!("cpu:0 ({most} cores)"));
            let refused = DevicePlan::new(DeviceKind::Cpu, 1, NonZeroUsize::new(over)).unwrap_err();
            let message = refused.to_string();
            assert!(message.starts_with(&format!("a device of {over} threads: with {cores} core")));
            assert!(message.ends_with(&format!(", one has at most {most}")), "{message}");
        }
    }

    #[test]
    fn a_plan_names_its_devices() {
        let of_one_core = DevicePlan::slices(2).unwrap();
        assert_eq!(of_one_core.to_string(), "[cpu:0 (1 core), cpu:1 (1 core)]");
        assert_eq!(slices(1, 3).to_string(), "[cpu:0 (3 cores)]");
        assert_eq!(DevicePlan::gpus(2, 2).to_string(), "[cuda:0, cuda:1]");
        assert_eq!(DevicePlan::gpus(2, 1).to_string(), "[cuda:0 (shared), cuda:0 (shared)]");
        let three_on_two = DevicePlan::gpus(3, 2);
        assert_eq!(three_on_two.to_string(), "[cuda:0 (shared), cuda:1, cuda:0 (shared)]");
        assert!(!three_on_two.has_a_gpu_each());
        assert!(DevicePlan::gpus(2, 2).has_a_gpu_each());
    }

    #[test]
    fn sharing_is_noted() {
        for (devices, gpus, note) in
            [(3, 2, "3 replicas share 2 GPUs: times"), (2, 1, "2 replicas share 1 GPU: times")]
        {
            let plan = DevicePlan::gpus(devices, gpus);
            assert!(plan.note().unwrap().starts_with(note), "{plan}");
        }
        assert!(DevicePlan::gpus(2, 2).note().is_none());
        assert_eq!(DevicePlan::gpus(2, 2).with_note("more").note(), Some("more"));
        let both = DevicePlan::gpus(2, 1).with_note("more");
        assert!(both.note().unwrap().ends_with("not speed-up; more"), "{both}");
        assert!(slices(2 * available_cores(), 1).note().is_some());
        assert!(slices(1, 1).note().is_none());
    }

    #[test]
    fn counts_out_of_range_are_refused() {
        for devices in [0, MAX_DEVICES + 1, usize::MAX] {
            assert!(DevicePlan::new(DeviceKind::Cpu, devices, None).is_err());
        }
        assert!(DevicePlan::new(DeviceKind::Cpu, 2, NonZeroUsize::new(usize::MAX)).is_err());
    }
}

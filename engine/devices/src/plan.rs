//! The plan of a run's devices, before any of them is opened; how each is opened; and the flags that choose devices.

use std::fmt;
use std::num::NonZeroUsize;

use candle_core::cuda::set_gemm_reduced_precision_f32;
use candle_core::{Device, Error};
use clap::Args;
use rayon::ThreadPoolBuilder;

use super::{ComputeDevice, DeviceKind, available_cores, gpu, why_no_gpu};
use harness::cli::UsageError;
use harness::load::Load;
use harness::machine::fewer_physical_cores;
use harness::report::{counted, listed};

/// The most devices of a run.
pub const MAX_DEVICES: usize = 1024;

/// The most CPU threads of a run, over all devices.
pub const MAX_THREADS: usize = 4096;

/// The most threads of a CPU slice. Idle threads search for work: on two cores, two steps of LeNet took 0.04 s on two
/// threads, 1.4 s on 256 and 30 s on 900.
fn most_threads(cores: usize) -> usize {
    (32 * cores).clamp(256, MAX_THREADS)
}

/// The end of a note about devices that share hardware.
const OVERHEAD: &str = "times show overhead, not speed-up";

/// The devices of a run, in rank order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePlan {
    slots: Vec<DeviceSlot>,
    note: Option<String>,
}

impl DevicePlan {
    /// Plans `devices` devices of a kind on this machine. `threads_per_device` is the number of cores of a CPU slice, by default an
    /// equal share. If devices share hardware, the plan has a [note](DevicePlan::note). Fails when there are no devices or more than
    /// [`MAX_DEVICES`], when there are too many threads, and when the user asks for CUDA without a GPU.
    pub fn new(
        kind: DeviceKind,
        devices: usize,
        threads_per_device: Option<NonZeroUsize>,
    ) -> Result<Self, UsageError> {
        let refused = format!("{devices} devices: a run has 1 to {MAX_DEVICES}");
        let gpus = if kind == DeviceKind::Cpu { 0 } else { gpu::count() };
        match (kind, gpus) {
            _ if !(1..=MAX_DEVICES).contains(&devices) => Err(UsageError::new(refused)),
            (DeviceKind::Cuda, 0) => Err(UsageError::new(why_no_gpu())),
            (_, 0) => {
                let cores = (available_cores(), fewer_physical_cores());
                Self::cpu_slices(devices, threads_per_device, cores)
            }
            (_, gpus) => Ok(Self::gpus(devices, gpus)),
        }
    }

    /// Plans slices of the CPU with one core each, for tests. Fails like [`new`](Self::new).
    pub fn slices(devices: usize) -> Result<Self, UsageError> {
        Self::new(DeviceKind::Cpu, devices, NonZeroUsize::new(1))
    }

    /// Plans slices of so many cores, which are hyperthreads if there are fewer `physical` ones.
    fn cpu_slices(
        devices: usize,
        threads: Option<NonZeroUsize>,
        (cores, physical): (usize, Option<usize>),
    ) -> Result<Self, UsageError> {
        let share = NonZeroUsize::new(cores / devices).unwrap_or(NonZeroUsize::MIN);
        let threads = threads.unwrap_or(share);
        let (all, most) = (threads.get().saturating_mul(devices), most_threads(cores));
        let of_cores = counted(cores, "core");
        let refusal = if all > MAX_THREADS {
            format!(
                "{devices} devices of {threads} threads: a run has at most {MAX_THREADS} threads"
            )
        } else if threads.get() > most {
            format!("a device of {threads} threads: with {of_cores}, one has at most {most}")
        } else {
            let slots = (0..devices).map(|index| DeviceSlot::CpuSlice { index, threads }).collect();
            let shared = || format!("{all} threads share {of_cores}: {OVERHEAD}");
            let hyperthreads = |physical| {
                let physical = counted(physical, "core");
                format!(
                    "{all} threads are hyperthreads of {physical}: expect less than {devices} times the speed"
                )
            };
            let note = match physical.filter(|&physical| devices > 1 && all > physical) {
                _ if all > cores => Some(shared()),
                physical => physical.map(hyperthreads),
            };
            return Ok(Self { slots, note });
        };
        Err(UsageError::new(refusal))
    }

    fn gpus(devices: usize, gpus: usize) -> Self {
        // Devices are dealt to the GPUs in rounds. A GPU is shared if the second round reaches it.
        let slot = |ordinal| DeviceSlot::Gpu { ordinal, shared: gpus + ordinal < devices };
        let shared = format!("{devices} replicas share {}: {OVERHEAD}", counted(gpus, "GPU"));
        let slots = (0..devices).map(|index| slot(index % gpus)).collect();
        Self { slots, note: (devices > gpus).then_some(shared) }
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

    fn with_note(self, more: &str) -> Self {
        let note = self.note.map(|note| format!("{note}; {more}"));
        Self { note: note.or(Some(more.to_owned())), ..self }
    }

    /// Whether devices share a core or a GPU. Times then show overhead, and no speed-up.
    pub fn shares_hardware(&self) -> bool {
        self.threads().map_or(!self.has_a_gpu_each(), |threads| threads > available_cores())
    }

    /// The number of threads of all CPU slices together. `None` on GPUs.
    fn threads(&self) -> Option<usize> {
        self.threads_per_device().map(|each| each.get() * self.len())
    }

    /// Returns a note if other programs have used the cores since a moment in which the devices began to work. On GPUs
    /// there is no note.
    pub fn busy_since(&self, load: &Load) -> Option<String> {
        self.threads().and_then(|threads| load.note(threads))
    }

    /// Whether every device is a GPU and no two devices share one.
    pub fn has_a_gpu_each(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot, DeviceSlot::Gpu { shared: false, .. }))
    }

    /// Checks that every device computes in bf16 faster than in f32. On a CPU bf16 is for tests. Fails with a sentence about
    /// the first device that does not.
    pub fn check_bf16(&self) -> Result<(), String> {
        self.slots.iter().try_for_each(|slot| match no_bf16(slot.compute_capability()) {
            Some(reason) => Err(format!("{slot} {reason}")),
            None => Ok(()),
        })
    }

    /// Whether the devices are slices of the CPU.
    pub fn is_of_slices(&self) -> bool {
        self.threads_per_device().is_some()
    }

    /// The number of threads of each CPU slice. `None` on GPUs.
    pub fn threads_per_device(&self) -> Option<NonZeroUsize> {
        match self.slots[0] {
            DeviceSlot::CpuSlice { threads, .. } => Some(threads),
            DeviceSlot::Gpu { .. } => None,
        }
    }
}

impl fmt::Display for DevicePlan {
    /// `[cpu:0 (1 core), cpu:1 (1 core)]`. The middle of a long list is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.slots.iter().map(DeviceSlot::to_string).collect();
        write!(f, "[{}]", listed(&names))
    }
}

/// One device of a plan. It is not open yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSlot {
    /// A slice of the CPU.
    CpuSlice {
        /// Its place in the plan.
        index: usize,
        /// The number of its threads.
        threads: NonZeroUsize,
    },
    /// A GPU.
    Gpu {
        /// CUDA's number of the GPU.
        ordinal: usize,
        /// Whether another device of the plan has this GPU, too.
        shared: bool,
    },
}

impl DeviceSlot {
    /// Opens the device, in the thread that will use it. Fails when the GPU cannot be opened or no thread can be started.
    pub fn open(&self) -> Result<ComputeDevice, Error> {
        self.open_with(false)
    }

    /// Opens the device, and makes the calling thread one of its threads until the thread ends: its code runs on the device
    /// without [`ComputeDevice::run`]. Fails like [`open`](Self::open), and when the thread belongs to a device already.
    pub fn open_in_this_thread(&self) -> Result<ComputeDevice, Error> {
        self.open_with(true)
    }

    fn open_with(&self, this_thread: bool) -> Result<ComputeDevice, Error> {
        let (device, pool) = match *self {
            Self::CpuSlice { index, threads } => {
                let pool = ThreadPoolBuilder::new().num_threads(threads.get());
                let pool = if this_thread { pool.use_current_thread() } else { pool };
                let pool = pool.thread_name(move |thread| format!("cpu:{index}/{thread}")).build();
                let threads = counted(threads.get(), "thread");
                let why =
                    |error| Error::Msg(format!("cpu:{index}: cannot start {threads}: {error}"));
                (Device::Cpu, Some(pool.map_err(why)?))
            }
            // Each replica gets its own stream, so replicas on one GPU do not wait for each other.
            Self::Gpu { ordinal, .. } => (gpu::open(ordinal)?, None),
        };
        Ok(ComputeDevice { slot: *self, device, pool })
    }

    /// Returns the compute capability of a GPU, such as (9, 0), and `None` for a CPU slice.
    pub fn compute_capability(&self) -> Result<Option<(i32, i32)>, Error> {
        match *self {
            Self::CpuSlice { .. } => Ok(None),
            Self::Gpu { ordinal, .. } => gpu::compute_capability(ordinal).map(Some),
        }
    }
}

/// Why a device of this compute capability does not compute in bf16 faster than in f32, if it does not.
fn no_bf16(capability: Result<Option<(i32, i32)>, Error>) -> Option<String> {
    Some(match capability {
        Ok(Some((8.., _))) => return None,
        Ok(Some((major, minor))) => format!(
            "has compute capability {major}.{minor}, and bf16 begins with 8.0 (Ampere): use f32 there"
        ),
        Ok(None) => {
            "is a slice of the CPU, where bf16 is slower than f32: use f32, or GPUs of compute capability 8.0 (Ampere) or \
             newer"
                .to_owned()
        }
        Err(error) => format!("does not report its compute capability: {error}"),
    })
}

impl fmt::Display for DeviceSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::CpuSlice { index, threads } => {
                write!(f, "cpu:{index} ({})", counted(threads.get(), "core"))
            }
            Self::Gpu { ordinal, shared: false } => write!(f, "cuda:{ordinal}"),
            Self::Gpu { ordinal, shared: true } => write!(f, "cuda:{ordinal} (shared)"),
        }
    }
}

/// Flags that choose devices.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Devices")]
pub struct DeviceArguments {
    /// Kind: auto, cpu or cuda
    #[arg(long, value_enum, value_name = "KIND", default_value_t = DeviceKind::Auto)]
    pub device: DeviceKind,

    /// Cores of each CPU slice [default: equal share]
    #[arg(long, value_name = "T", value_parser = parse_threads)]
    pub threads_per_device: Option<NonZeroUsize>,

    /// Let GPUs round the f32 inputs of products to TF32: faster, with eleven binary digits in place of 24
    #[arg(long, hide_short_help = true)]
    pub tf32: bool,
}

impl DeviceArguments {
    /// Plans `devices` devices, and sets whether this process rounds products to TF32. Fails with a [`UsageError`] when
    /// this machine cannot have these devices.
    pub fn plan(&self, devices: usize) -> Result<DevicePlan, UsageError> {
        let plan = DevicePlan::new(self.device, devices, self.threads_per_device)?;
        if self.tf32 && plan.is_of_slices() {
            let refusal = "--tf32: only GPUs round to TF32; leave it out, or use --device cuda";
            return Err(UsageError::new(refusal));
        }
        set_gemm_reduced_precision_f32(self.tf32);
        Ok(if self.tf32 { plan.with_note("f32 products are rounded to TF32") } else { plan })
    }

    /// The same flags with so many cores for each device, if the user has not chosen a number.
    #[must_use]
    pub fn or_threads(self, threads: Option<NonZeroUsize>) -> Self {
        Self { threads_per_device: self.threads_per_device.or(threads), ..self }
    }

    /// Plans one device like each of `several`: of the same kind, with the same number of cores.
    pub fn plan_one_of(&self, several: &DevicePlan) -> Result<DevicePlan, UsageError> {
        Self { threads_per_device: several.threads_per_device(), ..*self }.plan(1)
    }

    /// Parses a number of devices. The error names the valid numbers.
    pub fn parse_devices(argument: &str) -> Result<usize, String> {
        let devices = argument.parse().ok().filter(|devices| (1..=MAX_DEVICES).contains(devices));
        devices.ok_or_else(|| format!("a run has 1 to {MAX_DEVICES} devices"))
    }
}

fn parse_threads(argument: &str) -> Result<NonZeroUsize, String> {
    let wanted = "a whole number of threads from 1 is expected, such as 2";
    argument.parse().map_err(|_| wanted.to_owned())
}

/// Flags that choose several devices.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Devices")]
pub struct SeveralDevices {
    /// Number of devices
    #[arg(long = "devices", default_value_t = Self::DEFAULT, value_name = "K",
          value_parser = DeviceArguments::parse_devices)]
    pub count: usize,

    /// The kind of device.
    #[command(flatten)]
    pub each: DeviceArguments,
}

impl SeveralDevices {
    /// The default number of devices.
    pub const DEFAULT: usize = 2;

    /// Plans all devices. Fails with a [`UsageError`] when this machine cannot have these devices.
    pub fn plan(&self) -> Result<DevicePlan, UsageError> {
        self.each.plan(self.count)
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
    fn a_plan_names_its_devices_and_notes_what_they_share() {
        let gpus = DevicePlan::gpus;
        let share = "share 2 GPUs: times show overhead, not speed-up";
        for (plan, names, note, shares) in [
            (DevicePlan::slices(1).unwrap(), "[cpu:0 (1 core)]", None, false),
            (gpus(2, 2), "[cuda:0, cuda:1]", None, false),
            // A note is not always about shared hardware.
            (gpus(2, 2).with_note("more"), "[cuda:0, cuda:1]", Some("more"), false),
            (gpus(3, 2), "[cuda:0 (shared), cuda:1, cuda:0 (shared)]", Some("3 replicas"), true),
            (gpus(2, 1), "[cuda:0 (shared), cuda:0 (shared)]", Some("2 replicas share 1"), true),
        ] {
            assert_eq!((&*plan.to_string(), plan.shares_hardware()), (names, shares));
            assert_eq!(plan.has_a_gpu_each(), !shares && names.contains("cuda"), "{plan}");
            assert_eq!(plan.note().is_some(), note.is_some(), "{plan}");
            assert!(
                plan.note().unwrap_or_default().starts_with(note.unwrap_or_default()),
                "{plan}"
            );
        }
        assert_eq!(gpus(3, 2).note(), Some(&*format!("3 replicas {share}")));
        assert!(gpus(2, 1).with_note("more").note().unwrap().ends_with("not speed-up; more"));
        assert_eq!(slices(1, 3).to_string(), "[cpu:0 (3 cores)]");
        assert_eq!(DevicePlan::slices(2).unwrap().to_string(), "[cpu:0 (1 core), cpu:1 (1 core)]");
        let shared = slices(2 * available_cores(), 1);
        assert!(shared.shares_hardware() && shared.note().is_some());
    }

    #[test]
    fn two_hyperthreads_of_one_core_are_named() {
        let note = |devices, threads, cores| {
            let threads = NonZeroUsize::new(threads);
            DevicePlan::cpu_slices(devices, threads, cores).unwrap().note
        };
        let of_one = "2 threads are hyperthreads of 1 core: expect less than 2 times the speed";
        assert_eq!(note(2, 1, (2, Some(1))).as_deref(), Some(of_one));
        let of_four = "6 threads are hyperthreads of 4 cores: expect less than 3 times the speed";
        assert_eq!(note(3, 2, (8, Some(4))).as_deref(), Some(of_four));
        // One device, a core for each thread, no hyperthreads, and more threads than hyperthreads.
        assert_eq!(
            [(1, 2, Some(1)), (2, 1, Some(2)), (2, 1, None)].map(|it| note(it.0, it.1, (4, it.2))),
            [None, None, None]
        );
        let overhead = note(5, 1, (4, Some(2))).unwrap();
        assert!(overhead.starts_with("5 threads share 4 cores: "), "{overhead}");
    }

    #[test]
    fn counts_out_of_range_are_refused() {
        for (devices, threads) in [(0, 0), (MAX_DEVICES + 1, 0), (usize::MAX, 0), (2, usize::MAX)] {
            let threads = NonZeroUsize::new(threads);
            assert!(DevicePlan::new(DeviceKind::Cpu, devices, threads).is_err(), "{devices}");
        }
    }

    fn slice(index: usize, threads: usize) -> DeviceSlot {
        DeviceSlot::CpuSlice { index, threads: NonZeroUsize::new(threads).unwrap() }
    }

    #[test]
    fn a_gpu_has_bf16_from_8_0_and_a_slice_has_none() {
        for new in [(8, 0), (8, 6), (9, 0), (10, 0), (12, 1)] {
            assert_eq!(no_bf16(Ok(Some(new))), None);
        }
        for (major, minor) in [(7, 5), (7, 0), (6, 1)] {
            let reason = no_bf16(Ok(Some((major, minor)))).unwrap();
            let text = format!("has compute capability {major}.{minor}, and bf16 begins");
            assert!(reason.starts_with(&text), "{reason}");
        }
        assert_eq!(slice(0, 1).compute_capability().unwrap(), None);
        let refused = DevicePlan::slices(2).unwrap().check_bf16().unwrap_err().to_string();
        assert!(refused.starts_with("cpu:0 (1 core) is a slice of the CPU"), "{refused}");
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

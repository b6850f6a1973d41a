//! Our side: one kind of work, measured in this process, and printed as the scripts in `tests/peers` print theirs.
//!
//! A hidden command does this, because every measurement wants a fresh process that is set up like a stage's program. The
//! last line of its output is a JSON object with a list of numbers for each series:
//!
//! ```text
//! {"seconds": {"step": [0.0251, 0.0249, 0.0250]}}
//! ```

mod all_reduce;
mod convolutions;
mod memory;
mod steps;

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use devices::{DeviceKind, DevicePlan};
use harness::report::line;
use params_and_allreduce::Algorithm;
use serde_json::json;

pub(crate) const COMMAND: &str = "peers-ours";

/// The learning rate of every step, and of the scripts.
const LEARNING_RATE: f64 = 0.1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    LenetStep,
    Convolutions,
    DataParallelStep,
    Resnet18Step,
    GptStep,
    Resnet18DdpStep,
    AllReduce,
    AddAndCopy,
    Memory,
}

/// The names and defaults of the scripts' flags.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Arguments {
    #[arg(value_enum)]
    work: Work,
    #[arg(long, default_value = "1")]
    threads: NonZeroUsize,
    #[arg(long, default_value = "10")]
    repetitions: NonZeroUsize,
    #[arg(long, default_value = "256")]
    batch: NonZeroUsize,
    #[arg(long, default_value = "60000")]
    images: NonZeroUsize,
    #[arg(long, default_value = "4")]
    blocks: usize,
    #[arg(long, default_value = "128")]
    width: usize,
    #[arg(long, default_value = "4")]
    heads: usize,
    #[arg(long, default_value = "64")]
    context: usize,
    #[arg(long, value_enum, default_value_t)]
    algorithm: Algorithm,
    #[arg(long, value_enum, default_value_t = DeviceKind::Cpu)]
    device: DeviceKind,
    #[arg(long, value_enum, default_value_t)]
    precision: Precision,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Precision {
    #[default]
    F32,
    /// Products of f32 numbers that a GPU may round to eleven bits first.
    Tf32,
    Bf16,
}

impl Arguments {
    /// Devices with the threads that `--threads` asks for.
    fn plan(&self, devices: usize) -> anyhow::Result<DevicePlan> {
        Ok(DevicePlan::new(self.device, devices, Some(self.threads))?)
    }

    /// The time that one device works before the first repetition. A GPU is slow at first, so it works as long as under
    /// the scripts.
    fn warm_up(&self) -> Duration {
        Duration::from_millis(if self.device == DeviceKind::Cuda { 500 } else { 0 })
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    // Of matrices and of convolutions.
    candle_core::cuda::set_gemm_reduced_precision_f32(arguments.precision == Precision::Tf32);
    let step = |seconds: anyhow::Result<Vec<f64>>| Ok(json!({"seconds": {"step": seconds?}}));
    let measured = match arguments.work {
        Work::LenetStep => step(steps::lenet(arguments)),
        Work::DataParallelStep => step(steps::lenet_on_two_devices(arguments)),
        Work::Resnet18Step => step(steps::on_one_device(arguments, steps::resnet18)),
        Work::GptStep => step(steps::gpt(arguments)),
        Work::Resnet18DdpStep => step(steps::resnet18_on_two_devices(arguments)),
        Work::Convolutions => convolutions::measure(arguments),
        Work::AllReduce | Work::AddAndCopy => all_reduce::measure(arguments),
        Work::Memory => memory::measure(arguments),
    };
    Ok(line(measured?)?)
}

/// Returns the seconds of each repetition, after one that does not count and after `warm_up`. Ranks must not have a warm-up,
/// because each rank would count its own repetitions.
fn times<E>(
    repetitions: NonZeroUsize,
    warm_up: Duration,
    mut work: impl FnMut() -> Result<(), E>,
) -> Result<Vec<f64>, E> {
    work()?;
    let begun = Instant::now();
    while begun.elapsed() < warm_up {
        work()?;
    }
    let timed = |_| {
        let start = Instant::now();
        work()?;
        Ok(start.elapsed().as_secs_f64())
    };
    (0..repetitions.get()).map(timed).collect()
}

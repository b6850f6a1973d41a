//! Our side: one kind of work, measured in this process and printed as the scripts in `tests/peers` print
//! theirs.
//!
//! This is a command of its own, hidden from the list, because every measurement wants a fresh process, set
//! up as the stages' binaries set theirs up.

mod all_reduce;
mod convolutions;
mod data;
mod memory;
mod steps;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use devices::{DeviceKind, DevicePlan};
use harness::report::line;
use params_and_allreduce::Algorithm;

use super::side::Answer;

pub(crate) const COMMAND: &str = "peers-ours";

/// The learning rate of every step; that of the scripts.
const LEARNING_RATE: f64 = 0.1;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Work {
    LenetStep,
    Convolutions,
    DataParallelStep,
    Resnet18Step,
    Resnet18DdpStep,
    AllReduce,
    AddAndCopy,
    Drawing,
    Decoding,
    Memory,
}

/// The same names and defaults as the scripts have.
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
    /// So many devices; slices of the CPU have the threads that were asked for.
    fn plan(&self, devices: usize) -> anyhow::Result<DevicePlan> {
        Ok(DevicePlan::new(self.device, devices, Some(self.threads))?)
    }

    /// How long a device works before anybody looks at the clock.
    fn warm_up(&self) -> Duration {
        if self.device == DeviceKind::Cuda { WARM_UP } else { Duration::ZERO }
    }
}

/// A GPU that has rested is slow at first. As long as the scripts let it work before they look at the clock.
const WARM_UP: Duration = Duration::from_millis(500);

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    // Of matrices and of convolutions.
    candle_core::cuda::set_gemm_reduced_precision_f32(arguments.precision == Precision::Tf32);
    let answer = match arguments.work {
        Work::LenetStep => steps::lenet(arguments)?,
        Work::DataParallelStep => steps::lenet_on_two_devices(arguments)?,
        Work::Resnet18Step => steps::resnet18(arguments)?,
        Work::Resnet18DdpStep => steps::resnet18_on_two_devices(arguments)?,
        Work::Convolutions => convolutions::measure(arguments)?,
        Work::AllReduce => all_reduce::measure(arguments)?,
        Work::AddAndCopy => all_reduce::limit(arguments)?,
        Work::Drawing => data::drawing(arguments)?,
        Work::Decoding => data::decoding(arguments)?,
        Work::Memory => memory::measure(arguments)?,
    };
    Ok(line(serde_json::to_string(&answer)?)?)
}

/// The seconds of each repetition of some work, after one that is not counted and, behind it, `warm_up` of them. (Of ranks,
/// each would count for itself: they need none.)
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

fn in_seconds<const N: usize>(series: [(&str, Vec<f64>); N]) -> Answer {
    Answer { seconds: named(series), ..Answer::default() }
}

fn named<const N: usize>(series: [(&str, Vec<f64>); N]) -> BTreeMap<String, Vec<f64>> {
    series.map(|(name, numbers)| (name.to_owned(), numbers)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_time_that_takes_long_is_no_warm_up() {
        let warm_up = Duration::from_millis(50);
        let (mut calls, begun) = (0, Instant::now());
        let counted = times(NonZeroUsize::MIN, warm_up, || {
            calls += 1;
            std::thread::sleep(if calls == 1 { 2 * warm_up } else { warm_up / 10 });
            Ok::<_, std::convert::Infallible>(())
        });
        assert_eq!(counted.map(|seconds| seconds.len()), Ok(1));
        assert!(calls >= 3 && begun.elapsed() >= 3 * warm_up, "{calls}");
    }
}

//! Splits a batch over devices and gathers it again, and prints the samples of each rank in two epochs.

mod epochs;

use std::process::ExitCode;

use candle_core::{DType, Device, Tensor};
use clap::Parser;
use devices::SeveralDevices;
use devices::{DevicePlan, move_view};
use harness::cli::{self, UsageError, whole};
use harness::launcher;
use harness::report::line;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};
use split_batch::{Breakage, gather, split_batch};

/// The number of values of a sample in the example.
const COLUMNS: usize = 5;

/// Split a small batch over devices, gather it again, and split two epochs.
#[derive(Debug, Parser)]
#[command(
    version,
    before_help = "\
Examples:
  split-batch --batch-size 7 --devices 3
  split-batch --break own-shuffle
"
)]
struct Arguments {
    /// Samples in the batch
    #[arg(long, help_heading = "What to split", default_value_t = 4, value_name = "N",
          value_parser = whole::<u32>(1..=1000))]
    batch_size: u32,

    /// Samples in an epoch
    #[arg(long, help_heading = "What to split", default_value_t = 10, value_name = "N",
          value_parser = whole::<u32>(1..=1000))]
    epoch_samples: u32,

    /// Split the epochs with a common mistake, and show only the epochs
    #[arg(long = "break", value_enum, value_name = "BUG", help_heading = "What to split")]
    breakage: Option<Breakage>,

    #[command(flatten)]
    devices: SeveralDevices,
}

fn main() -> ExitCode {
    cli::conclude(cli::arguments().and_then(run))
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    launcher::check_alone().map_err(UsageError::new)?;
    let (samples, devices) = (arguments.batch_size as usize, arguments.devices.count);
    if samples < devices {
        let text = format!("a batch of {samples} cannot give each of {devices} devices a sample");
        return Err(UsageError::new(text).into());
    }
    if arguments.breakage == Some(Breakage::OwnShuffle) && devices == 1 {
        let text = "--break own-shuffle takes at least two devices to part";
        return Err(UsageError::new(text).into());
    }
    let plan = arguments.devices.plan()?;
    if arguments.breakage.is_none() {
        show_batch(samples, &plan)?;
        line("")?;
    }
    epochs::show(arguments.epoch_samples as usize, samples, devices, arguments.breakage)
}

/// Prints a batch, its shards on the devices, and the batch that is gathered from them.
fn show_batch(samples: usize, plan: &DevicePlan) -> anyhow::Result<()> {
    let values: Vec<f32> = (0u16..).take(samples * COLUMNS).map(f32::from).collect();
    let batch = Tensor::from_vec(values, (samples, COLUMNS), &Device::Cpu)?;
    let labels = Tensor::zeros(samples, DType::U32, &Device::Cpu)?;

    line(format_args!("input, {samples} samples of {COLUMNS} values"))?;
    let width = width(samples * COLUMNS - 1, 4);
    show(&batch, width)?;
    let shards = split_batch(&batch, &labels, plan.slots().len())?;
    let parts = run_ranks(plan, DEFAULT_TIMEOUT, |rank| {
        let (shard, _) = &shards[rank.rank()];
        let on_device = move_view(shard, rank.device())?;
        Ok::<_, Error>(on_device.to_device(&Device::Cpu)?)
    })?;
    for (slot, part) in plan.slots().iter().zip(&parts) {
        line(format_args!("\non {slot}"))?;
        show(part, width)?;
    }
    line("\ngathered again")?;
    show(&gather(&parts, &Device::Cpu)?, width)
}

/// Prints one line for each sample.
fn show(samples: &Tensor, width: usize) -> anyhow::Result<()> {
    for sample in samples.to_vec2::<f32>()? {
        let values: Vec<String> = sample.iter().map(|value| format!("{value:width$}")).collect();
        line(format_args!(" {}", values.concat()))?;
    }
    Ok(())
}

/// Returns the width of a column for numbers up to `largest`, with a space in front, but at least `least`.
fn width(largest: usize, least: usize) -> usize {
    (largest.to_string().len() + 1).max(least)
}

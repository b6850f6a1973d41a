//! Splits a batch over devices and gathers it again, and prints the samples of each rank in two epochs.

mod epochs;

use std::process::ExitCode;

use anyhow::ensure;
use candle_core::{DType, Device, Tensor};
use clap::Parser;
use devices::{DevicePlan, SeveralDevices, move_view};
use harness::cli::{self, UsageError, whole};
use harness::launcher;
use harness::report::{counted, line, paragraph, shown_rows};
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};
use split_batch::{Breakage, gather, split_batch};

/// The number of values of a sample in the example.
const COLUMNS: usize = 5;

/// The most devices, and the most samples of a tensor, that are printed.
const SHOWN_DEVICES: usize = 8;
const SHOWN_SAMPLES: usize = 16;

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
        let text = format!(
            "--batch-size {samples} gives {devices} devices less than a sample each: use --batch-size {devices} or more, \
             or --devices {samples} or fewer"
        );
        return Err(UsageError::new(text).into());
    }
    if arguments.breakage == Some(Breakage::OwnShuffle) && devices == 1 {
        let text = "--break own-shuffle needs --devices 2 or more: one device has one shuffle";
        return Err(UsageError::new(text).into());
    }
    let plan = arguments.devices.plan()?;
    if arguments.breakage.is_none() {
        show_batch(samples, &plan)?;
    }
    epochs::show(arguments.epoch_samples as usize, samples, devices, arguments.breakage)
}

/// Prints a batch, its shards on the devices, and the batch that is gathered from them.
fn show_batch(samples: usize, plan: &DevicePlan) -> anyhow::Result<()> {
    let values: Vec<f32> = (0u16..).take(samples * COLUMNS).map(f32::from).collect();
    let batch = Tensor::from_vec(values, (samples, COLUMNS), &Device::Cpu)?;
    let labels = Tensor::zeros(samples, DType::U32, &Device::Cpu)?;
    show(format_args!("input, {samples} samples of {COLUMNS} values"), &batch)?;
    let shards = split_batch(&batch, &labels, plan.len())?;
    let parts = run_ranks(plan, DEFAULT_TIMEOUT, |rank| {
        let on_device = move_view(&shards[rank.rank()].0, rank.device())?;
        Ok::<_, Error>(on_device.to_device(&Device::Cpu)?)
    })?;
    for row in shown_rows(parts.len(), SHOWN_DEVICES).into_iter().flatten() {
        show(format_args!("\non {}", plan.slots()[row]), &parts[row])?;
    }
    let gathered = gather(&parts, &Device::Cpu)?;
    show("\ngathered again", &gathered)?;
    let equal = gathered.to_vec2::<f32>()? == batch.to_vec2::<f32>()?;
    ensure!(equal, "the gathered shards are not the batch: this is a mistake in the program");
    // The first shards are the larger ones.
    let size = |shard: usize| parts[shard].dims()[0];
    let (most, least) = (size(0), size(parts.len() - 1));
    let or_less = if least < most { format!("{least} or ") } else { String::new() };
    let most = counted(most, "sample");
    paragraph(format_args!(
        "\nEach device holds {or_less}{most}. The gathered shards are the batch again, so no sample is lost."
    ))?;
    Ok(line("")?)
}

/// Prints a title, and a line for each sample. Of many samples, the middle is left out.
fn show(title: impl std::fmt::Display, samples: &Tensor) -> anyhow::Result<()> {
    line(title)?;
    let samples = samples.to_vec2::<f32>()?;
    let width = samples.iter().flatten().fold(100.0, |most: f32, &value| most.max(value));
    let width = width.to_string().len() + 1;
    for row in shown_rows(samples.len(), SHOWN_SAMPLES) {
        let values = row.map(|row| samples[row].iter().map(|value| format!("{value:width$}")));
        let values = values.map_or_else(|| format!("{:>width$}", "…"), Iterator::collect);
        line(format_args!(" {values}"))?;
    }
    Ok(())
}

//! Splits a batch over devices and gathers it again, and prints the samples of each rank in two epochs.

mod epochs;

use std::process::ExitCode;

use candle_core::{DType, Device, Tensor};
use clap::Parser;
use devices::SeveralDevices;
use devices::{DevicePlan, move_view};
use harness::cli::{self, UsageError, whole};
use harness::launcher;
use harness::report::{counted, line, paragraph, shown_rows};
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
    for row in shown_rows(parts.len(), SHOWN_DEVICES) {
        let Some(row) = row else {
            line("\n…")?;
            continue;
        };
        line(format_args!("\non {}", plan.slots()[row]))?;
        show(&parts[row], width)?;
    }
    line("\ngathered again")?;
    let gathered = gather(&parts, &Device::Cpu)?;
    show(&gathered, width)?;
    let sizes: Vec<usize> = parts.iter().map(|part| part.dims()[0]).collect();
    let equal = gathered.to_vec2::<f32>()? == batch.to_vec2::<f32>()?;
    Ok(paragraph(format_args!("\n{}", conclusion(&sizes, equal)))?)
}

/// Says what the sizes of the shards mean, and whether the gathered batch is `equal` to the batch.
fn conclusion(sizes: &[usize], equal: bool) -> String {
    let devices = sizes.len();
    let (least, most) =
        (sizes.iter().min().copied().unwrap_or(0), sizes.iter().max().copied().unwrap_or(0));
    let shards = match sizes {
        [_] => "One device holds the whole batch.".to_owned(),
        _ if least == most => {
            format!("Each of the {devices} devices holds {}.", counted(most, "sample"))
        }
        _ => {
            let many = sizes.iter().filter(|&&size| size == most).count();
            let most = counted(most, "sample");
            format!(
                "The shards are uneven: {most} on {many} of {devices} devices, and {least} on each other device."
            )
        }
    };
    match equal {
        true => format!("{shards} The gathered shards are the batch again, so no sample is lost."),
        false => format!(
            "{shards} The gathered shards are not the batch: this is a mistake in the program."
        ),
    }
}

/// The most devices whose samples are printed.
const SHOWN_DEVICES: usize = 8;

/// The most samples of a tensor that are printed.
const SHOWN_SAMPLES: usize = 16;

/// Prints one line for each sample. Of many samples, the middle is left out.
fn show(samples: &Tensor, width: usize) -> anyhow::Result<()> {
    let samples = samples.to_vec2::<f32>()?;
    for row in shown_rows(samples.len(), SHOWN_SAMPLES) {
        let values = row.map(|row| samples[row].iter().map(|value| format!("{value:width$}")));
        let values = values.map_or_else(|| format!("{:>width$}", "…"), Iterator::collect);
        line(format_args!(" {values}"))?;
    }
    Ok(())
}

/// Returns the width of a column for numbers up to `largest`, with a space in front, but at least `least`.
fn width(largest: usize, least: usize) -> usize {
    (largest.to_string().len() + 1).max(least)
}

#[cfg(test)]
mod tests {
    use super::conclusion;

    #[test]
    fn shards_are_even_or_not() {
        let again = "The gathered shards are the batch again, so no sample is lost.";
        for (sizes, expected) in [
            (&[4][..], "One device holds the whole batch."),
            (&[2, 2], "Each of the 2 devices holds 2 samples."),
            (&[1, 1], "Each of the 2 devices holds 1 sample."),
            (
                &[3, 2, 2],
                "The shards are uneven: 3 samples on 1 of 3 devices, and 2 on each other device.",
            ),
        ] {
            assert_eq!(conclusion(sizes, true), format!("{expected} {again}"));
        }
        assert!(conclusion(&[2, 2], false).ends_with("this is a mistake in the program."));
    }
}

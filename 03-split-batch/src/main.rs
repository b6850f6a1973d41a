//! Shows a batch shared out over devices and put together again, and who gets which samples of an epoch.

use std::process::ExitCode;

use candle_core::{Device, Tensor};
use clap::Parser;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::mpirun;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};
use single_gpu::cli::{self, SeveralDevices, UsageError};
use single_gpu::device::move_view;
use single_gpu::report::line;
use split_batch::{Sampler, gather, split_batch};

/// Values of one sample in the example.
const COLUMNS: usize = 5;

/// Decides the shuffles of the example.
const SEED: u64 = 1;

/// Split a small batch over devices, gather it again, and share out two epochs.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    devices: SeveralDevices,

    /// Samples in the batch
    #[arg(long, default_value_t = 4, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    batch_size: u32,

    /// Samples in the epochs that are shared out
    #[arg(long, default_value_t = 10, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    epoch_samples: u32,
}

fn main() -> ExitCode {
    cli::main(run)
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    mpirun::check_alone().map_err(UsageError::new)?;
    let (samples, devices) = (arguments.batch_size as usize, arguments.devices.count);
    if samples < devices {
        return Err(UsageError::new(format_args!(
            "a batch of {samples} cannot give each of {devices} devices a sample"
        ))
        .into());
    }
    let plan = arguments.devices.plan()?;
    let values: Vec<f32> = (0u16..).take(samples * COLUMNS).map(f32::from).collect();
    let batch = Tensor::from_vec(values, (samples, COLUMNS), &Device::Cpu)?;
    let labels = Tensor::from_vec((0..arguments.batch_size).collect(), samples, &Device::Cpu)?;

    line(format_args!("input, {samples} samples of {COLUMNS} values"))?;
    let width = width(samples * COLUMNS - 1, 4);
    show(&batch, width)?;
    let shards = split_batch(&batch, &labels, devices)?;
    let parts = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
        let (shard, _) = &shards[rank.rank()];
        let on_device = move_view(shard, rank.device())?;
        Ok::<_, Error>(on_device.to_device(&Device::Cpu)?)
    })?;
    for (slot, part) in plan.slots().iter().zip(&parts) {
        line(format_args!("\non {slot}"))?;
        show(part, width)?;
    }
    line("\ngathered again")?;
    show(&gather(&parts, &Device::Cpu)?, width)?;
    show_epochs(arguments.epoch_samples as usize, samples, devices)
}

/// Who gets which samples in two epochs: steps side by side, ranks below each other.
fn show_epochs(samples: usize, global_batch: usize, ranks: usize) -> anyhow::Result<()> {
    line(format_args!("\nan epoch of {samples} samples in global batches of {global_batch}"))?;
    let width = width(samples - 1, 3);
    for epoch in [0, 1] {
        line(format_args!("  epoch {epoch}"))?;
        for rank in 0..ranks {
            let sampler = Sampler::new(samples, global_batch, ranks, rank, SEED);
            let steps: Vec<String> = sampler
                .epoch(epoch)
                .map(|step| step.iter().map(|sample| format!("{sample:width$}")).collect())
                .collect();
            line(format_args!("    rank {rank}: {}", steps.join(" |")))?;
        }
    }
    Ok(())
}

fn show(samples: &Tensor, width: usize) -> anyhow::Result<()> {
    for sample in samples.to_vec2::<f32>()? {
        let values: Vec<String> = sample.iter().map(|value| format!("{value:width$}")).collect();
        line(format_args!(" {}", values.concat()))?;
    }
    Ok(())
}

/// Columns of text for numbers up to `largest`, a space in front included, and for small ones `least`.
fn width(largest: usize, least: usize) -> usize {
    (largest.to_string().len() + 1).max(least)
}

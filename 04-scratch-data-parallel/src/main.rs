//! Trains LeNet on one device and on several, and compares.

mod comparison;

use std::process::ExitCode;

use clap::Parser;
use comparison::{Comparison, Run};
use params_and_allreduce::Algorithm;
use scratch_data_parallel::breakage::Breakage;
use scratch_data_parallel::train;
use single_gpu::cli::{self, DeviceArguments, TrainArguments, TrainSetup, UsageError};
use single_gpu::device::DevicePlan;
use single_gpu::report::metrics::{Metrics, Summary};
use single_gpu::report::{Report, line};

/// Train LeNet on several devices, and on one, from the same weights and with the same batches.
///
/// Without a GPU a device is a slice of the CPU. Up to three runs are made: one device with T cores, K
/// devices with T cores each, and one device with all K·T cores.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    device: DeviceArguments,

    /// Number of devices
    #[arg(long, default_value_t = 2, value_name = "K",
          value_parser = DeviceArguments::parse_devices)]
    devices: usize,

    /// How gradients are added up across devices
    ///
    /// LeNet's gradients are eight small tensors, the largest of 400 KiB: a ring takes them in more and
    /// smaller messages, and is slower.
    #[arg(long, value_enum, default_value_t = Algorithm::Tree)]
    algorithm: Algorithm,

    #[command(flatten)]
    train: TrainArguments,

    /// Get it wrong on purpose, on the K devices
    #[arg(long = "break", value_enum, value_name = "BUG")]
    breakage: Option<Breakage>,
}

fn main() -> ExitCode {
    cli::main(run)
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let plan = arguments.device.plan(arguments.devices)?;
    let algorithm = arguments.algorithm;
    algorithm
        .check(&plan)
        .map_err(|error| UsageError::new(format_args!("--algorithm {algorithm}: {error}")))?;
    let mut setup = arguments.train.prepare(plan.len())?;
    let mut metrics = setup.metrics.take();
    line(setup.headline())?;
    if let Some(note) = plan.note() {
        line(format_args!("note: {note}"))?;
    }

    let mut runs = Vec::new();
    for Planned { name, plan, breakage } in plans(&arguments, plan)? {
        line(format_args!("\n{name}"))?;
        if plan.len() > 1 {
            line(format_args!("  all-reduce: {algorithm}"))?;
        }
        if let Some(bug) = breakage {
            line(format_args!("  broken on purpose: {bug:?}"))?;
        }
        let run = train_and_tell(name, &plan, algorithm, breakage, &setup, metrics.as_mut())?;
        runs.push(run);
    }
    let comparison = Comparison::new(&runs)?;
    line("")?;
    for run in &runs {
        line(&run.summary)?;
    }
    line(&comparison)?;
    if let Some(metrics) = &mut metrics {
        metrics.write("comparison", &comparison)?;
    }
    Ok(())
}

/// A run that is to be made.
struct Planned {
    name: &'static str,
    plan: DevicePlan,
    breakage: Option<Breakage>,
}

/// The runs: the baseline, the devices asked for, and one device with all their cores.
fn plans(arguments: &Arguments, plan: DevicePlan) -> anyhow::Result<Vec<Planned>> {
    let device = arguments.device;
    let threads = plan.threads_per_device();
    let one_device = |name, threads| -> anyhow::Result<Planned> {
        let device = DeviceArguments { threads_per_device: threads, ..device };
        Ok(Planned { name, plan: device.plan(1)?, breakage: None })
    };
    let devices = plan.len();
    let several = Planned { name: "data parallel", plan, breakage: arguments.breakage };
    if devices == 1 {
        return Ok(vec![several]);
    }
    let mut plans = vec![one_device("one device", threads)?, several];
    if let Some(all) = threads.and_then(|threads| threads.checked_mul(devices.try_into().ok()?)) {
        plans.push(one_device("one device, all cores", Some(all))?);
    }
    Ok(plans)
}

fn train_and_tell(
    name: &'static str,
    plan: &DevicePlan,
    algorithm: Algorithm,
    breakage: Option<Breakage>,
    setup: &TrainSetup,
    mut metrics: Option<&mut Metrics>,
) -> anyhow::Result<Run> {
    let mut report = Report::new(name, metrics.as_deref_mut());
    let TrainSetup { data, options, dtype, .. } = setup;
    let outcome = train(data, options, *dtype, plan, algorithm, breakage, &mut report)?;
    drop(report);
    let summary = Summary::new(name, setup, plan, &outcome.records, outcome.hashes[0]);
    if let Some(metrics) = metrics {
        metrics.summary(&summary)?;
    }
    Ok(Run { summary, outcome })
}

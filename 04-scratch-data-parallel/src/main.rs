//! Trains LeNet on one device and on several, and compares.

mod comparison;

use std::process::ExitCode;

use clap::Parser;
use comparison::{Comparison, Run};
use scratch_data_parallel::breakage::Breakage;
use scratch_data_parallel::train;
use single_gpu::cli::{self, DeviceArguments, TrainArguments, TrainSetup};
use single_gpu::device::DevicePlan;
use single_gpu::interrupt;
use single_gpu::report::line;
use single_gpu::report::metrics::Summary;
use single_gpu::report::outputs::Outputs;

/// Train LeNet on several devices, and on one, from the same weights and with the same batches.
///
/// Without a GPU a device is a slice of the CPU. Up to three runs are made: one device with T cores, K
/// devices with T cores each, and one device with all K·T cores.
#[derive(Debug, Parser)]
#[command(version, disable_help_flag = true)]
struct Arguments {
    #[command(flatten)]
    device: DeviceArguments,

    /// Number of devices
    #[arg(long, default_value_t = 2, value_name = "K",
          value_parser = DeviceArguments::parse_devices)]
    devices: usize,

    #[command(flatten)]
    train: TrainArguments,

    /// Get it wrong on purpose, on the K devices
    #[arg(long = "break", value_enum, value_name = "BUG")]
    breakage: Option<Breakage>,

    /// Print help
    // `-h` as well explains the bugs, which clap's short help would only list.
    #[arg(short, long, action = clap::ArgAction::HelpLong)]
    help: Option<bool>,
}

fn main() -> ExitCode {
    cli::main(run)
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let plan = arguments.device.plan(arguments.devices)?;
    let mut setup = arguments.train.prepare(plan.len())?;
    let mut outputs = std::mem::take(&mut setup.outputs);
    interrupt::watch()?;
    let headline = setup.headline();
    line(&headline)?;
    if let Some(note) = plan.note() {
        line(format_args!("note: {note}"))?;
    }

    let mut runs = Vec::new();
    for Planned { name, plan, breakage } in plans(&arguments, plan)? {
        line(format_args!("\n{name}"))?;
        if interrupt::requested() {
            line("  left out after the interrupt")?;
            continue;
        }
        if let Some(bug) = breakage {
            line(format_args!("  broken on purpose: {bug:?}"))?;
        }
        runs.push(train_and_tell(name, &plan, breakage, &setup, &mut outputs)?);
    }
    outputs.chart()?;
    let comparison = Comparison::new(&runs)?;
    line("")?;
    for run in &runs {
        line(&run.summary)?;
    }
    line(&comparison)?;
    if let Some(metrics) = outputs.metrics() {
        metrics.write("comparison", &comparison)?;
    }
    outputs.write(&headline)?;
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
    breakage: Option<Breakage>,
    setup: &TrainSetup,
    outputs: &mut Outputs,
) -> anyhow::Result<Run> {
    let mut report = outputs.report(name);
    let outcome = train(&setup.data, &setup.options, setup.dtype, plan, breakage, &mut report)?;
    drop(report);
    let summary = Summary::new(name, setup, plan, &outcome.records, outcome.hashes[0]);
    outputs.run_ended(&summary, &outcome.records)?;
    Ok(Run { summary, outcome })
}

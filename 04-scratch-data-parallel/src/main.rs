//! Trains LeNet on one device and on several, and compares.

mod comparison;

use std::process::ExitCode;

use clap::Parser;
use comparison::{Comparison, Run};
use devices::DevicePlan;
use devices::{DeviceArguments, SeveralDevices};
use harness::cli::{self, ReportArguments, UsageError, whole};
use harness::interrupt;
use harness::launcher;
use harness::report::outputs::Outputs;
use harness::report::{counted, line, paragraph};
use params_and_allreduce::Algorithm;
use scratch_data_parallel::breakage::Breakage;
use scratch_data_parallel::{Method, check_shards};
use trainer::memory::{Footprint, NetworkSize};
use trainer::{TrainArguments, TrainSetup};

/// Train LeNet on several devices, and on one, from the same weights and with the same batches.
///
/// Without a GPU, a device is a slice of the CPU. The program makes up to three runs: one device with T cores, K devices
/// with T cores each, and one device with all K·T cores.
#[derive(Debug, Parser)]
#[command(
    version,
    before_help = "\
Examples:
  scratch-data-parallel --data synthetic --epochs 3
  scratch-data-parallel --devices 2 --break skip-allreduce --epochs 1
"
)]
struct Arguments {
    #[command(flatten)]
    train: TrainArguments,

    #[command(flatten)]
    devices: SeveralDevices,

    /// How gradients are added up [default: one-shot]
    ///
    /// LeNet's gradients are eight small tensors, and the largest has 400 KiB. For small tensors, the steps of messages
    /// decide the time, and one-shot between two devices has a single step.
    #[arg(long, value_enum, value_name = "NAME", help_heading = "Adding up gradients")]
    algorithm: Option<Algorithm>,

    /// Cut each batch into S shards: the same bits on any K
    #[arg(long, value_name = "S", help_heading = "Adding up gradients", conflicts_with = "breakage",
          value_parser = whole::<u32>(1..=1024))]
    shards: Option<u32>,

    /// Get it wrong on purpose, on the K devices
    #[arg(long = "break", value_enum, value_name = "BUG", help_heading = "Adding up gradients")]
    breakage: Option<Breakage>,

    #[command(flatten)]
    reports: ReportArguments,
}

impl Arguments {
    /// Returns the method that the flags ask for.
    fn method(&self, plan: &DevicePlan) -> Result<Method, UsageError> {
        if let Some(shards) = self.shards {
            return self.reproducible(shards as usize);
        }
        if self.breakage.is_some() && self.devices.count == 1 {
            return Err(UsageError::new(
                "--break is about what devices do together: use it with --devices 2 or more",
            ));
        }
        let algorithm = self.algorithm.unwrap_or_default();
        backends::check(algorithm, plan)
            .map_err(|error| UsageError::new(format_args!("--algorithm {algorithm}: {error}")))?;
        Ok(match self.breakage {
            Some(breakage) => Method::Broken(breakage, algorithm),
            None => Method::AllReduce(algorithm),
        })
    }

    fn reproducible(&self, shards: usize) -> Result<Method, UsageError> {
        if let Some(algorithm) = self.algorithm {
            return Err(UsageError::new(format_args!(
                "--algorithm {algorithm} adds up in an order that depends on the number of devices; \
                 --shards adds up along a tree of its own, so leave one of the two out"
            )));
        }
        check_shards(shards, self.devices.count, self.train.batch_size)?;
        Ok(Method::Reproducible { shards })
    }
}

fn main() -> ExitCode {
    cli::conclude(cli::arguments().and_then(run))
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    launcher::check_alone().map_err(UsageError::new)?;
    let plan = arguments.devices.plan()?;
    let method = arguments.method(&plan)?;
    let footprint = Footprint::new(NetworkSize::lenet(), &plan);
    let devices = plan.len();
    let mut setup = arguments.train.prepare(&arguments.reports, devices, devices, &footprint)?;
    let mut outputs = std::mem::take(&mut setup.outputs);
    interrupt::watch()?;
    let headline = setup.headline("LeNet");
    paragraph(&headline)?;
    setup.notes(&plan).try_for_each(|note| paragraph(format_args!("note: {note}")))?;

    let mut runs = Vec::new();
    for Planned { name, plan, method } in plans(&arguments, plan, method)? {
        line(format_args!("\n{name}"))?;
        if interrupt::requested() {
            line("  left out after the interrupt")?;
            continue;
        }
        if plan.len() > 1 || method.algorithm().is_none() {
            let split = match method {
                Method::Broken(..) => String::new(),
                _ if plan.len() == 1 => String::new(),
                _ => format!(", each batch split over {}", counted(plan.len(), "device")),
            };
            line(format_args!("  {method}{split}"))?;
        }
        let mut report = outputs.report(name);
        let TrainSetup { data, options, dtype, .. } = &setup;
        let outcome = match method.train(data, options, *dtype, &plan, &mut report) {
            Ok(outcome) => outcome,
            Err(failure) => {
                drop(report);
                // Report the earlier runs. An error of the report is dropped, because the run's error matters more.
                let _ =
                    report_runs(&runs, &mut outputs).and_then(|()| Ok(outputs.write(&headline)?));
                return Err(failure.into());
            }
        };
        drop(report);
        let mut summary = setup.summary(name, &plan, &outcome.records, outcome.hashes[0]);
        summary.method =
            (plan.len() > 1 || method.algorithm().is_none()).then(|| method.to_string());
        outputs.run_ended(&summary, &outcome.records)?;
        runs.push(Run { plan, method, summary, outcome });
    }
    report_runs(&runs, &mut outputs)?;
    if runs.len() == 1 {
        let text = match interrupt::requested() {
            true => "The program was interrupted, so there is nothing to compare.",
            false => "With one device there is nothing to compare: use --devices 2 or more.",
        };
        paragraph(format_args!("\n{text}"))?;
    }
    Ok(outputs.write(&headline)?)
}

/// Prints the results of the runs, and their comparison.
fn report_runs(runs: &[Run], outputs: &mut Outputs) -> anyhow::Result<()> {
    if runs.is_empty() {
        return Ok(());
    }
    outputs.print_sparklines()?;
    let comparison = Comparison::new(runs)?;
    line("")?;
    for run in runs {
        line(&run.summary)?;
    }
    if let Some(comparison) = &comparison {
        paragraph(comparison.lines())?;
        comparison.conclusion().iter().try_for_each(|text| paragraph(format_args!("\n{text}")))?;
    }
    let replicas = &runs.get(1).unwrap_or(&runs[0]).outcome.hashes;
    if let Some(metrics) = &mut outputs.metrics {
        metrics.write_json("comparison", &Comparison::line(comparison.as_ref(), replicas))?;
    }
    Ok(())
}

/// A run that the program will make.
struct Planned {
    name: &'static str,
    plan: DevicePlan,
    method: Method,
}

/// Returns the runs: one device, several devices, and one device with the cores of all devices.
///
/// A deliberate bug applies to several devices only. The reproducible mode applies to all runs.
fn plans(arguments: &Arguments, plan: DevicePlan, method: Method) -> anyhow::Result<Vec<Planned>> {
    let device = arguments.devices.each;
    let alone = match method {
        Method::Reproducible { .. } => method,
        _ => Method::AllReduce(Algorithm::default()),
    };
    let one = Planned { name: "one device", plan: device.plan_one_of(&plan)?, method: alone };
    let (threads, devices) = (plan.threads_per_device(), plan.len());
    let several = Planned { name: "data parallel", plan, method };
    if devices == 1 {
        return Ok(vec![several]);
    }
    let mut plans = vec![one, several];
    if let Some(all) = threads.and_then(|threads| threads.checked_mul(devices.try_into().ok()?)) {
        match (DeviceArguments { threads_per_device: Some(all), ..device }).plan(1) {
            Ok(plan) => plans.push(Planned { name: "one device, all cores", plan, method: alone }),
            // One device would need more threads than this machine allows.
            Err(error) => paragraph(format_args!(
                "note: there is no run on one device with all cores: {error}"
            ))?,
        }
    }
    Ok(plans)
}

//! Trains LeNet on one device and on several, and compares.

mod comparison;

use std::process::ExitCode;

use clap::Parser;
use comparison::{Comparison, Run, show_bugs};
use devices::DevicePlan;
use devices::{DeviceArguments, SeveralDevices};
use harness::cli::{self, ReportArguments, UsageError, name_of, whole};
use harness::interrupt;
use harness::launcher;
use harness::report::outputs::Outputs;
use harness::report::{counted, line, paragraph};
use params_and_allreduce::Algorithm;
use scratch_data_parallel::breakage::Breakage;
use scratch_data_parallel::replicas::check;
use scratch_data_parallel::{Method, check_shards};
use serde_json::json;
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
  scratch-data-parallel --data synthetic --break skip-allreduce,same-shard
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

    /// Get it wrong on purpose, on the K devices. Several bugs end with a table
    #[arg(
        long = "break",
        value_enum,
        value_name = "BUG,…",
        value_delimiter = ',',
        help_heading = "Adding up gradients"
    )]
    breakage: Vec<Breakage>,

    #[command(flatten)]
    reports: ReportArguments,
}

impl Arguments {
    /// Returns the methods of the runs on several devices. With several bugs, a healthy run is the first.
    fn methods(&self, plan: &DevicePlan) -> Result<Vec<Method>, UsageError> {
        if let Some(shards) = self.shards {
            if let Some(algorithm) = self.algorithm {
                return Err(UsageError::new(format_args!(
                    "--algorithm {algorithm} adds up in an order that depends on the number of devices; \
                     --shards adds up along a tree of its own, so leave one of the two out"
                )));
            }
            let shards = shards as usize;
            check_shards(shards, self.devices.count, self.train.batch_size)?;
            return Ok(vec![Method::Reproducible { shards }]);
        }
        if !self.breakage.is_empty() && self.devices.count == 1 {
            return Err(UsageError::new(
                "--break is about what devices do together: use it with --devices 2 or more",
            ));
        }
        let algorithm = self.algorithm.unwrap_or_default();
        backends::check(algorithm, plan)
            .map_err(|error| UsageError::new(format_args!("--algorithm {algorithm}: {error}")))?;
        let broken = self.breakage.iter().map(|&bug| Method::Broken(bug, algorithm));
        Ok(match self.breakage.len() {
            1 => broken.collect(),
            _ => [Method::AllReduce(algorithm)].into_iter().chain(broken).collect(),
        })
    }
}

fn main() -> ExitCode {
    cli::conclude(cli::arguments().and_then(run))
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    launcher::check_alone().map_err(UsageError::new)?;
    let plan = arguments.devices.plan()?;
    let methods = arguments.methods(&plan)?;
    let footprint = Footprint::new(NetworkSize::lenet(), &plan);
    let devices = plan.len();
    let mut setup =
        arguments.train.prepare(&arguments.reports, devices, devices, &footprint, None)?;
    let mut outputs = std::mem::take(&mut setup.outputs);
    let headline = setup.headline("LeNet");
    paragraph(&headline)?;
    setup.notes(&plan).try_for_each(|note| paragraph(format_args!("note: {note}")))?;

    let several_bugs = methods.len() > 1;
    let (mut runs, mut failed) = (Vec::new(), Vec::new());
    for (name, plan, method) in plans(&arguments, plan, &methods)? {
        line(format_args!("\n{name}"))?;
        if interrupt::requested() {
            line("  left out after the interrupt")?;
            continue;
        }
        let described = plan.len() > 1 || matches!(method, Method::Reproducible { .. });
        if described {
            let split = match (method, plan.len()) {
                (Method::Broken(..), _) | (_, 1) => String::new(),
                (_, devices) => format!(", each batch split over {}", counted(devices, "device")),
            };
            line(format_args!("  {method}{split}"))?;
        }
        let TrainSetup { data, options, dtype, .. } = &setup;
        match method.train(data, options, *dtype, &plan, &mut outputs.report(&name)) {
            Ok(outcome) => {
                let mut summary = setup.summary(&name, &plan, &outcome.records, outcome.hashes[0]);
                summary.method = described.then(|| method.to_string());
                outputs.run_ended(&summary, &outcome.records)?;
                runs.push(Run { plan, method, summary, outcome });
            }
            Err(failure) if several_bugs && matches!(method, Method::Broken(..)) => {
                paragraph(format_args!("  error: {failure}"))?;
                failed.push(name);
            }
            Err(failure) => {
                // Report the earlier runs. An error of the report is dropped, because the run's error matters more.
                let _ =
                    report_runs(&runs, &mut outputs).and_then(|()| Ok(outputs.write(&headline)?));
                return Err(failure.into());
            }
        }
    }
    if several_bugs {
        show_bugs(&runs, &failed)?;
        return Ok(outputs.write(&headline)?);
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
    let Some(one) = runs.first() else { return Ok(()) };
    let several = runs.get(1);
    let comparison =
        several.map(|several| Comparison::new(one, several, runs.get(2))).transpose()?;
    line("")?;
    for run in runs {
        line(&run.summary)?;
    }
    if let Some(comparison) = &comparison {
        paragraph(comparison.lines())?;
        comparison.conclusion().iter().try_for_each(|text| paragraph(format_args!("\n{text}")))?;
    }
    if let Some(metrics) = &mut outputs.metrics {
        let hashes = &several.unwrap_or(one).outcome.hashes;
        let differences = comparison.as_ref().map(Comparison::differences);
        let (agree, replicas) = (check(hashes).is_ok(), hashes.len());
        metrics.write_json("comparison", &json!({ "weight_difference": differences, "replicas_agree": agree, "replicas": replicas }))?;
    }
    Ok(())
}

/// Returns the runs: one device, several devices with each method, and one device with the cores of all devices.
///
/// A deliberate bug applies to several devices only. The reproducible mode applies to all runs. With several bugs, there is no
/// run with all cores.
fn plans(
    arguments: &Arguments,
    plan: DevicePlan,
    methods: &[Method],
) -> anyhow::Result<Vec<(String, DevicePlan, Method)>> {
    let device = arguments.devices.each;
    let alone = match methods {
        [method @ Method::Reproducible { .. }] => *method,
        _ => Method::AllReduce(Algorithm::default()),
    };
    let planned = |name: &str, plan, method| (name.to_owned(), plan, method);
    let one = planned("one device", device.plan_one_of(&plan)?, alone);
    let (threads, devices) = (plan.threads_per_device(), plan.len());
    let several = methods.iter().map(|&method| match method {
        Method::Broken(bug, _) if methods.len() > 1 => {
            planned(&name_of(&bug), plan.clone(), method)
        }
        _ => planned("data parallel", plan.clone(), method),
    });
    if devices == 1 {
        return Ok(several.collect());
    }
    let mut plans: Vec<_> = [one].into_iter().chain(several).collect();
    let all = threads.and_then(|threads| threads.checked_mul(devices.try_into().ok()?));
    if let Some(all) = all.filter(|_| methods.len() == 1) {
        match (DeviceArguments { threads_per_device: Some(all), ..device }).plan(1) {
            Ok(plan) => plans.push(planned("one device, all cores", plan, alone)),
            // One device would need more threads than this machine allows.
            Err(error) => paragraph(format_args!(
                "note: there is no run on one device with all cores: {error}"
            ))?,
        }
    }
    Ok(plans)
}

//! Shows parameters on a device, tensors before and after an all-reduce, and the cost of an all-reduce.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use candle_core::{DType, Device, Tensor};
use clap::Parser;
use datasets::{Split, synthetic};
use devices::{DevicePlan, SeveralDevices};
use harness::cli::{self, UsageError, whole};
use harness::report::{file::LazyFile, line, paragraph, shown_rows};
use harness::{interrupt, launcher};
use params_and_allreduce::bandwidth::{self, Table};
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};
use params_and_allreduce::{Algorithm, get_params};
use single_gpu::lenet::Lenet;
use single_gpu::train::local_gradients;

/// Copy LeNet's parameters to a device, add tensors up across devices, and measure what that costs.
#[derive(Debug, Parser)]
#[command(
    version,
    before_help = "\
Examples:
  params-and-allreduce
  params-and-allreduce --devices 3 --runs 5
"
)]
struct Arguments {
    #[command(flatten)]
    devices: SeveralDevices,

    /// Decides the initial weights
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = whole::<u64>(0..=u64::MAX),
          help_heading = "What to measure")]
    seed: u64,

    /// How often each number of the table is measured [default: 15 to 500 times, small tensors more often]
    #[arg(long, help_heading = "What to measure", value_name = "N", value_parser = whole::<u32>(1..=10_000))]
    runs: Option<u32>,

    /// Write a line of JSON for each number of the table
    #[arg(long, value_name = "FILE.jsonl", help_heading = "Output")]
    metrics: Option<PathBuf>,
}

fn main() -> ExitCode {
    cli::conclude(cli::arguments().and_then(run))
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    launcher::check_alone().map_err(UsageError::new)?;
    let plan = arguments.devices.plan()?;
    let mut metrics = cli::metrics(arguments.metrics.as_deref())?;
    interrupt::watch()?;
    paragraph(format_args!("devices {plan}"))?;
    if let Some(note) = plan.note() {
        paragraph(format_args!("note: {note}"))?;
    }
    show_parameters(&plan, arguments.seed)?;
    show_allreduce(&plan)?;
    show_bandwidth(&arguments, metrics.as_mut())?;
    Ok(metrics.map_or(Ok(()), |metrics| metrics.announce())?)
}

/// Copies LeNet's parameters to the last device, and prints `b1` and its gradient.
fn show_parameters(plan: &DevicePlan, seed: u64) -> anyhow::Result<()> {
    let lenet = Lenet::new(seed, DType::F32, &Device::Cpu)?;
    let (data, last) = (synthetic::dataset(Split::Train, 1), plan.len() - 1);
    let mut shown = run_ranks(plan, DEFAULT_TIMEOUT, |comm| {
        if comm.rank() != last {
            return Ok(None);
        }
        let copy = Lenet::with_parameters(get_params(lenet.parameters(), comm.device())?)?;
        let batch = data.batch(&[0], DType::F32)?.to_device(comm.device())?;
        let gradients = local_gradients(&copy, &batch)?.gradients;
        let both = copy.parameters().iter().zip(&gradients).find(|(it, _)| it.name == "b1");
        let text = both.map(|(b1, gradient)| Ok((numbers(&b1.value)?, numbers(gradient)?)));
        text.transpose().map_err(Error::Tensor)
    })?;
    line(format_args!("\nparameters copied to {}", plan.slots()[last]))?;
    if let Some((b1, gradient)) = shown.swap_remove(last) {
        paragraph(format_args!("  b1 value: {b1}"))?;
        paragraph("  b1 gradient: none before a backward pass")?;
        paragraph(format_args!("  b1 gradient: {gradient} after one"))?;
    }
    Ok(paragraph("The copy has its own memory. A backward pass computes its gradient.")?)
}

/// The program prints the tensors of at most so many devices.
const SHOWN_DEVICES: usize = 8;

/// Prints ones(1×2)·(i+1) on device i, before and after an all-reduce.
fn show_allreduce(plan: &DevicePlan) -> anyhow::Result<()> {
    let shown = run_ranks(plan, DEFAULT_TIMEOUT, |comm| {
        let ones = Tensor::ones((1, 2), DType::F32, comm.device())?;
        let before = (ones * (comm.rank() + 1) as f64)?;
        let after = comm.all_reduce(&before, Algorithm::Naive)?;
        Ok::<_, Error>([numbers(&before)?, numbers(&after)?])
    })?;
    for (pick, title) in ["before", "after"].into_iter().enumerate() {
        line(format_args!("\n{title} all-reduce"))?;
        for row in shown_rows(shown.len(), SHOWN_DEVICES) {
            match row {
                Some(row) => line(format_args!("  {}: {}", plan.slots()[row], shown[row][pick]))?,
                None => line("  …")?,
            }
        }
    }
    let after: Vec<&str> = shown.iter().map(|[_, after]| after.as_str()).collect();
    Ok(paragraph(all_reduced(&after))?)
}

/// Explains the tensors of all devices after an all-reduce.
fn all_reduced(after: &[&str]) -> String {
    match after {
        [_] => "One device has nothing to add up, so its tensor stays as it is.".to_owned(),
        [first, rest @ ..] if rest.iter().all(|tensor| tensor == first) => format!(
            "After the all-reduce, each of the {} devices holds the sum of all tensors.",
            after.len()
        ),
        _ => "The devices hold different tensors: this is a mistake in the program.".to_owned(),
    }
}

/// Prints the table for 2 and 4 devices, and for `--devices` if that is from 2 to 16.
fn show_bandwidth(arguments: &Arguments, mut metrics: Option<&mut LazyFile>) -> anyhow::Result<()> {
    /// With more devices, one table would take minutes.
    const MOST: usize = 16;
    let asked = arguments.devices.count;
    let counts = BTreeSet::from([2, 4, asked.clamp(2, MOST)]);
    let slices = arguments.devices.each.plan(2)?.is_of_slices();
    let (caption, limit) = (bandwidth::caption(arguments.runs), bandwidth::limit(slices));
    paragraph(format_args!("\n{caption}\n{limit}"))?;
    if asked < 2 {
        paragraph(
            "  note: one device has nobody to reduce with: the fewest that are measured are 2",
        )?;
    } else if asked > MOST {
        paragraph(format_args!(
            "  note: {asked} devices would take minutes: the most that are measured are {MOST}"
        ))?;
    }
    for devices in counts {
        if interrupt::requested() {
            line(format_args!("\n{devices} devices: left out after the interrupt"))?;
            continue;
        }
        let plan = arguments.devices.each.plan(devices)?;
        let table = Table::measure(&plan, arguments.runs)?;
        line(format_args!("\n{table}"))?;
        if let Some(metrics) = &mut metrics {
            table.write(metrics)?;
        }
    }
    Ok(())
}

/// Formats the first few numbers of a tensor.
fn numbers(tensor: &Tensor) -> candle_core::Result<String> {
    const SHOWN: usize = 5;
    let values = tensor.flatten_all()?.to_vec1::<f32>()?;
    let digits = |value: &f32| match value.fract() {
        0.0 => format!("{value}"),
        _ => format!("{value:.1e}"),
    };
    let mut text: Vec<String> = values.iter().take(SHOWN).map(digits).collect();
    if values.len() > SHOWN {
        text.push(format!("… ({} numbers)", values.len()));
    }
    Ok(text.join(" "))
}

#[cfg(test)]
mod tests {
    use super::all_reduced;

    #[test]
    fn equal_tensors_are_the_sum() {
        assert_eq!(
            all_reduced(&["3 3", "3 3"]),
            "After the all-reduce, each of the 2 devices holds the sum of all tensors."
        );
        assert!(all_reduced(&["3 3", "2 3"]).contains("a mistake in the program"));
        assert!(all_reduced(&["1 1"]).starts_with("One device has nothing to add up"));
    }
}

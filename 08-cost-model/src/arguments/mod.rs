//! The flags.

mod paper;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use candle_core::DType;
use clap::{Parser, ValueEnum};
use concise_wrapper::slow_link::{Slowness, parse_speed};
use concise_wrapper::{resnet, sizing};
use cost_model::all_reduce::Way;
use cost_model::hosts::Hosts;
use cost_model::model::Model;
use cost_model::paper::{Batch, Device, counts};
use devices::{DevicePlan, SeveralDevices};
use harness::cli::{self, UsageError, each_once, name_of, whole};
use model_parallel::layers::Layers;
use trainer::memory::{Footprint, NetworkSize, RunSize};

use crate::calibration::Training;
use crate::experiment::Experiments;
use crate::on_paper::OnPaper;

use paper::PaperArguments;

/// Predict how long a step of training takes on 1, 2, 4 … K devices, run it, and compare.
///
/// Without a GPU a device is a slice of the CPU. More devices than cores are allowed: they share the cores, which the
/// prediction knows.
#[derive(Debug, Parser)]
#[command(
    version,
    before_help = "\
Examples:
  cost-model --model lenet --devices 2
  cost-model --on-paper --model resnet18 --tflops 100
"
)]
#[command(mut_arg("count", |count| count.default_value("4").help("The most devices")))]
pub(crate) struct Arguments {
    /// Models, one after the other: lenet, resnet18 [default: both]
    #[arg(help_heading = "What to predict", long = "model", value_enum, value_name = "MODEL,…", value_delimiter = ',',
          default_values_t = ModelKind::ALL, hide_default_value = true)]
    models: Vec<ModelKind>,

    /// Planes of ResNet-18's first group [default: 64; 16 on a CPU]
    #[arg(help_heading = "What to predict", long, value_name = "W", value_parser = whole::<u32>(1..=1024))]
    width: Option<u32>,

    /// Samples in a batch, over all devices [default: 256; ResNet-18 128]
    ///
    /// On paper, the default is 256 for both models.
    #[arg(help_heading = "What to predict", long, value_name = "N", value_parser = whole::<u32>(8..=1_000_000))]
    batch_size: Option<u32>,

    /// All-reduce: naive, tree, ring [default: all three]
    #[arg(help_heading = "What to predict", long = "algorithm", value_enum, value_name = "WAY,…", value_delimiter = ',',
          default_values_t = [Way::Naive, Way::Tree, Way::Ring], hide_default_value = true)]
    ways: Vec<Way>,

    #[command(flatten)]
    devices: SeveralDevices,

    /// Speed of the slow link
    #[arg(help_heading = "Devices", long, value_name = "MB/S", default_value_t = 100.0, value_parser = parse_speed)]
    slow_link: f64,

    /// Least time of a message on the slow link
    #[arg(help_heading = "Devices", long, value_name = "MICROSECONDS", default_value_t = 200.0, value_parser = parse_number)]
    latency: f64,

    #[command(flatten)]
    paper: PaperArguments,

    /// End with exit code 1 if a prediction is further off
    #[arg(help_heading = "Output", hide_short_help = true, long, value_name = "PERCENT", value_parser = parse_number)]
    within: Option<f64>,

    /// Write a line of JSON for each calibration and each step
    #[arg(help_heading = "Output", long, value_name = "FILE.jsonl")]
    metrics: Option<PathBuf>,
}

/// The networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelKind {
    /// Stage 1's network
    Lenet,
    /// 18 layers with batch norm
    Resnet18,
}

/// The work of a call of the program.
pub(crate) enum Task {
    /// Measure, predict and compare.
    Measure(Experiments),
    /// Predict.
    OnPaper(OnPaper),
}

impl ModelKind {
    const ALL: [Self; 2] = [Self::Lenet, Self::Resnet18];

    /// The default batch size. ResNet-18 has a smaller batch than in its chapter, because a CPU is slow.
    fn batch_size(self) -> usize {
        match self {
            Self::Lenet => 256,
            Self::Resnet18 => 128,
        }
    }

    /// Steps in an epoch that is run. The default run takes less than three minutes on two cores.
    fn steps(self) -> usize {
        match self {
            Self::Lenet => 12,
            Self::Resnet18 => 3,
        }
    }
}

impl Arguments {
    /// Checks the flags, and plans the devices and the trainings.
    pub(crate) fn task(self) -> anyhow::Result<Task> {
        each_once("--model", &self.models, name_of)?;
        each_once("--algorithm", &self.ways, name_of)?;
        if self.width.is_some() && !self.models.contains(&ModelKind::Resnet18) {
            return Err(UsageError::new(
                "--width needs --model resnet18: other models have no width",
            )
            .into());
        }
        if self.paper.on_paper {
            return Ok(Task::OnPaper(self.on_paper()?));
        }
        let plan = self.devices.plan()?;
        let width = sizing::width(self.width, &plan);
        // A device has the same number of cores in every run.
        let threads = plan.threads_per_device().map(|_| NonZeroUsize::MIN);
        let mut each = self.devices.each;
        each.threads_per_device = each.threads_per_device.or(threads);
        // The powers of two, and K itself.
        let all = self.devices.count;
        let plans = counts(all - 1).chain([all]).map(|count| each.plan(count));
        let plans = plans.collect::<Result<Vec<_>, _>>()?;
        let training = |&kind: &ModelKind| self.training(kind, width, &plan);
        let trainings = self.models.iter().map(training).collect::<anyhow::Result<Vec<_>>>()?;
        let latency = Duration::from_secs_f64(self.latency * 1e-6);
        let slowness = Slowness::of_megabytes(self.slow_link, latency);
        // This call opens a file, so all refusals come first.
        let metrics = cli::metrics(self.metrics.as_deref())?;
        let (ways, within) = (self.ways, self.within);
        Ok(Task::Measure(Experiments { plans, trainings, ways, slowness, within, metrics }))
    }

    fn training(
        &self,
        kind: ModelKind,
        width: usize,
        plan: &DevicePlan,
    ) -> anyhow::Result<Training> {
        let batch_size = self.batch_size.map_or(kind.batch_size(), |size| size as usize);
        if batch_size < 2 * self.devices.count {
            return Err(UsageError::new(format_args!(
                "--batch-size {batch_size} on {} devices: a prediction needs at least 2 samples on each; use \
                 --batch-size {} or more, or --devices {} or fewer",
                self.devices.count,
                2 * self.devices.count,
                batch_size / 2
            ))
            .into());
        }
        if self.ways.contains(&Way::Rings) {
            return Err(UsageError::new(
                "--algorithm rings needs several hosts, and this machine is one host; --on-paper predicts it",
            )
            .into());
        }
        let network = match kind {
            ModelKind::Lenet => NetworkSize::lenet(),
            ModelKind::Resnet18 => NetworkSize::resnet18(width),
        };
        let images = (batch_size * kind.steps(), 1);
        // Devices are also measured with three halves of a batch, and threads leave their memory to later measurements.
        Footprint { activations: 3, ..Footprint::new(network, plan) }.check(RunSize {
            batch_size,
            images,
            context: None,
            dtype: DType::F32,
        })?;
        let (model, layers) = match kind {
            ModelKind::Lenet => (Model::lenet()?, Layers::lenet()),
            ModelKind::Resnet18 => (Model::resnet18(width)?, Layers::resnet18(width)),
        };
        Ok(Training { model, layers, batch_size, steps: kind.steps() })
    }

    fn on_paper(self) -> anyhow::Result<OnPaper> {
        let PaperArguments { tflops, fixed, devices_per_host, inside, between, .. } = self.paper;
        let width = self.width.map_or(resnet::WIDTH, |width| width as usize);
        let model = |&kind: &ModelKind| match kind {
            ModelKind::Lenet => Model::lenet(),
            ModelKind::Resnet18 => Model::resnet18(width),
        };
        let each = devices_per_host as usize;
        let samples = self.batch_size.map_or(256, |size| size as usize);
        Ok(OnPaper {
            models: self.models.iter().map(model).collect::<Result<_, _>>()?,
            device: Device { operations: tflops * 1e12, fixed: fixed * 1e-3, ..Device::default() },
            hosts: Hosts { each, inside: inside.link(), between: between.link() },
            wires: (inside, between),
            batches: [Batch::Shared(samples), Batch::Each(samples)],
        })
    }
}

/// Parses a number in the unit of a flag. Fails outside of the accepted range, which the message names.
fn parse_number(argument: &str) -> Result<f64, String> {
    let expected = "a number from 0.000001 to 1,000,000 is expected";
    cli::number(0.000_001..=1e6, expected)(argument)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_flag_is_about_what_is_measured_or_goes_with_paper() {
        let on_paper = ["on_paper", "tflops", "fixed", "devices_per_host", "inside", "between"];
        let both = ["models", "width", "batch_size"];
        let command = Arguments::command();
        let flags: BTreeSet<_> =
            command.get_arguments().map(|flag| flag.get_id().as_str()).collect();
        assert_eq!(flags, paper::MEASURED.into_iter().chain(on_paper).chain(both).collect());
        assert_eq!(flags.len(), paper::MEASURED.len() + on_paper.len() + both.len());
    }
}

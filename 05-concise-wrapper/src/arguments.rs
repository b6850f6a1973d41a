//! The flags. clap refuses single flags and pairs of flags. [`Arguments::check`] refuses values that do not fit each other or the
//! devices.

use std::path::{Path, PathBuf};

use backends::reduction::ReductionArguments;
use checkpoints::Checkpoints;
use clap::builder::ArgPredicate;
use clap::{Parser, ValueEnum};
use concise_wrapper::launch::{Launch, LaunchArguments};
use concise_wrapper::optimizer::Extras;
use harness::cli::{JSON_LINES, ReportArguments, UsageError, whole};
use params_and_allreduce::Algorithm;
use trainer::{TrainArguments, element_type};

/// Train a network behind a wrapper: on one device, then on K with K times the batch and K times the rate.
///
/// Without a GPU a device is a slice of the CPU, and the defaults are sized to it: a narrower ResNet-18, on
/// part of the images.
#[derive(Debug, Parser)]
#[command(
    version,
    before_help = "\
Examples:
  concise-wrapper --data synthetic --train-size 2048 --epochs 2
  concise-wrapper --slow-link 100 --timeline step.svg --epochs 1
"
)]
#[command(mut_arg("lr", |rate| rate.default_value("0.1").help("Learning rate of one device")))]
#[command(mut_arg("batch_size", |size| size.help("Samples in a batch of one device")))]
#[command(mut_arg("epochs", |epochs| epochs.default_value("5")))]
#[command(mut_arg("seed", |seed| seed.hide_short_help(true)))]
#[command(mut_arg("threads_per_device", |threads| threads.hide_short_help(true)))]
#[command(mut_arg("dtype", |dtype| dtype.long("precision").visible_alias("dtype").hide_short_help(true).value_parser(element_type([
    ("f32", "Single precision"),
    ("f64", "Double precision, to see that differences are rounding and nothing else"),
    ("bf16", "Eight binary digits, on GPUs from compute capability 8.0; weights, statistics and all sums stay in f32"),
])).help("What layers compute in")))]
pub(crate) struct Arguments {
    /// The network: resnet18 or lenet
    #[arg(long, value_enum, default_value_t = ModelKind::Resnet18, help_heading = "What to train")]
    pub(crate) model: ModelKind,

    /// Planes of the first group [default: 64; 16 on a CPU]
    #[arg(long, help_heading = "What to train", value_name = "W", value_parser = whole::<u32>(1..=1024))]
    pub(crate) width: Option<u32>,

    #[command(flatten)]
    pub(crate) train: TrainArguments,

    #[command(flatten)]
    pub(crate) extras: Extras,

    #[command(flatten)]
    pub(crate) launch: LaunchArguments,

    /// Wrapper: single, data-parallel or ddp
    #[arg(long, value_enum, value_name = "KIND", default_value_t = WrapperKind::Ddp, help_heading = "Devices")]
    pub(crate) wrapper: WrapperKind,

    /// Batch norm: local or sync
    ///
    /// The flag says whose images the statistics are of.
    #[arg(long, value_enum, value_name = "KIND", default_value_t = Norm::Local, help_heading = "Devices")]
    pub(crate) bn: Norm,

    /// What batch norm normalises test images by
    #[arg(long, value_enum, default_value_t = TestNorm::Running, help_heading = "Devices", hide_short_help = true)]
    pub(crate) test_norm: TestNorm,

    /// Batch and rate of the K devices, beside those of one [default: linear; with --shards: none]
    #[arg(long, help_heading = "Devices", hide_short_help = true, value_enum, default_value_t = Scale::Linear, hide_default_value = true,
          default_value_if("shards", ArgPredicate::IsPresent, "none"))]
    pub(crate) scale: Scale,

    #[command(flatten)]
    pub(crate) reduction: ReductionArguments,

    #[command(flatten)]
    pub(crate) checkpoints: Option<Checkpoints>,

    #[command(flatten)]
    pub(crate) reports: ReportArguments,

    /// Write a hash of every tensor in every step on the K devices
    ///
    /// Of running statistics, the file has rank 0's. The last line has a hash of the weights at the end. `cargo course
    /// divergence` compares two such files.
    #[arg(long, value_name = "FILE.jsonl", help_heading = "Output", hide_short_help = true)]
    pub(crate) record: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelKind {
    /// 18 layers with batch norm
    Resnet18,
    /// Stage 1's network
    Lenet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WrapperKind {
    /// No wrapper: one device only
    Single,
    /// One line: scatter, replicas, gather
    DataParallel,
    /// A rank for each device; gradients travel during the backward pass
    Ddp,
}

impl WrapperKind {
    pub(crate) fn title(self) -> &'static str {
        if self == Self::DataParallel { "DataParallel" } else { "DDP" }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Norm {
    /// Each device's own
    Local,
    /// All devices' together
    Sync,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TestNorm {
    /// The averages that training has kept, as whoever uses the model has to
    Running,
    /// The statistics of each batch of test images: to tell whether the weights are behind, or the averages
    Batch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scale {
    /// K times the batch and K times the rate: each device is as busy as one alone
    Linear,
    /// The same batch and the same rate, shared by the devices
    None,
}

impl Arguments {
    /// Refuses flags that contradict each other, or that make no sense on so many devices.
    pub(crate) fn check(&self, launch: &Launch, devices: usize) -> Result<(), UsageError> {
        let ReductionArguments { shards, algorithm, .. } = self.reduction;
        let slow = self.reduction.slow_link().is_some();
        let (ddp, lenet) = (self.wrapper == WrapperKind::Ddp, self.model == ModelKind::Lenet);
        let needs_messages =
            shards.is_some() || algorithm.is_some_and(|it| it != Algorithm::Native);
        let (sync, by_batch) = (self.bn == Norm::Sync, self.test_norm == TestNorm::Batch);
        Err(UsageError::new(if launch.processes().is_some() && (slow || !ddp) {
            "each of these processes is one rank of --wrapper ddp: for --slow-link and other wrappers, start this program by \
             itself"
        } else if needs_messages && !launch.has_messages() {
            "NCCL alone connects these processes, without messages between two ranks: leave --shards and --algorithm out, or \
             start them with mpirun"
        } else if !ddp && self.reduction != ReductionArguments::default() {
            "--shards, --algorithm, --bucket-mb, --no-overlap and --slow-link are about DDP's all-reduce: use them with \
             --wrapper ddp"
        } else if self.wrapper == WrapperKind::DataParallel && self.reports.timeline.is_some() {
            "--timeline draws a step of the ranks, and --wrapper data-parallel has no ranks: use it with --wrapper ddp"
        } else if self.wrapper == WrapperKind::Single && devices > 1 {
            "--wrapper single trains on one device: add --devices 1"
        } else if shards.is_some() && (sync || self.scale == Scale::Linear) {
            "--shards gives the same bits on any number of devices, and --bn sync and --scale linear depend on that number: \
             leave one of the two out"
        } else if slow && algorithm == Some(Algorithm::Native) {
            "--slow-link slows down the course's own messages, and --algorithm native sends none: take one-shot, naive, tree or \
             ring"
        } else if lenet && (self.width.is_some() || sync || by_batch) {
            "--width, --bn and --test-norm are about ResNet-18: leave them out, or use --model resnet18"
        } else {
            return Ok(());
        }))
    }

    /// Checks that all files can be written, and refuses two flags that name one file, and a recording that a resumed run would
    /// overwrite. Nothing is opened or changed.
    pub(crate) fn check_files(&self) -> Result<(), UsageError> {
        let record = self.record.as_deref();
        let folder = self.checkpoints.as_ref().map(|it| ("--checkpoint", it.folder.as_path()));
        self.reports.check(&[("--record", record, JSON_LINES)], folder)?;
        let Some(checkpoints) = &self.checkpoints else { return Ok(()) };
        checkpoints.check(self.train.epochs)?;
        let is_there = |path: &&Path| path.metadata().is_ok_and(|it| it.is_file() && it.len() > 0);
        let Some(path) = record.filter(is_there).filter(|_| checkpoints.resume.is_some()) else {
            return Ok(());
        };
        Err(UsageError::new(format_args!(
            "--record {}: this file is there already, perhaps of the run before the interrupt: with --resume, take a new file",
            path.display()
        )))
    }
}

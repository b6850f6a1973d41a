//! The flags. clap refuses single flags and pairs of flags; `checks.rs` refuses numbers and devices that do not fit.

use std::path::PathBuf;

use checkpoints::Checkpoints;
use clap::{Args, Parser, ValueEnum};
use concise_wrapper::launch::LaunchArguments;
use concise_wrapper::optimizer::Extras;
use concise_wrapper::slow_link::parse_speed;
use params_and_allreduce::Algorithm;
use scratch_data_parallel::breakage::Breakage;
use trainer::TrainArguments;

/// Train a network behind a wrapper: on one device, then on K with K times the batch and K times the rate.
///
/// Without a GPU a device is a slice of the CPU, and the defaults are sized to it: a narrower ResNet-18, on
/// part of the images.
#[derive(Debug, Parser)]
#[command(version, disable_help_flag = true)]
#[command(mut_arg("lr", |rate| rate.default_value("0.1").help("Learning rate of one device")))]
#[command(mut_arg("batch_size", |size| size.help("Samples in a batch of one device")))]
#[command(mut_arg("epochs", |epochs| epochs.default_value("5")))]
#[command(mut_arg("dtype", |dtype| dtype.help("As in the stages before: --precision f32 or f64")))]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) launch: LaunchArguments,

    /// What is trained
    #[arg(long, value_enum, default_value_t = ModelKind::Resnet18)]
    pub(crate) model: ModelKind,

    /// Planes of ResNet-18's first group [default: 64; 16 on a CPU]
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) width: Option<u32>,

    /// How the model is put on the K devices
    #[arg(long, value_enum, default_value_t = WrapperKind::Ddp)]
    pub(crate) wrapper: WrapperKind,

    /// Whose images batch norm's statistics are of
    #[arg(long, value_enum, default_value_t = Norm::Local)]
    pub(crate) bn: Norm,

    /// What batch norm normalises test images by
    #[arg(long, value_enum, default_value_t = TestNorm::Running)]
    pub(crate) test_norm: TestNorm,

    /// Batch and rate of the K devices, beside those of one [default: linear; with --shards: none]
    #[arg(long, value_enum)]
    pub(crate) scale: Option<Scale>,

    /// What layers compute in [default: f32]
    #[arg(long, value_enum, conflicts_with = "dtype")]
    pub(crate) precision: Option<PrecisionKind>,

    #[command(flatten)]
    pub(crate) reduction: Option<ReductionArguments>,

    #[command(flatten)]
    pub(crate) extras: Extras,

    #[command(flatten)]
    pub(crate) train: TrainArguments,

    #[command(flatten)]
    pub(crate) checkpoints: Option<Checkpoints>,

    /// Write a hash of every tensor in every step on the K devices (of running statistics, rank 0's), and of the weights at
    /// the end, to this file;
    /// `cargo course divergence` finds where two of them part
    #[arg(long, value_name = "FILE.jsonl", conflicts_with = "compare")]
    pub(crate) record: Option<PathBuf>,

    /// Answer why K devices are less accurate: train with seeds 1 to N, on one device and on K, with the
    /// same and with K times the batch and rate, with local and with synchronised batch norm
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=100),
          conflicts_with_all = ["shards", "breakage", "bn", "scale", "seed"])]
    #[arg(conflicts_with_all = Checkpoints::FLAGS)]
    pub(crate) compare: Option<u32>,

    /// Get it wrong on purpose, on the K devices under DDP
    #[arg(long = "break", value_enum, value_name = "BUG", conflicts_with = "shards")]
    #[arg(conflicts_with_all = Checkpoints::FLAGS)]
    pub(crate) breakage: Option<Breakage>,

    /// Print help
    #[arg(short, long, action = clap::ArgAction::HelpLong)]
    pub(crate) help: Option<bool>,
}

/// Flags of the all-reduce in DDP.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct ReductionArguments {
    /// Give the same bits on any number of devices: cut every batch into S shards, whatever K is
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=1024))]
    #[arg(conflicts_with_all = ["algorithm", "bucket_mb", "no_overlap"])]
    pub(crate) shards: Option<u32>,

    /// How DDP's buckets are added up across devices [default: ring]
    #[arg(long, value_enum)]
    pub(crate) algorithm: Option<Algorithm>,

    /// The most that a bucket of gradients holds, in MB; the first holds at most 1 [default: 25]
    #[arg(long, value_name = "MB", value_parser = parse_megabytes)]
    pub(crate) bucket_mb: Option<f64>,

    /// Send the buckets after the backward pass, not during it
    #[arg(long)]
    pub(crate) no_overlap: bool,

    /// Slow the link between the devices down to so many MB a second, on purpose: to see, with --timeline, what
    /// hides behind the backward pass
    #[arg(long, value_name = "MB/S", value_parser = parse_speed)]
    pub(crate) slow_link: Option<f64>,
}

/// The element type of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrecisionKind {
    /// Single precision
    F32,
    /// Double precision, to see that differences are rounding and nothing else
    F64,
    /// Eight binary digits, on GPUs from compute capability 8.0; weights, statistics and all sums stay in f32
    Bf16,
}

/// The networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelKind {
    /// 18 layers with batch norm
    Resnet18,
    /// Stage 1's network
    Lenet,
}

/// How a model is put on several devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WrapperKind {
    /// No wrapper: one device only
    Single,
    /// One line: scatter, replicas, gather
    DataParallel,
    /// A rank for each device; gradients travel during the backward pass
    Ddp,
}

/// The images of a batch norm's statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Norm {
    /// Each device's own
    Local,
    /// All devices' together
    Sync,
}

/// The statistics that normalise test images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TestNorm {
    /// The averages that training has kept, as whoever uses the model has to
    Running,
    /// The statistics of each batch of test images: to tell whether the weights are behind, or the averages
    Batch,
}

/// Batch and rate on K devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scale {
    /// K times the batch and K times the rate: each device is as busy as one alone
    Linear,
    /// The same batch and the same rate, shared by the devices
    None,
}

fn parse_megabytes(argument: &str) -> Result<f64, String> {
    match argument.parse::<f64>() {
        Ok(megabytes) if megabytes > 0.0 && megabytes <= 1e6 => Ok(megabytes),
        _ => Err("this is a number of megabytes above 0 and up to 1000000, such as 25".to_owned()),
    }
}

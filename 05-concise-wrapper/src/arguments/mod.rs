//! The flags.

mod checks;
mod link;
mod planned;
mod prepare;

use std::path::PathBuf;
use std::time::Duration;

use checkpoints::Checkpoints;
use clap::{Args, Parser, ValueEnum};
use concise_wrapper::launch::LaunchArguments;
use concise_wrapper::optimiser::OptimiserArguments;
use concise_wrapper::slow_link::parse_speed;
use params_and_allreduce::Algorithm;
use scratch_data_parallel::breakage::Breakage;
use trainer::TrainArguments;

pub(crate) use planned::{Planned, Prepared};

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
    launch: LaunchArguments,

    /// What is trained
    #[arg(long, value_enum, default_value_t = ModelKind::Resnet18)]
    model: ModelKind,

    /// Planes of ResNet-18's first group [default: 64; 16 on a CPU]
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u32).range(1..=1024))]
    width: Option<u32>,

    /// How the model is put on the K devices
    #[arg(long, value_enum, default_value_t = WrapperKind::Ddp)]
    wrapper: WrapperKind,

    /// Whose images batch norm's statistics are of
    #[arg(long, value_enum, default_value_t = Norm::Local)]
    bn: Norm,

    /// What batch norm normalises test images by
    #[arg(long, value_enum, default_value_t = TestNorm::Running)]
    test_norm: TestNorm,

    /// Batch and rate of the K devices, beside those of one [default: linear; with --shards: none]
    #[arg(long, value_enum)]
    scale: Option<Scale>,

    /// What layers compute in [default: f32]
    #[arg(long, value_enum, conflicts_with = "dtype")]
    precision: Option<PrecisionKind>,

    #[command(flatten)]
    reduction: ReductionArguments,

    #[command(flatten)]
    optimiser: OptimiserArguments,

    #[command(flatten)]
    train: TrainArguments,

    #[command(flatten)]
    checkpoints: Option<Checkpoints>,

    /// Write a hash of every tensor in every step on the K devices (of running statistics, rank 0's), and of the weights at
    /// the end, to this file;
    /// `cargo course divergence` finds where two of them part
    #[arg(long, value_name = "FILE.jsonl", conflicts_with = "compare")]
    record: Option<PathBuf>,

    /// Answer why K devices are less accurate: train with seeds 1 to N, on one device and on K, with the
    /// same and with K times the batch and rate, with local and with synchronised batch norm
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=100),
          conflicts_with_all = ["shards", "breakage", "bn", "scale", "seed"])]
    #[arg(conflicts_with_all = Checkpoints::FLAGS)]
    compare: Option<u32>,

    /// Get it wrong on purpose, on the K devices under DDP
    #[arg(long = "break", value_enum, value_name = "BUG", conflicts_with = "shards")]
    #[arg(conflicts_with_all = Checkpoints::FLAGS)]
    breakage: Option<Breakage>,

    /// Print help
    #[arg(short, long, action = clap::ArgAction::HelpLong)]
    help: Option<bool>,
}

/// Flags that say how gradients travel.
#[derive(Args, Clone, Debug)]
struct ReductionArguments {
    /// Give the same bits on any number of devices: cut every batch into S shards, whatever K is
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=1024))]
    shards: Option<u32>,

    /// How DDP's buckets are added up across devices [default: ring]
    #[arg(long, value_enum)]
    algorithm: Option<Algorithm>,

    /// The most that a bucket of gradients holds, in MB; the first holds at most 1 [default: 25]
    #[arg(long, value_name = "MB", value_parser = parse_megabytes)]
    bucket_mb: Option<f64>,

    /// Send the buckets after the backward pass, not during it
    #[arg(long)]
    no_overlap: bool,

    /// Slow the link between the devices down to so many MB a second, on purpose: to see, with --timeline, what
    /// hides behind the backward pass
    #[arg(long, value_name = "MB/S", value_parser = parse_speed)]
    slow_link: Option<f64>,
}

/// What layers compute in.
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

/// Whose statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Norm {
    /// Each device's own
    Local,
    /// All devices' together
    Sync,
}

/// What test images are normalised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TestNorm {
    /// The averages that training has kept, as whoever uses the model has to
    Running,
    /// The statistics of each batch of test images: to tell whether the weights are behind, or the averages
    Batch,
}

/// What becomes of batch and rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scale {
    /// K times the batch and K times the rate: each device is as busy as one alone
    Linear,
    /// The same batch and the same rate, shared by the devices
    None,
}

impl Arguments {
    /// How long a rank waits for another.
    pub(crate) fn timeout(&self) -> Duration {
        self.launch.timeout()
    }
}

fn parse_megabytes(argument: &str) -> Result<f64, String> {
    match argument.parse::<f64>() {
        Ok(megabytes) if megabytes > 0.0 && megabytes <= 1e6 => Ok(megabytes),
        _ => Err("this is a number of megabytes above 0 and up to 1000000, such as 25".to_owned()),
    }
}

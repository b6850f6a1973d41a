//! The flags. clap refuses single flags and pairs of flags; [`Arguments::check`] refuses flags that do not fit together, or do
//! not fit the devices.

use std::path::PathBuf;

use candle_core::DType;
use clap::Parser;
use concise_wrapper::launch::{Launch, LaunchArguments};
use concise_wrapper::slow_link::parse_speed;
use datasets::{CLASSES, PIXELS};
use harness::cli::{ReportArguments, SVG, UsageError, each_once, whole};
use sharded_state::Strategy;
use trainer::TrainArguments;

/// The strategies without `--strategy`.
const STRATEGIES: &str = "ddp,zero1,zero2,zero3,zero3+prefetch,zero3+recompute";

/// The outputs of the dense layers without `--widths`, and those of a drawing.
const WIDTHS: [&[usize]; 2] = [&[512; 10], &[1; 3]];

/// Train one model on one device, then on K that share its state: DDP, ZeRO 1, 2 and 3.
///
/// Without a GPU a device is a slice of the CPU, and part of the images are used.
#[derive(Debug, Parser)]
#[command(
    version,
    before_help = "\
Examples:
  sharded-state --data synthetic --epochs 1
  sharded-state --draw --strategy zero3,zero3+prefetch
"
)]
#[command(mut_arg("seed", |seed| seed.hide_short_help(true)))]
#[command(mut_arg("threads_per_device", |threads| threads.hide_short_help(true)))]
#[command(mut_arg("lr", |rate| rate.default_value("0.001").help("Learning rate of AdamW")))]
#[command(mut_arg("batch_size", |size| size.default_value("512")))]
#[command(mut_arg("epochs", |epochs| epochs.default_value("2")))]
#[command(mut_arg("dtype", |dtype| dtype.value_parser(element_type)))]
pub(crate) struct Arguments {
    /// Outputs of the dense layers [default: ten times 512]
    ///
    /// The last layer has an output for each class, and is not in the list. Each layer is a unit.
    #[arg(long, help_heading = "What to train", value_name = "N,N,…", value_delimiter = ',',
          value_parser = whole::<usize>(1..=65_536))]
    widths: Vec<usize>,

    #[command(flatten)]
    pub(crate) train: TrainArguments,

    #[command(flatten)]
    pub(crate) launch: LaunchArguments,

    /// What is shared out: ddp, zero1, zero2 or zero3, also with +recompute, zero3 with +prefetch
    #[arg(long = "strategy", help_heading = "Sharing the state", value_name = "NAME,…",
          value_delimiter = ',', default_value = STRATEGIES, hide_default_value = true)]
    strategies: Vec<Strategy>,

    /// Micro-batches of each device's share of a batch
    #[arg(long, help_heading = "Sharing the state", value_name = "M", default_value_t = 1,
          value_parser = whole::<usize>(1..=1024))]
    pub(crate) micro_batches: usize,

    /// With +recompute, every N-th unit goes forward again [default: 1]
    #[arg(long, help_heading = "Sharing the state", value_name = "N",
          value_parser = whole::<usize>(1..=1024))]
    recompute: Option<usize>,

    /// Slow the link between the devices down
    #[arg(long, help_heading = "Sharing the state", value_name = "MB/S", value_parser = parse_speed)]
    pub(crate) slow_link: Option<f64>,

    /// Draw the lists of a few units, and train nothing
    // Flags of environment variables may be there for other commands.
    #[arg(long, help_heading = "Output", conflicts_with_all = [
        "data", "train_size", "test_size", "epochs", "batch_size", "lr", "seed", "dtype", "device", "threads_per_device", "tf32",
        "slow_link", "gantt", "metrics", "plot", "trace", "timeline",
    ])]
    pub(crate) draw: bool,

    /// Draw a step of a device under each strategy, measured and predicted
    #[arg(long, help_heading = "Output", value_name = "FILE.svg")]
    pub(crate) gantt: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) reports: ReportArguments,
}

/// Reads an element type.
fn element_type(name: &str) -> Result<DType, String> {
    match name {
        "f32" => Ok(DType::F32),
        "f64" => Ok(DType::F64),
        "bf16" => Err("layers in bf16 keep rounded copies of the parameters, which cannot be freed: take f32 or f64".to_owned()),
        _ => Err("the types are f32 and f64".to_owned()),
    }
}

impl Arguments {
    /// The strategies to train or to draw.
    pub(crate) fn strategies(&self) -> impl Iterator<Item = Strategy> {
        self.strategies.iter().map(|it| match it.recomputes {
            Some(1) => Strategy { recomputes: self.recompute.or(Some(1)), ..*it },
            _ => *it,
        })
    }

    /// The features between the layers, with the inputs and the outputs of the model.
    pub(crate) fn features(&self) -> Vec<usize> {
        let default = WIDTHS[usize::from(self.draw)];
        let hidden = if self.widths.is_empty() { default } else { &self.widths };
        [&[PIXELS], hidden, &[CLASSES]].concat()
    }

    /// Refuses flags that contradict each other, or that make no sense on so many devices.
    pub(crate) fn check(&self, launch: &Launch, devices: usize) -> Result<(), UsageError> {
        each_once("--strategy", &self.strategies, Strategy::to_string)?;
        let (batch_size, pieces) = (self.train.batch_size, devices * self.micro_batches);
        Err(UsageError::new(if !launch.has_messages() {
            "chunks travel in messages, and NCCL, which alone connects these processes, has no messages between two: start them \
             with mpirun"
                .to_owned()
        } else if self.slow_link.is_some() && launch.processes().is_some() {
            "--slow-link needs one clock, and these ranks are processes: start this program by itself".to_owned()
        } else if self.recompute.is_some()
            && self.strategies.iter().all(|it| it.recomputes.is_none())
        {
            "--recompute is about strategies with +recompute: take one, such as zero3+recompute"
                .to_owned()
        } else if batch_size < pieces && !self.draw {
            format!(
                "--batch-size {batch_size} cannot be cut into {pieces} micro-batches ({devices} devices × {}): take at least {pieces}",
                self.micro_batches
            )
        } else {
            return Ok(());
        }))
    }

    /// Checks that the files of all flags can be written. A process that does not speak writes no files.
    pub(crate) fn check_files(&mut self, speaks: bool) -> Result<(), UsageError> {
        if !speaks {
            (self.reports, self.gantt) = Default::default();
        }
        self.reports.check(&[("--gantt", self.gantt.as_deref(), SVG)], None)
    }
}

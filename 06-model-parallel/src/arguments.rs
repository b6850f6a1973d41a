//! The flags. clap refuses single flags and pairs of flags; [`Arguments::check`] refuses flags that do not fit together, or do
//! not fit the devices.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use concise_wrapper::launch::Launch;
use concise_wrapper::optimizer::{AdamW, Extras, Optimizer, Sgd};
use concise_wrapper::sizing;
use datasets::{CLASSES, PIXELS};
use devices::DevicePlan;
use harness::cli::{Format, SVG, UsageError, whole};
use harness::report::counted;
use model_parallel::Kind::{self, GPipe, Interleaved, Naive, OneFOneB, ZbH1};
use model_parallel::layers::Layers;
use model_parallel::mesh::Mesh;
use model_parallel::runs::RunArguments;
use trainer::memory::NetworkSize;

/// The number of micro-batches without `--micro-batches`.
const MICRO_BATCHES: usize = 8;

/// The heading of flags in the help.
const SPLITTING: &str = "Splitting the model";

/// Train one model on one device, then split over K: in stages (naive, GPipe, 1F1B, interleaved 1F1B, ZB-H1), and in
/// parts of every layer.
///
/// Without a GPU a device is a slice of the CPU, and part of the images are used.
#[derive(Debug, Parser)]
#[command(
    version,
    before_help = "\
Examples:
  model-parallel --data synthetic --epochs 2
  model-parallel --model gpt
  model-parallel --draw --devices 4 --schedule 1f1b,zb-h1
"
)]
#[command(mut_arg("text", |text| text.hide_short_help(true)))]
#[command(mut_arg("seed", |seed| seed.hide_short_help(true)))]
#[command(mut_arg("threads_per_device", |threads| threads.hide_short_help(true)))]
#[command(mut_arg("lr", |rate| rate.default_value("0.02").default_value_if("model", "gpt", "0.003")))]
#[command(mut_arg("batch_size", |size| size.default_value("1024").default_value_if("model", "gpt", "32")))]
#[command(mut_arg("epochs", |epochs| epochs.default_value("4").default_value_if("model", "gpt", "1")))]
#[command(mut_arg("warm_up", |steps| steps.default_value_if("model", "gpt", "20")))]
#[command(mut_arg("weight_decay", |decay| decay.default_value_if("model", "gpt", "0.01")))]
#[command(mut_arg("momentum", |momentum| momentum.default_value("0.9").default_value_if("model", "gpt", "0")))]
pub(crate) struct Arguments {
    /// Network: dense, lenet, resnet18, gpt
    ///
    /// The GPT trains with AdamW, and has other defaults: --batch-size 32, --lr 0.003, --epochs 1, --warm-up 20, --weight-decay 0.01. Its sizes are --blocks, --width, --heads and --context, and its text is --text.
    #[arg(long, value_enum, default_value_t = ModelKind::Dense, help_heading = "What to train")]
    model: ModelKind,

    /// Outputs of the dense layers [default: six times 512]
    ///
    /// The last layer has an output for each class, and is not in the list.
    #[arg(long, value_name = "N,N,…", help_heading = "What to train", value_delimiter = ',',
          value_parser = whole::<usize>(1..=65_536))]
    widths: Vec<usize>,

    /// Planes of ResNet-18's first group [default: 64; 16 on a CPU], or features of the GPT [default: 128]
    #[arg(long, help_heading = "What to train", hide_short_help = true, value_name = "W", value_parser = whole::<u32>(1..=1024))]
    width: Option<u32>,

    #[command(flatten)]
    pub(crate) common: RunArguments,

    #[command(flatten)]
    pub(crate) extras: Extras,

    /// Micro-batches of a batch in a pipeline [default: 8]
    ///
    /// Without this flag, the schedule naive has the whole batch.
    #[arg(long, help_heading = SPLITTING, value_name = "M", value_parser = whole::<usize>(1..=1024))]
    micro_batches: Option<usize>,

    /// Micro-batches of a batch on all replicas together, added along a fixed tree
    ///
    /// Meshes with the same S, and as many parts of a layer, have the same bits.
    #[arg(long, value_name = "S", help_heading = SPLITTING, hide_short_help = true,
          conflicts_with = "micro_batches", value_parser = whole::<usize>(1..=1024))]
    pub(crate) shards: Option<usize>,

    /// Order of work in a pipeline [default: all five]
    ///
    /// The orders are naive, gpipe, 1f1b, interleaved:CHUNKS and zb-h1. By default, interleaved has 2 chunks. With --mesh the default is 1f1b alone.
    #[arg(long, help_heading = SPLITTING, value_name = "KIND,…", value_delimiter = ',')]
    pub(crate) schedule: Vec<Kind>,

    /// First layers of stages, such as 3,7 [default: by cost]
    ///
    /// By default, the program measures the cost of each layer, and cuts where the most expensive stage is cheapest.
    #[arg(long, help_heading = SPLITTING, value_name = "LAYER,…", value_delimiter = ',', value_parser = layer)]
    pub(crate) cut: Vec<usize>,

    /// Draw the schedules, and train nothing
    ///
    /// In the drawing, a forward pass takes one unit of time, a backward pass takes two, and a message takes none.
    // Flags of environment variables may be there for other commands.
    #[arg(long, help_heading = "Output", conflicts_with_all = [
        "model", "widths", "width", "blocks", "heads", "context", "text", "cut", "mesh", "shards", "momentum", "weight_decay", "warm_up", "data",
        "train_size", "test_size", "epochs", "batch_size", "lr", "seed", "dtype", "device",
        "threads_per_device", "tf32", "metrics", "plot", "trace", "timeline",
    ])]
    pub(crate) draw: bool,

    /// Write the schedule as a list for PyTorch's pipelining runtime
    #[arg(long, help_heading = "Output", value_name = "FILE.csv", hide_short_help = true)]
    pub(crate) export: Option<PathBuf>,
}

/// Reads one layer of `--cut`.
fn layer(text: &str) -> Result<usize, String> {
    let text = text.trim();
    text.parse().map_err(|_| {
        format!(
            "a cut is the layers at which a new stage begins, such as 3,7; \"{text}\" is no number"
        )
    })
}

/// The networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModelKind {
    /// Dense layers with relu between them
    Dense,
    /// Stage 1's network
    Lenet,
    /// 18 layers with batch norm; in stages only
    Resnet18,
    /// A transformer that reads bytes
    Gpt,
}

impl Arguments {
    /// The schedules to train or to draw, each with its number of micro-batches. One stage has the whole batch.
    pub(crate) fn schedules(&self, mesh: Mesh) -> Vec<(Kind, usize)> {
        let kinds: &[Kind] = match self.schedule.as_slice() {
            // A drawing of all schedules would be long.
            [] if self.draw => &[Naive, GPipe, OneFOneB],
            [] if mesh.pipeline == 1 => &[Naive],
            [] if self.common.mesh.is_some() || self.model == ModelKind::Gpt => &[OneFOneB],
            [] => &[Naive, GPipe, OneFOneB, Interleaved { chunks: 2 }, ZbH1],
            kinds => kinds,
        };
        let given = self.micro_batches.or(self.shards.map(|shards| shards / mesh.data));
        let micro_batches = |kind: Kind| match given {
            None if kind == Naive && !self.draw => 1,
            given => given.unwrap_or(MICRO_BATCHES),
        };
        kinds.iter().map(|&kind| (kind, micro_batches(kind))).collect()
    }

    /// The network on these devices: its layers, and its sizes.
    pub(crate) fn network(&self, plan: &DevicePlan) -> anyhow::Result<(Layers, NetworkSize)> {
        let hidden = if self.widths.is_empty() { &[512; 6] } else { self.widths.as_slice() };
        let features = [&[PIXELS], hidden, &[CLASSES]].concat();
        let width = sizing::width(self.width, plan);
        Ok(match self.model {
            ModelKind::Dense => (Layers::dense(&features)?, NetworkSize::dense(&features)),
            ModelKind::Lenet => (Layers::lenet(), NetworkSize::lenet()),
            ModelKind::Resnet18 => (Layers::resnet18(width), NetworkSize::resnet18(width)),
            ModelKind::Gpt => self.common.gpt(self.width)?,
        })
    }

    /// An optimizer that has made no step.
    pub(crate) fn optimizer(&self) -> Box<dyn Optimizer + Send> {
        let constants = self.extras.constants;
        match self.model {
            ModelKind::Gpt => {
                Box::new(AdamW { weight_decay: constants.weight_decay, ..AdamW::default() })
            }
            _ => Box::new(Sgd::new(constants)),
        }
    }

    /// Whether the network has batch norms, which compute other statistics for each micro-batch.
    pub(crate) fn has_norms(&self) -> bool {
        self.model == ModelKind::Resnet18
    }

    /// Refuses flags that contradict each other on the devices of `mesh`, several lists for `--export`, and files that cannot be
    /// written. A process that does not speak writes no files.
    pub(crate) fn check(&mut self, launch: &Launch, mesh: Mesh) -> Result<(), UsageError> {
        let of_dense = !self.widths.is_empty() && self.model != ModelKind::Dense;
        let is_gpt = self.model == ModelKind::Gpt;
        let of_width = self.width.is_some() && !self.has_norms() && !is_gpt;
        let of_stages = self.schedule.len() + self.cut.len() > 0 || self.micro_batches.is_some();
        let of_stages = of_stages || self.common.gantt.is_some() || self.export.is_some();
        let schedules = self.schedules(mesh);
        // A drawing has no batch.
        let trained = schedules.iter().filter(|_| !self.draw);
        let each = trained.map(|&(_, number)| number).max().unwrap_or(0);
        self.common.check(launch, mesh, each, is_gpt)?;
        Err(UsageError::new(if of_dense {
            "--widths is about --model dense: leave it out".to_owned()
        } else if of_width {
            "--width is about --model resnet18 or gpt; a dense network has --widths".to_owned()
        } else if is_gpt && self.extras.constants.momentum > 0.0 {
            "--momentum is about SGD, and --model gpt trains with AdamW: leave it out".to_owned()
        } else if mesh.pipeline == 1 && of_stages && !self.draw {
            let several = Mesh { pipeline: mesh.tensor.max(2), tensor: 1, ..mesh };
            format!(
                "--schedule, --micro-batches, --cut, --gantt and --export are about pipelines, and there is one stage: \
                 ask for several, such as --mesh {several}"
            )
        } else if let Some(shards) = self.shards.filter(|shards| !shards.is_multiple_of(mesh.data))
        {
            let (replicas, next) =
                (counted(mesh.data, "replica"), shards.next_multiple_of(mesh.data));
            format!(
                "--shards {shards} cannot be shared out over {replicas}: take a multiple, such as {next}"
            )
        } else if self.export.is_some() && schedules.len() > 1 {
            format!(
                "--export writes one list, and there are {} schedules: take one, such as --schedule 1f1b",
                schedules.len()
            )
        } else {
            let RunArguments { reports, gantt, .. } = &mut self.common;
            if !launch.speaks() {
                (*reports, *gantt, self.export) = Default::default();
            }
            let csv: Format = ("a CSV file", &["csv"]);
            let (gantt, export) = (gantt.as_deref(), self.export.as_deref());
            return reports.check(&[("--gantt", gantt, SVG), ("--export", export, csv)], None);
        }))
    }
}

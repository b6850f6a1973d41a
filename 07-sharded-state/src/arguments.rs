//! The flags. clap refuses single flags and pairs of flags; [`Arguments::check`] refuses flags that do not fit together, or do
//! not fit the devices.

use candle_core::DType;
use checkpoints::Checkpoints;
use clap::{Parser, ValueEnum};
use concise_wrapper::launch::Launch;
use concise_wrapper::slow_link::{Slowness, parse_speed};
use datasets::{CLASSES, PIXELS};
use harness::cli::{SVG, UsageError, each_once, whole};
use model_parallel::layers::Layers;
use model_parallel::mesh::Mesh;
use model_parallel::runs::RunArguments;
use sharded_state::Strategy;
use trainer::memory::NetworkSize;

/// The networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModelKind {
    /// Dense layers with relu between them
    Dense,
    /// A transformer that reads bytes
    Gpt,
}

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
#[command(mut_arg("text", |text| text.hide_short_help(true)))]
#[command(mut_arg("seed", |seed| seed.hide_short_help(true)))]
#[command(mut_arg("plot", |plot| plot.hide_short_help(true)))]
#[command(mut_arg("threads_per_device", |threads| threads.hide_short_help(true)))]
#[command(mut_arg("lr", |rate| rate.default_value("0.001").default_value_if("model", "gpt", "0.003").help("Learning rate of AdamW")))]
#[command(mut_arg("batch_size", |size| size.default_value("256").default_value_if("model", "gpt", "32")))]
#[command(mut_arg("epochs", |epochs| epochs.default_value("2").default_value_if("model", "gpt", "1")))]
#[command(mut_arg("dtype", |dtype| dtype.value_parser(element_type)))]
#[command(mut_arg("mesh", |mesh| mesh.help_heading("Sharing the state").help("Replicas, 1, and parts of a layer, such as 2x1x2")))]
pub(crate) struct Arguments {
    /// The network: dense or gpt
    ///
    /// The GPT has other defaults: --batch-size 32, --lr 0.003, --epochs 1. Its sizes are --blocks, --width, --heads and --context, and its text is --text.
    #[arg(long, value_enum, default_value_t = ModelKind::Dense, help_heading = "What to train")]
    model: ModelKind,

    /// Outputs of the dense layers [default: ten times 512]
    ///
    /// Each layer is a unit. The last layer has an output for each class, and is not in the list. A drawing has three layers by default.
    #[arg(long, help_heading = "What to train", value_name = "N,N,…", value_delimiter = ',',
          value_parser = whole::<usize>(1..=65_536))]
    widths: Vec<usize>,

    /// Features of the GPT [default: 128]
    #[arg(long, help_heading = "What to train", hide_short_help = true, value_name = "W", value_parser = whole::<u32>(1..=65_536))]
    width: Option<u32>,

    /// Steps over which the learning rate rises to its full height
    #[arg(long, help_heading = "What to train", hide_short_help = true, value_name = "STEPS", default_value = "0",
          default_value_if("model", "gpt", "20"), value_parser = whole::<usize>(0..=u32::MAX.into()))]
    pub(crate) warm_up: usize,

    #[command(flatten)]
    pub(crate) common: RunArguments,

    /// ddp, zero1, zero2, zero3 or zero3+prefetch, each also with +recompute [default: six of them]
    #[arg(long, help_heading = "Sharing the state", value_name = "NAME,…", value_delimiter = ',', value_parser = str::parse::<Strategy>,
          default_value = "ddp,zero1,zero2,zero3,zero3+prefetch,zero3+recompute", hide_default_value = true,
          default_value_ifs([("devices", "1", None), ("mesh", "1x1x1", None)]))]
    strategy: Vec<Strategy>,

    /// Micro-batches of each device in a step
    #[arg(long, help_heading = "Sharing the state", value_name = "M", default_value_t = 1,
          value_parser = whole::<usize>(1..=1024))]
    pub(crate) micro_batches: usize,

    /// +recompute is about every N-th unit [default: 1]
    #[arg(long, help_heading = "Sharing the state", value_name = "N", hide_short_help = true,
          value_parser = whole::<usize>(1..=1024))]
    recompute: Option<usize>,

    /// Slow the link between the devices down
    #[arg(long, help_heading = "Sharing the state", value_name = "MB/S", value_parser = parse_speed)]
    pub(crate) slow_link: Option<f64>,

    /// Draw the list of each strategy, and train nothing
    // Flags of environment variables may be there for other commands.
    #[arg(long, help_heading = "Output", conflicts_with_all = [
        "model", "mesh", "width", "warm_up", "blocks", "heads", "context", "text", "data", "train_size", "test_size", "epochs", "batch_size", "lr", "seed", "dtype", "device", "threads_per_device", "tf32",
        "slow_link", "gantt", "checkpoint", "every", "keep", "resume", "metrics", "plot", "trace", "timeline",
    ])]
    pub(crate) draw: bool,

    #[command(flatten)]
    pub(crate) checkpoints: Option<Checkpoints>,
}

fn element_type(name: &str) -> Result<DType, &'static str> {
    match name {
        "f32" => Ok(DType::F32),
        "f64" => Ok(DType::F64),
        "bf16" => Err("layers in bf16 keep rounded parameters, which nobody can free: take f32"),
        _ => Err("the types are f32 and f64"),
    }
}

impl Arguments {
    /// The strategies to train or to draw. One device has nothing to share, so its default is none.
    pub(crate) fn strategies(&self) -> Vec<Strategy> {
        let every = |_| self.recompute.unwrap_or(1);
        let of = |it: &Strategy| Strategy { recomputes: it.recomputes.map(every), ..*it };
        self.strategy.iter().map(of).collect()
    }

    /// The link of `--slow-link`.
    pub(crate) fn slowness(&self) -> Option<Slowness> {
        self.slow_link.map(|it| Slowness::of_megabytes(it, Default::default()))
    }

    /// The features between the layers, with the inputs and the outputs of the model.
    pub(crate) fn features(&self) -> Vec<usize> {
        let usual: &[usize] = if self.draw { &[1; 2] } else { &[512; 10] };
        let hidden = if self.widths.is_empty() { usual } else { &self.widths };
        [&[PIXELS], hidden, &[CLASSES]].concat()
    }

    /// The network: its layers, and its sizes.
    pub(crate) fn network(&self) -> anyhow::Result<(Layers, NetworkSize)> {
        let features = self.features();
        match self.model {
            ModelKind::Gpt => self.common.gpt(self.width),
            ModelKind::Dense => Ok((Layers::dense(&features)?, NetworkSize::dense(&features))),
        }
    }

    /// Refuses flags that contradict each other, or that make no sense on such a mesh, and files that cannot be written. A
    /// process that does not speak writes no files.
    pub(crate) fn check(&mut self, launch: &Launch, mesh: Mesh) -> Result<(), UsageError> {
        let is_gpt = self.model == ModelKind::Gpt;
        // A drawing has no batch.
        let each = if self.draw { 0 } else { self.micro_batches };
        self.common.check(launch, mesh, each, is_gpt)?;
        let recomputes = self.strategy.iter().any(|it| it.recomputes.is_some());
        each_once("--strategy", &self.strategy, Strategy::to_string)?;
        let of_other = if is_gpt { !self.widths.is_empty() } else { self.width.is_some() };
        let of_stages = format!(
            "--mesh {mesh} has {} stages, and this program has no pipelines: take --mesh {}",
            mesh.pipeline,
            Mesh { pipeline: 1, ..mesh }
        );
        Err(UsageError::new(if mesh.pipeline > 1 {
            &of_stages
        } else if of_other {
            "--widths is about --model dense, and --width is about --model gpt"
        } else if self.slow_link.is_some() && launch.processes().is_some() {
            "--slow-link needs a clock that all ranks read, and these ranks are processes: start this program by itself"
        } else if self.recompute.is_some() && !recomputes {
            "--recompute is about strategies with +recompute: take one, such as --strategy zero3+recompute"
        } else if self.checkpoints.is_some() && self.strategy.len() != 1 {
            "--checkpoint keeps the state of one strategy: take one, such as --strategy zero3"
        } else if self.checkpoints.is_some() && mesh.tensor > 1 {
            "--checkpoint keeps chunks of whole layers: take a mesh without parts of a layer, such as --mesh 2x1x1"
        } else {
            let RunArguments { reports, gantt, train, .. } = &mut self.common;
            if !launch.speaks() {
                (*reports, *gantt) = Default::default();
                return Ok(());
            }
            let folder = self.checkpoints.as_ref();
            let path = folder.map(|it| ("--checkpoint", it.folder.as_path()));
            reports.check(&[("--gantt", gantt.as_deref(), SVG)], path)?;
            return folder.map_or(Ok(()), |it| it.check(train.epochs));
        }))
    }
}

//! The flags, checked against each other and against the machine.

use std::path::PathBuf;
use std::time::Duration;

use candle_core::DType;
use clap::{Arg, Parser, ValueEnum};
use concise_wrapper::launch::{Launch, LaunchArguments};
use concise_wrapper::optimizer::Extras;
use concise_wrapper::sizing;
use datasets::{CLASSES, PIXELS};
use devices::{DevicePlan, SeveralDevices};
use harness::cli::{ReportArguments, UsageError, each_once};
use harness::report::counted;
use model_parallel::layers::Layers;
use model_parallel::mesh::Mesh;
use model_parallel::partition::{self, CutPoints};
use model_parallel::pipeline::Kind;
use trainer::{TrainArguments, TrainSetup};

use crate::draw::Drawings;

/// The number of micro-batches without `--micro-batches`.
const MICRO_BATCHES: usize = 8;

/// On a CPU, the number of training and test images without `--train-size` and `--test-size`.
const IMAGES_ON_A_CPU: (u64, u64) = (10_240, 2_000);

/// The schedules without `--schedule` and `--mesh`.
const SCHEDULES: [Kind; 5] =
    [Kind::Naive, Kind::GPipe, Kind::OneFOneB, Kind::Interleaved { chunks: 2 }, Kind::ZbH1];

/// Train one model on one device, then split over K: in stages (naive, GPipe, 1F1B, interleaved 1F1B, ZB-H1), and in
/// parts of every layer.
///
/// Without a GPU a device is a slice of the CPU, and part of the images are used.
#[derive(Debug, Parser)]
#[command(version, disable_help_flag = true)]
#[command(mut_arg("lr", |rate| rate.default_value("0.02")))]
#[command(mut_arg("batch_size", |size| size.default_value("1024")))]
#[command(mut_arg("epochs", |epochs| epochs.default_value("4")))]
#[command(mut_arg("momentum", |momentum| momentum.default_value("0.9")))]
#[command(mut_args(of_training))]
pub(crate) struct Arguments {
    #[command(flatten)]
    launch: LaunchArguments,

    /// The network to train
    #[arg(long, value_enum, default_value_t = ModelKind::Dense)]
    model: ModelKind,

    /// Outputs of each layer of the dense stack but the last [default: six times 512]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    widths: Vec<u32>,

    /// Planes of ResNet-18's first group [default: 64; 16 on a CPU]
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u32).range(1..=1024))]
    width: Option<u32>,

    /// Into how many micro-batches a pipeline cuts its part of a batch; naive alone works on whole batches unless
    /// this is given [default: 8]
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=1024))]
    micro_batches: Option<u32>,

    /// The order of work in a pipeline: naive, gpipe, 1f1b, interleaved:CHUNKS, zb-h1
    /// [default: all, with 2 chunks; 1f1b with --mesh]
    #[arg(long = "schedule", value_name = "KIND,…", value_delimiter = ',')]
    schedules: Vec<Kind>,

    /// The layers at which a new stage begins, such as 3,7 [default: the smallest largest stage, by measured cost]
    #[arg(long, value_name = "LAYER,…")]
    cut: Option<CutPoints>,

    /// Several axes at once: replicas, stages of each, parts of each layer; such as 2x2x1
    #[arg(long, value_name = "DATAxPIPELINExTENSOR")]
    mesh: Option<Mesh>,

    /// Draw the schedules as they would be if a forward pass took one unit of time, a backward pass two and a
    /// message none, and train nothing
    #[arg(long)]
    draw: bool,

    /// Draw one step of every stage, measured below predicted, into this SVG file
    #[arg(long, value_name = "FILE.svg")]
    gantt: Option<PathBuf>,

    #[command(flatten)]
    extras: Extras,

    #[command(flatten)]
    train: TrainArguments,

    /// Print help
    #[arg(short, long, action = clap::ArgAction::HelpLong)]
    help: Option<bool>,
}

/// Makes a flag about training conflict with `--draw`. An environment variable may be set for other commands, so its flag
/// does not conflict. Under mpirun ranks that draw must find each other, for which they wait `--timeout`.
fn of_training(flag: Arg) -> Arg {
    const OF_DRAWINGS: [&str; 7] =
        ["devices", "timeout", "micro_batches", "schedules", "draw", "help", "version"];
    let conflicts = flag.get_env().is_none() && !OF_DRAWINGS.contains(&flag.get_id().as_str());
    if conflicts { flag.conflicts_with("draw") } else { flag }
}

/// The networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelKind {
    /// Dense layers with relu between them
    Dense,
    /// Stage 1's network
    Lenet,
    /// 18 layers with batch norm; in stages only
    Resnet18,
}

/// The task of a call.
pub(crate) enum Task {
    Train(Box<Prepared>),
    Draw(Drawings),
}

/// The flags of a call that trains, checked, with the data loaded.
pub(crate) struct Prepared {
    pub(crate) setup: TrainSetup,
    pub(crate) extras: Extras,
    pub(crate) network: Architecture,
    /// The devices of this process.
    pub(crate) several: DevicePlan,
    /// One device alone; `None` when each process has one.
    pub(crate) one: Option<DevicePlan>,
    /// The names of all processes' devices, on the process that reports.
    pub(crate) devices: Vec<String>,
    pub(crate) mesh: Mesh,
    /// Whether the user chose the mesh or the schedules.
    pub(crate) chosen: bool,
    /// The schedules, each with its number of micro-batches.
    pub(crate) schedules: Vec<(Kind, usize)>,
    pub(crate) cut: Option<CutPoints>,
    /// Why the layers cannot be cut into parts, if they cannot.
    pub(crate) no_parts: Option<String>,
    pub(crate) gantt: Option<PathBuf>,
    pub(crate) notes: Vec<String>,
}

/// A network, as far as flags describe it.
pub(crate) struct Architecture {
    pub(crate) model: ModelKind,
    /// The widths of a dense stack, from pixels to classes.
    pub(crate) widths: Vec<usize>,
    /// The width of a ResNet-18.
    width: usize,
}

impl Architecture {
    /// The name, such as `dense stack 784-512-10`.
    pub(crate) fn name(&self) -> String {
        match self.model {
            ModelKind::Dense => {
                let widths: Vec<String> = self.widths.iter().map(ToString::to_string).collect();
                format!("dense stack {}", widths.join("-"))
            }
            ModelKind::Lenet => "LeNet".to_owned(),
            ModelKind::Resnet18 => format!("ResNet-18 of width {}", self.width),
        }
    }

    /// The list of layers.
    pub(crate) fn layers(&self) -> candle_core::Result<Layers> {
        match self.model {
            ModelKind::Dense => Layers::dense(&self.widths),
            ModelKind::Lenet => Ok(Layers::lenet()),
            ModelKind::Resnet18 => Ok(Layers::resnet18(self.width)),
        }
    }

    /// Why every layer cannot be cut into so many parts, if it cannot.
    fn no_parts(&self, parts: usize) -> Option<String> {
        let too_few = |what: String, features: usize| {
            let features = (features < parts).then(|| counted(features, "feature"))?;
            Some(format!("{what}: {features} cannot be cut into {parts} parts"))
        };
        match self.model {
            ModelKind::Resnet18 => Some("ResNet-18 is split in stages only".to_owned()),
            ModelKind::Lenet => too_few("LeNet's last layer".to_owned(), CLASSES),
            ModelKind::Dense => {
                // Every other layer is cut by its outputs.
                let mut by_column = self.widths[1..].iter().enumerate().step_by(2);
                by_column
                    .find_map(|(layer, &outputs)| too_few(format!("dense layer {layer}"), outputs))
            }
        }
    }
}

impl Arguments {
    /// Checks the flags and prepares the task.
    pub(crate) fn task(self, launch: &Launch) -> anyhow::Result<Task> {
        each_once("--schedule", &self.schedules, Kind::to_string)?;
        if !self.draw {
            return Ok(Task::Train(Box::new(self.prepare(launch)?)));
        }
        let drawings = Drawings {
            kinds: self.schedules(),
            stages: self.launch.devices.unwrap_or(SeveralDevices::DEFAULT),
            micro_batches: self.micro_batches(),
        };
        drawings.check()?;
        Ok(Task::Draw(drawings))
    }

    /// The time that a rank waits for another rank.
    pub(crate) fn timeout(&self) -> Duration {
        self.launch.timeout()
    }

    fn micro_batches(&self) -> usize {
        self.micro_batches.map_or(MICRO_BATCHES, |number| number as usize)
    }

    fn schedules(&self) -> Vec<Kind> {
        match self.schedules.as_slice() {
            [] if self.mesh.is_some() => vec![Kind::OneFOneB],
            // A drawing of all five schedules would be long.
            [] if self.draw => SCHEDULES[..3].to_vec(),
            [] => SCHEDULES.to_vec(),
            kinds => kinds.to_vec(),
        }
    }

    /// Checks the flags against each other and against the machine, then loads the data and opens files.
    fn prepare(mut self, launch: &Launch) -> anyhow::Result<Prepared> {
        let refuse = |text: String| Err(UsageError::new(text).into());
        if !launch.has_messages() {
            let text = "stages send each other activations, and NCCL, which alone connects these processes, has no \
                        messages between two: start them with mpirun";
            return refuse(text.to_owned());
        }
        let asked = match (self.mesh.map(|mesh| mesh.devices()), self.launch.devices) {
            (Some(of_mesh), Some(count)) if of_mesh != count => {
                return refuse(format!(
                    "a mesh of {of_mesh} devices and --devices {count}: leave one of the two out"
                ));
            }
            (of_mesh, count) => of_mesh.or(count),
        };
        let (several, world_size) = launch.plan(&self.launch.each, asked)?;
        let mesh = self.mesh.unwrap_or(Mesh::pipeline(world_size));
        if mesh.devices() != world_size {
            let of_mesh = mesh.devices();
            return refuse(format!(
                "mesh {mesh} has {of_mesh} devices, and there are {world_size}"
            ));
        }
        let hidden: Vec<usize> = match self.widths.as_slice() {
            [] => vec![512; 6],
            widths => widths.iter().map(|&width| width as usize).collect(),
        };
        let network = Architecture {
            model: self.model,
            widths: [&[PIXELS], hidden.as_slice(), &[CLASSES]].concat(),
            width: sizing::width(self.width, &several),
        };
        self.check(mesh, &network)?;
        if !launch.speaks() {
            self.train.reports = ReportArguments::default();
            self.gantt = None;
        }
        self.train.reports.check(&[("--gantt", self.gantt.as_deref())])?;
        let mut notes: Vec<String> = launch.note(&several).into_iter().collect();
        if sizing::limit_images(&mut self.train, &several, IMAGES_ON_A_CPU) {
            notes.push("sized to a CPU: part of the images; --train-size changes that".to_owned());
        }
        let one = match launch.processes() {
            Some(_) => None,
            None => Some(self.launch.each.plan_one_of(&several)?),
        };
        Ok(Prepared {
            extras: self.extras,
            no_parts: network.no_parts(world_size),
            network,
            several,
            one,
            devices: Vec::new(),
            mesh,
            chosen: self.mesh.is_some() || !self.schedules.is_empty(),
            schedules: self.schedules().into_iter().map(|kind| self.with_pieces(kind)).collect(),
            cut: self.cut.take(),
            gantt: self.gantt.take(),
            notes,
            // Last, because this opens files.
            setup: self.train.prepare(mesh.data)?,
        })
    }

    /// A kind of schedule with its number of micro-batches.
    fn with_pieces(&self, kind: Kind) -> (Kind, usize) {
        let whole = kind == Kind::Naive && self.micro_batches.is_none();
        (kind, if whole { 1 } else { self.micro_batches() })
    }

    /// Refuses flags that contradict each other on the devices of `mesh`.
    fn check(&self, mesh: Mesh, network: &Architecture) -> anyhow::Result<()> {
        let refuse = |text: String| Err(UsageError::new(text).into());
        if !self.widths.is_empty() && self.model != ModelKind::Dense {
            return refuse("--widths is about --model dense".to_owned());
        }
        if self.width.is_some() && self.model != ModelKind::Resnet18 {
            return refuse("--width is about --model resnet18".to_owned());
        }
        if mesh.tensor > 1 {
            if self.model == ModelKind::Resnet18 {
                return refuse(
                    "ResNet-18 is split in stages only: layers are cut into parts with --model dense or lenet".to_owned(),
                );
            }
            if mesh.pipeline > 1 {
                return refuse(format!(
                    "mesh {mesh} cuts the model into stages and their layers into parts, which this program does not \
                     do together: take {} or {}",
                    Mesh { pipeline: mesh.pipeline * mesh.tensor, tensor: 1, ..mesh },
                    Mesh { pipeline: 1, tensor: mesh.pipeline * mesh.tensor, ..mesh },
                ));
            }
            if let Some(text) = network.no_parts(mesh.tensor) {
                return refuse(text);
            }
        }
        let of_pipelines = self.micro_batches.is_some()
            || !self.schedules.is_empty()
            || self.cut.is_some()
            || self.gantt.is_some();
        if mesh.pipeline == 1 && of_pipelines {
            return refuse(format!(
                "--schedule, --micro-batches, --cut and --gantt are about pipelines, and there is one stage: ask \
                 for several, such as --mesh {}",
                Mesh { pipeline: mesh.tensor.max(2), tensor: 1, ..mesh }
            ));
        }
        self.check_cut(mesh, network)?;
        let (each, what) = match mesh.pipeline {
            1 => (1, "shards"),
            _ => {
                let pieces = self.schedules().into_iter().map(|kind| self.with_pieces(kind).1);
                (pieces.max().unwrap_or(1), "micro-batches")
            }
        };
        let pieces = mesh.data * each;
        if self.train.batch_size < pieces as u64 {
            let of_replicas = match (mesh.data, each) {
                (1, _) | (_, 1) => String::new(),
                (replicas, each) => format!(" ({each} on each of {replicas} replicas)"),
            };
            return refuse(format!(
                "batch size {} cannot be cut into {pieces} {what}{of_replicas}: each needs at least one sample",
                self.train.batch_size
            ));
        }
        Ok(())
    }

    /// Refuses schedules and cuts that do not exist for the stages and the layers.
    fn check_cut(&self, mesh: Mesh, network: &Architecture) -> anyhow::Result<()> {
        let refuse = |text: String| Err(UsageError::new(text).into());
        let of_network =
            |error: partition::Error| UsageError::new(format_args!("{}: {error}", network.name()));
        let layers = network.layers()?.len();
        partition::cut(&vec![1.0; layers], mesh.pipeline).map_err(of_network)?;
        for kind in &self.schedules {
            let possible = kind.check(mesh.pipeline, self.with_pieces(*kind).1);
            possible.map_err(|error| UsageError::new(format_args!("--schedule: {error}")))?;
            if self.cut.is_none() {
                let parts = mesh.pipeline * kind.chunks();
                partition::cut(&vec![1.0; layers], parts).map_err(of_network)?;
            }
        }
        let Some(cut) = &self.cut else { return Ok(()) };
        let parts = self.schedules.iter().map(|kind| mesh.pipeline * kind.chunks());
        let parts = if self.schedules.is_empty() { vec![mesh.pipeline] } else { parts.collect() };
        if let Some(&parts) = parts.iter().find(|&&parts| parts != cut.stages()) {
            let devices = match parts / mesh.pipeline {
                1 => format!("devices for {parts}"),
                chunks => format!("{} with {chunks} chunks each", counted(mesh.pipeline, "device")),
            };
            return refuse(format!(
                "--cut {cut} makes {} stages, and there are {devices}",
                cut.stages()
            ));
        }
        cut.ranges(layers).map_err(of_network)?;
        Ok(())
    }
}

impl Prepared {
    /// The type of weights and layers.
    pub(crate) fn dtype(&self) -> DType {
        self.setup.dtype
    }

    /// The number of samples of the largest of so many shards of a batch. The only batch may be a smaller one.
    pub(crate) fn rows(&self, shards: usize) -> usize {
        self.setup.options.batch_size.min(self.setup.data.train.len()).div_ceil(shards)
    }
}

//! The flags, checked against each other and against the machine.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Parser, ValueEnum};
use concise_wrapper::launch::{Launch, LaunchArguments};
use concise_wrapper::optimizer::Extras;
use concise_wrapper::sizing;
use datasets::{CLASSES, PIXELS};
use devices::{DevicePlan, SeveralDevices};
use harness::cli::{ReportArguments, UsageError, each_once};
use harness::report::counted;
use model_parallel::Refused;
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
    pub(crate) model: ModelKind,
    pub(crate) layers: Layers,
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
    pub(crate) gantt: Option<PathBuf>,
    pub(crate) notes: Vec<String>,
}

/// Refuses the command line.
fn refuse<T>(text: impl std::fmt::Display) -> anyhow::Result<T> {
    Err(UsageError::new(text).into())
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

    /// A kind of schedule with its number of micro-batches.
    fn with_pieces(&self, kind: Kind) -> (Kind, usize) {
        let whole = kind == Kind::Naive && self.micro_batches.is_none();
        (kind, if whole { 1 } else { self.micro_batches() })
    }

    /// The layers of the network on these devices.
    fn layers(&self, devices: &DevicePlan) -> anyhow::Result<Layers> {
        if !self.widths.is_empty() && self.model != ModelKind::Dense {
            return refuse("--widths is about --model dense");
        }
        if self.width.is_some() && self.model != ModelKind::Resnet18 {
            return refuse("--width is about --model resnet18");
        }
        let hidden = if self.widths.is_empty() { &[512; 6] } else { self.widths.as_slice() };
        let hidden = hidden.iter().map(|&width| width as usize);
        let widths: Vec<usize> = std::iter::once(PIXELS).chain(hidden).chain([CLASSES]).collect();
        Ok(match self.model {
            ModelKind::Dense => Layers::dense(&widths)?,
            ModelKind::Lenet => Layers::lenet(),
            ModelKind::Resnet18 => Layers::resnet18(sizing::width(self.width, devices)),
        })
    }

    /// Checks the flags against each other and against the machine, then loads the data and opens files.
    fn prepare(mut self, launch: &Launch) -> anyhow::Result<Prepared> {
        if !launch.has_messages() {
            return refuse(
                "stages send each other activations, and NCCL, which alone connects these processes, has no messages \
                 between two: start them with mpirun",
            );
        }
        let of_mesh = self.mesh.map(|mesh| mesh.devices());
        if let (Some(of_mesh), Some(count)) = (of_mesh, self.launch.devices)
            && of_mesh != count
        {
            return refuse(format_args!(
                "a mesh of {of_mesh} devices and --devices {count}: leave one of the two out"
            ));
        }
        let (several, world_size) =
            launch.plan(&self.launch.each, of_mesh.or(self.launch.devices))?;
        let mesh = self.mesh.unwrap_or(Mesh::pipeline(world_size));
        let layers = self.layers(&several)?;
        self.check(mesh)?;
        if let Some(text) = self.model.no_parts(&layers, mesh.tensor) {
            return refuse(text);
        }
        self.check_cut(mesh, &layers)?;
        if !launch.speaks() {
            self.train.reports = ReportArguments::default();
            self.gantt = None;
        }
        self.train.reports.check(&[("--gantt", self.gantt.as_deref())])?;
        let mut notes: Vec<String> = launch.note(&several).into_iter().collect();
        let part = sizing::limit_images(&mut self.train, &several, IMAGES_ON_A_CPU);
        notes.extend(sizing::note(None, part));
        let one = match launch.processes() {
            Some(_) => None,
            None => Some(self.launch.each.plan_one_of(&several)?),
        };
        Ok(Prepared {
            extras: self.extras,
            model: self.model,
            layers,
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

    /// Refuses flags that contradict each other on the devices of `mesh`.
    fn check(&self, mesh: Mesh) -> anyhow::Result<()> {
        let of_pipelines = self.micro_batches.is_some()
            || !self.schedules.is_empty()
            || self.cut.is_some()
            || self.gantt.is_some();
        if mesh.pipeline == 1 && of_pipelines {
            return refuse(format_args!(
                "--schedule, --micro-batches, --cut and --gantt are about pipelines, and there is one stage: ask for \
                 several, such as --mesh {}",
                Mesh { pipeline: mesh.tensor.max(2), tensor: 1, ..mesh }
            ));
        }
        let (each, what) = match mesh.pipeline {
            1 => (1, "shards"),
            _ => {
                let pieces = self.schedules().into_iter().map(|kind| self.with_pieces(kind).1);
                (pieces.max().unwrap_or(1), "micro-batches")
            }
        };
        let (pieces, batch_size) = (mesh.data * each, self.train.batch_size);
        if batch_size < pieces as u64 {
            let of_replicas = match (mesh.data, each) {
                (1, _) | (_, 1) => String::new(),
                (replicas, each) => format!(" ({each} on each of {replicas} replicas)"),
            };
            return refuse(format_args!(
                "batch size {batch_size} cannot be cut into {pieces} {what}{of_replicas}: each needs at least one sample"
            ));
        }
        Ok(())
    }

    /// Refuses schedules and cuts that do not exist for the stages and the layers.
    fn check_cut(&self, mesh: Mesh, layers: &Layers) -> anyhow::Result<()> {
        let of_network =
            |error: Refused| UsageError::new(format_args!("{}: {error}", layers.name()));
        let costs = vec![1.0; layers.len()];
        let cut_into = |parts| partition::cut(&costs, parts).map(drop).map_err(of_network);
        cut_into(mesh.pipeline)?;
        let mut parts = vec![mesh.pipeline];
        for kind in &self.schedules {
            let possible = kind.check(mesh.pipeline, self.with_pieces(*kind).1);
            possible.map_err(|error| UsageError::new(format_args!("--schedule: {error}")))?;
            parts.push(mesh.pipeline * kind.chunks());
        }
        let parts = if self.schedules.is_empty() { &parts[..] } else { &parts[1..] };
        let Some(cut) = &self.cut else {
            return Ok(parts.iter().try_for_each(|&parts| cut_into(parts))?);
        };
        if let Some(&parts) = parts.iter().find(|&&parts| parts != cut.stages()) {
            let devices = match parts / mesh.pipeline {
                1 => format!("devices for {parts}"),
                chunks => format!("{} with {chunks} chunks each", counted(mesh.pipeline, "device")),
            };
            return refuse(format_args!(
                "--cut {cut} makes {} stages, and there are {devices}",
                cut.stages()
            ));
        }
        cut.ranges(layers.len()).map_err(of_network)?;
        Ok(())
    }
}

impl ModelKind {
    /// The reason why the layers cannot be cut into so many parts, if there is one.
    pub(crate) fn no_parts(self, layers: &Layers, parts: usize) -> Option<String> {
        match self {
            _ if parts == 1 => None,
            Self::Resnet18 => Some("ResNet-18 is split in stages only".to_owned()),
            _ => layers.check_parts(parts).err().map(|error| error.to_string()),
        }
    }

    /// Whether batch norms see the pieces of a batch.
    pub(crate) fn has_norms(self) -> bool {
        self == Self::Resnet18
    }
}

impl Prepared {
    /// The number of samples of the largest of so many shards of a batch. The only batch may be a smaller one.
    pub(crate) fn rows(&self, shards: usize) -> usize {
        self.setup.options.batch_size.min(self.setup.data.train.len()).div_ceil(shards)
    }
}

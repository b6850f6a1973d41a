//! The flags.

mod architecture;
mod checks;
mod plan;
mod prepare;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use concise_wrapper::launch::{Launch, LaunchArguments};
use concise_wrapper::optimizer::Extras;
use devices::SeveralDevices;
use model_parallel::mesh::Mesh;
use model_parallel::partition::CutPoints;
use model_parallel::pipeline::Kind;
use trainer::TrainArguments;

use crate::drawings::Drawings;

pub(crate) use prepare::Prepared;

/// Flags about what is trained, how, and what that leaves behind: of no use to `--draw`.
///
/// Those that also have an environment variable are not among them: it may be set for other commands.
const OF_TRAINING: [&str; 24] = [
    "device",
    "threads_per_device",
    "tf32",
    "model",
    "widths",
    "width",
    "mesh",
    "cut",
    "gantt",
    "momentum",
    "weight_decay",
    "warm_up",
    "data",
    "train_size",
    "test_size",
    "epochs",
    "batch_size",
    "lr",
    "seed",
    "dtype",
    "metrics",
    "plot",
    "trace",
    "timeline",
];

/// Train one model on one device, then split over K: in stages (naive, GPipe, 1F1B), and in parts of every layer.
///
/// Without a GPU a device is a slice of the CPU, and part of the images are used.
#[derive(Debug, Parser)]
#[command(version, disable_help_flag = true)]
#[command(mut_arg("lr", |rate| rate.default_value("0.02")))]
#[command(mut_arg("batch_size", |size| size.default_value("1024")))]
#[command(mut_arg("epochs", |epochs| epochs.default_value("4")))]
#[command(mut_arg("momentum", |momentum| momentum.default_value("0.9")))]
pub(crate) struct Arguments {
    #[command(flatten)]
    launch: LaunchArguments,

    /// What is trained
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

    /// Who does what when, in a pipeline: naive, gpipe, 1f1b; with --draw also interleaved:CHUNKS and zb-h1
    /// [default: naive, gpipe and 1f1b; 1f1b with --mesh]
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
    #[arg(long, conflicts_with_all = OF_TRAINING)]
    draw: bool,

    /// Draw what every stage did in one step, below what was predicted, into this SVG file
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

/// What a call is for.
pub(crate) enum Task {
    /// To train.
    Train(Box<Prepared>),
    /// To draw schedules.
    Draw(Drawings),
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

impl Arguments {
    /// Checks what is asked for, and gets ready to do it.
    pub(crate) fn task(self, launch: &Launch) -> anyhow::Result<Task> {
        if !self.draw {
            return Ok(Task::Train(Box::new(self.prepare(launch)?)));
        }
        self.check_schedules()?;
        let drawings = Drawings {
            kinds: self.schedules(),
            stages: self.launch.devices.unwrap_or(SeveralDevices::DEFAULT),
            micro_batches: self.micro_batches(),
        };
        drawings.check()?;
        Ok(Task::Draw(drawings))
    }

    /// How long a rank waits for another.
    pub(crate) fn timeout(&self) -> Duration {
        self.launch.timeout()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_flag_is_about_training_or_goes_with_a_drawing() {
        // Under mpirun, ranks that draw have to find each other, too, and for how long they try is --timeout.
        let drawn = ["devices", "timeout", "micro_batches", "schedules", "draw", "help"];
        let command = Arguments::command();
        let flags = command.get_arguments().filter(|flag| flag.get_env().is_none());
        let flags: BTreeSet<_> = flags.map(|flag| flag.get_id().as_str()).collect();
        assert_eq!(flags, OF_TRAINING.into_iter().chain(drawn).collect());
        assert_eq!(flags.len(), OF_TRAINING.len() + drawn.len());
    }
}

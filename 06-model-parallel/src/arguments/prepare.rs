//! From flags to what is to be done: everything is checked, then the data is loaded and files are opened.

use std::path::PathBuf;

use candle_core::DType;
use concise_wrapper::launch::Launch;
use concise_wrapper::optimizer::Extras;
use concise_wrapper::sizing;
use datasets::{CLASSES, PIXELS};
use devices::DevicePlan;
use harness::cli::{ReportArguments, UsageError};
use harness::report::summary::Versions;
use model_parallel::mesh::Mesh;
use model_parallel::partition::CutPoints;
use model_parallel::pipeline::Kind;
use trainer::TrainSetup;

use super::Arguments;
use super::architecture::Architecture;
use crate::way::{Planned, Way};

/// On a CPU, so many training and test images are used, unless `--train-size` and `--test-size` say
/// otherwise.
const IMAGES_ON_A_CPU: (u64, u64) = (10_240, 2_000);

/// The flags of one call, checked, with the data loaded.
pub(crate) struct Prepared {
    pub(crate) setup: TrainSetup,
    pub(crate) extras: Extras,
    pub(crate) network: Architecture,
    /// The devices of this process.
    pub(crate) several: DevicePlan,
    /// One device alone; `None` where each process has one.
    pub(crate) one: Option<DevicePlan>,
    /// The names of all processes' devices, known to the one that speaks once all can begin.
    pub(crate) devices: Vec<String>,
    pub(super) mesh: Mesh,
    /// Whether the mesh was asked for.
    pub(super) mesh_given: bool,
    /// Each with its number of micro-batches.
    pub(super) schedules: Vec<(Kind, usize)>,
    pub(super) schedules_given: bool,
    pub(crate) cut: Option<CutPoints>,
    /// Why the layers cannot be cut into parts, if they cannot.
    pub(super) no_parts: Option<String>,
    pub(crate) gantt: Option<PathBuf>,
    pub(crate) notes: Vec<String>,
}

impl Arguments {
    /// Checks the flags against each other and against the machine, then loads the data.
    pub(crate) fn prepare(mut self, launch: &Launch) -> anyhow::Result<Prepared> {
        if !launch.has_messages() {
            let text = "stages send each other activations, and NCCL, which alone connects these processes, has no \
                        messages between two: start them with mpirun";
            return Err(UsageError::new(text).into());
        }
        let (several, devices) = launch.plan(&self.launch.each, self.asked()?)?;
        if let Some(mesh) = self.mesh.filter(|mesh| mesh.devices() != devices) {
            let of_mesh = mesh.devices();
            let text = format!("mesh {mesh} has {of_mesh} devices, and there are {devices}");
            return Err(UsageError::new(text).into());
        }
        self.check(devices)?;
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
        let schedules = self.schedules().into_iter();
        let schedules = schedules.map(|kind| (kind, self.micro_batches_of(kind))).collect();
        let hidden = self.hidden_widths();
        let mesh = self.mesh.unwrap_or(Mesh::pipeline(devices));
        let network = Architecture {
            model: self.model,
            widths: [&[PIXELS], hidden.as_slice(), &[CLASSES]].concat(),
            width: sizing::width(self.width, &several),
        };
        network.check_cut(self.cut.as_ref(), mesh.pipeline)?;
        Ok(Prepared {
            extras: self.extras,
            network,
            several,
            one,
            devices: Vec::new(),
            mesh,
            mesh_given: self.mesh.is_some(),
            schedules,
            schedules_given: !self.schedules.is_empty(),
            no_parts: self.parts(devices).err(),
            cut: self.cut.take(),
            gantt: self.gantt.take(),
            notes,
            // Last, as it opens files.
            setup: self.train.prepare(mesh.data)?,
        })
    }
}

impl Prepared {
    /// What is about to be trained, in one line.
    pub(crate) fn headline(&self) -> String {
        self.setup.headline(&self.network.name())
    }

    pub(crate) fn dtype(&self) -> DType {
        self.setup.dtype
    }

    /// What has to be the same on all ranks, beside what the training loop compares.
    pub(crate) fn to_compare(&self, way: &Way, planned: &Planned) -> Vec<(String, String)> {
        let Self { mesh, .. } = self;
        [
            ("program version", format!("{:?}", Versions::of_this_binary())),
            ("model", self.network.name()),
            ("mesh", mesh.to_string()),
            ("way", way.name()),
            ("cut", format!("{:?}", planned.cut)),
        ]
        .map(|(what, value)| (what.to_owned(), value))
        .to_vec()
    }
}

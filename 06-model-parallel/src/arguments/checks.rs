//! Flags that make no sense together.

use datasets::CLASSES;
use harness::cli::{UsageError, each_once};
use harness::report::counted;
use model_parallel::mesh::Mesh;
use model_parallel::pipeline::Kind;

use super::{Arguments, ModelKind};

/// Micro-batches, unless others are asked for.
const MICRO_BATCHES: usize = 8;

impl Arguments {
    /// The devices that are asked for, if any are.
    pub(super) fn asked(&self) -> Result<Option<usize>, UsageError> {
        match (self.mesh.map(|mesh| mesh.devices()), self.launch.devices) {
            (Some(of_mesh), Some(count)) if of_mesh != count => Err(UsageError::new(format_args!(
                "a mesh of {of_mesh} devices and --devices {count}: leave one of the two out"
            ))),
            (of_mesh, count) => Ok(of_mesh.or(count)),
        }
    }

    /// Refuses flags that contradict each other, where `devices` share the work.
    pub(super) fn check(&self, devices: usize) -> Result<(), UsageError> {
        let Self { model, widths, width, mesh, cut, .. } = self;
        let refuse = |text: String| Err(UsageError::new(text));
        if !widths.is_empty() && *model != ModelKind::Dense {
            return refuse("--widths is about --model dense".to_owned());
        }
        if width.is_some() && *model != ModelKind::Resnet18 {
            return refuse("--width is about --model resnet18".to_owned());
        }
        let mesh = mesh.unwrap_or(Mesh::pipeline(devices));
        if mesh.tensor > 1 {
            self.check_parts(mesh)?;
        }
        let of_pipelines = self.micro_batches.is_some()
            || !self.schedules.is_empty()
            || cut.is_some()
            || self.gantt.is_some();
        if mesh.pipeline == 1 && of_pipelines {
            return refuse(format!(
                "--schedule, --micro-batches, --cut and --gantt are about pipelines, and there is one stage: ask \
                 for several, such as --mesh {}",
                Mesh { pipeline: mesh.tensor.max(2), tensor: 1, ..mesh }
            ));
        }
        if let Some(cut) = cut.as_ref().filter(|cut| cut.stages() != mesh.pipeline) {
            return refuse(format!(
                "--cut {cut} makes {} stages, and there are devices for {}",
                cut.stages(),
                mesh.pipeline
            ));
        }
        if let Some(kind) = self.schedules.iter().find(|kind| !kind.is_executed() && !self.draw) {
            return refuse(format!(
                "{kind} can be checked, predicted and drawn, and is not executed: add --draw, or take naive, \
                 gpipe or 1f1b"
            ));
        }
        self.check_schedules()?;
        let micro_batches = self.schedules().into_iter().map(|kind| self.micro_batches_of(kind));
        let (each, what) = match mesh.pipeline {
            1 => (1, "shards"),
            _ => (micro_batches.max().unwrap_or(1), "micro-batches"),
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

    /// Refuses a schedule that is asked for twice, whether it is to be drawn or executed.
    pub(super) fn check_schedules(&self) -> Result<(), UsageError> {
        each_once("--schedule", &self.schedules, Kind::to_string)
    }

    /// Whether every layer can be cut into parts.
    fn check_parts(&self, mesh: Mesh) -> Result<(), UsageError> {
        if self.model == ModelKind::Resnet18 {
            return Err(UsageError::new(
                "ResNet-18 is split in stages only: layers are cut into parts with --model dense or lenet",
            ));
        }
        if mesh.pipeline > 1 {
            return Err(UsageError::new(format_args!(
                "mesh {mesh} cuts the model into stages and their layers into parts, which this program does not \
                 do together: take {} or {}",
                Mesh { pipeline: mesh.pipeline * mesh.tensor, tensor: 1, ..mesh },
                Mesh { pipeline: 1, tensor: mesh.pipeline * mesh.tensor, ..mesh },
            )));
        }
        self.parts(mesh.tensor).map_err(UsageError::new)
    }

    /// Whether layers can be cut into so many parts.
    pub(super) fn parts(&self, parts: usize) -> Result<(), String> {
        let check = |what: String, features: usize| match features < parts {
            true => {
                let features = counted(features, "feature");
                Err(format!("{what}: {features} cannot be cut into {parts} parts"))
            }
            false => Ok(()),
        };
        match self.model {
            ModelKind::Resnet18 => Err("ResNet-18 is split in stages only".to_owned()),
            ModelKind::Lenet => check("LeNet's last layer".to_owned(), CLASSES),
            ModelKind::Dense => {
                let widths = self.hidden_widths();
                let mut by_column = widths.iter().chain(&[CLASSES]).enumerate().step_by(2);
                by_column.try_for_each(|(layer, &outputs)| {
                    check(format!("dense layer {layer}"), outputs)
                })
            }
        }
    }

    /// The outputs of all dense layers but the last.
    pub(super) fn hidden_widths(&self) -> Vec<usize> {
        match self.widths.as_slice() {
            [] => vec![512; 6],
            widths => widths.iter().map(|&width| width as usize).collect(),
        }
    }

    /// Micro-batches of a pipeline.
    pub(super) fn micro_batches(&self) -> usize {
        self.micro_batches.map_or(MICRO_BATCHES, |number| number as usize)
    }

    /// Those of a pipeline of this kind.
    pub(super) fn micro_batches_of(&self, kind: Kind) -> usize {
        match kind {
            Kind::Naive if self.micro_batches.is_none() => 1,
            _ => self.micro_batches(),
        }
    }

    /// The schedules that are asked for, or all that are executed.
    pub(super) fn schedules(&self) -> Vec<Kind> {
        match self.schedules.as_slice() {
            [] if self.mesh.is_some() => vec![Kind::OneFOneB],
            [] => vec![Kind::Naive, Kind::GPipe, Kind::OneFOneB],
            kinds => kinds.to_vec(),
        }
    }
}

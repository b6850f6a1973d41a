//! The ways in which the program trains the model, one after the other.

use std::ops::Range;

use anyhow::{anyhow, bail};
use concise_wrapper::launch::Launch;
use datasets::SAMPLE;
use model_parallel::mesh::Mesh;
use model_parallel::partition::{self, LayerCost};
use model_parallel::pipeline::predict::Costs;
use model_parallel::pipeline::{Checked, Kind, Timeline, UNBOUNDED, check, predict};

use crate::arguments::{ModelKind, Prepared};

/// The number of times that each layer is measured. The least counts.
const TIMES: usize = 5;

/// The costs of all layers, for each number of samples of a micro-batch. The smallest number comes first.
type Measured = Vec<(usize, Vec<LayerCost>)>;

/// One way to train: on one device, in stages, or in parts of every layer.
pub(crate) struct Way {
    /// The name in tables and files.
    pub(crate) name: String,
    /// The devices.
    pub(crate) mesh: Mesh,
    /// The number of pieces of each batch: each has its own statistics in a batch norm, and gradients are their sum.
    pub(crate) shards: usize,
    /// The schedule of stages, or of replicas of the whole model.
    pub(crate) pipeline: Option<Pipeline>,
}

/// A schedule, its prediction, and the layers of each part of the model.
pub(crate) struct Pipeline {
    /// The name of the kind of schedule.
    pub(crate) name: String,
    pub(crate) checked: Checked,
    pub(crate) predicted: Timeline,
    pub(crate) cut: Vec<Range<usize>>,
}

/// The ways, and notes for the reader of their numbers.
pub(crate) struct Plan {
    pub(crate) ways: Vec<Way>,
    pub(crate) notes: Vec<String>,
}

impl Way {
    /// One device, which adds up the gradients of so many shards.
    fn alone(shards: usize) -> Self {
        let name = match shards {
            1 => "one device".to_owned(),
            _ => format!("one device, {shards} micro-batches"),
        };
        Self { name, mesh: Mesh::pipeline(1), shards, pipeline: None }
    }

    fn tensor(mesh: Mesh) -> Self {
        let of_mesh = if mesh.data > 1 { format!(", mesh {mesh}") } else { String::new() };
        Self { name: format!("tensor parallel{of_mesh}"), mesh, shards: mesh.data, pipeline: None }
    }

    fn pipeline(
        (kind, micro_batches): (Kind, usize),
        mesh: Mesh,
        costs: &Costs,
        cut: Vec<Range<usize>>,
    ) -> anyhow::Result<Self> {
        let of_mesh = if mesh.data > 1 { format!(", mesh {mesh}") } else { String::new() };
        let name = match (mesh.pipeline, micro_batches) {
            (1, _) => format!("mesh {mesh}"),
            (_, 1) => format!("{kind}, whole batch{of_mesh}"),
            _ => format!("{kind}, {micro_batches} micro-batches{of_mesh}"),
        };
        // Workers send at once, as if channels held any number of messages.
        let checked = check(kind.schedule(mesh.pipeline, micro_batches)?, UNBOUNDED)?;
        let predicted = predict(&checked, costs)?;
        let kind = match kind {
            Kind::Interleaved { chunks } => format!("interleaved 1F1B ({chunks} chunks)"),
            kind => kind.to_string(),
        };
        let pipeline = Some(Pipeline { name: kind, checked, predicted, cut });
        Ok(Self { name, mesh, shards: mesh.data * micro_batches, pipeline })
    }

    /// Whether one device does everything. The table compares all ways with such a way.
    pub(crate) fn is_alone(&self) -> bool {
        self.mesh.devices() == 1 && self.pipeline.is_none()
    }

    /// The name, and the number of devices if there are several.
    pub(crate) fn title(&self) -> String {
        let Self { name, mesh, .. } = self;
        if self.is_alone() { name.clone() } else { format!("{name} on {} devices", mesh.devices()) }
    }

    /// The schedule, if there are several stages.
    pub(crate) fn stages(&self) -> Option<&Pipeline> {
        self.pipeline.as_ref().filter(|_| self.mesh.pipeline > 1)
    }
}

impl Prepared {
    /// Measures the layers on this process's first device, if they will be cut. All processes call this together, and
    /// get the same numbers.
    pub(crate) fn measure(&self, launch: &Launch) -> anyhow::Result<Measured> {
        let mine =
            if launch.speaks() && self.mesh.pipeline > 1 { self.costs() } else { Ok(vec![]) };
        Ok(launch.of_speaker(launch.agree(mine)?)?)
    }

    fn costs(&self) -> anyhow::Result<Measured> {
        let layers = self.network.layers()?;
        let mut measured = Measured::new();
        let slot = self.several.slots().first().ok_or_else(|| anyhow!("there is no device"))?;
        let device = slot.open()?;
        for &(_, micro_batches) in &self.schedules {
            let rows = self.rows(self.mesh.data * micro_batches);
            if measured.iter().all(|(known, _)| *known != rows) {
                let (dtype, tensors) = (self.dtype(), device.tensors());
                let costs = device
                    .run(|| partition::measure(&layers, &SAMPLE, rows, TIMES, dtype, tensors))?;
                measured.push((rows, costs));
            }
        }
        measured.sort_by_key(|(rows, _)| *rows);
        Ok(measured)
    }

    /// Plans all ways, from the costs of the layers.
    pub(crate) fn plan(&self, measured: &Measured) -> anyhow::Result<Plan> {
        let mesh = self.mesh;
        let mut plan = Plan { ways: Vec::new(), notes: self.notes.clone() };
        let mut split = Vec::new();
        if mesh.tensor > 1 {
            split.push(Way::tensor(mesh));
        } else if mesh.pipeline > 1 {
            for &schedule in &self.schedules {
                split.extend(self.plan_stages(schedule, measured, &mut plan.notes)?);
            }
        } else if mesh.data > 1 {
            let (whole, costs) =
                (0..self.network.layers()?.len(), Costs::equal(1, Default::default()));
            split.push(Way::pipeline((Kind::Naive, 1), mesh, &costs, vec![whole])?);
        }
        if !self.chosen && mesh.devices() > 1 {
            match &self.no_parts {
                Some(why) => plan.notes.push(format!("no tensor parallelism: {why}")),
                None => split.push(Way::tensor(Mesh::tensor(mesh.devices()))),
            }
        }
        if self.one.is_some() {
            // Batch norms see shards. Without batch norms, pipelines have the numbers of the same shards on one device.
            let has_norms = self.network.model == ModelKind::Resnet18;
            let compared = split.iter().filter(|way| has_norms || way.stages().is_some());
            let mut alone: Vec<usize> = compared.map(|way| way.shards).chain([1]).collect();
            alone.sort_unstable();
            alone.dedup();
            plan.ways.extend(alone.into_iter().map(Way::alone));
        }
        plan.ways.extend(split);
        Ok(plan)
    }

    /// Plans a pipeline, with notes on its cut. Returns `None` for a default schedule that does not exist here.
    fn plan_stages(
        &self,
        (kind, micro_batches): (Kind, usize),
        measured: &Measured,
        notes: &mut Vec<String>,
    ) -> anyhow::Result<Option<Way>> {
        let mesh = self.mesh;
        let rows = self.rows(mesh.data * micro_batches);
        let of_rows = measured.iter().find(|(known, _)| *known == rows);
        // The cut is by the smallest micro-batches, which belong to the schedules that should be fast.
        let (Some((_, costs)), Some((_, smallest))) = (of_rows, measured.first()) else {
            return Err(anyhow!("no costs of {rows} rows"));
        };
        let cut = match self.cut_for(kind, micro_batches, smallest) {
            Ok(cut) => cut,
            Err(error) if self.chosen => return Err(error),
            Err(error) => {
                notes.push(format!("no {kind}: {error}"));
                return Ok(None);
            }
        };
        let note = self.note_on(&cut, smallest);
        if !notes.contains(&note) {
            notes.push(note);
        }
        let in_halves = kind == Kind::ZbH1;
        let costs = Costs::of_cut(costs, &cut, in_halves);
        Ok(Some(Way::pipeline((kind, micro_batches), mesh, &costs, cut)?))
    }

    /// The layers of each part of the model for a kind of schedule.
    fn cut_for(
        &self,
        kind: Kind,
        micro_batches: usize,
        costs: &[LayerCost],
    ) -> anyhow::Result<Vec<Range<usize>>> {
        kind.check(self.mesh.pipeline, micro_batches)?;
        let parts = self.mesh.pipeline * kind.chunks();
        let totals: Vec<f64> = costs.iter().map(LayerCost::total).collect();
        match &self.cut {
            None => Ok(partition::cut(&totals, parts)?),
            Some(cut) if cut.stages() == parts => Ok(cut.ranges(totals.len())?),
            Some(cut) => bail!("--cut {cut} makes {} stages, not {parts}", cut.stages()),
        }
    }

    /// `2 stages, cut by measured cost: layers 0 to 5 (96 % of the work), layer 6 (4 % of the work)`
    fn note_on(&self, cut: &[Range<usize>], costs: &[LayerCost]) -> String {
        let total = |layers: &[LayerCost]| layers.iter().map(LayerCost::total).sum::<f64>();
        let part = |range: &Range<usize>| {
            let layers = match range.len() {
                1 => format!("layer {}", range.start),
                _ => format!("layers {} to {}", range.start, range.end - 1),
            };
            let share = total(&costs[range.clone()]) / total(costs) * 100.0;
            format!("{layers} ({share:.0} % of the work)")
        };
        let parts: Vec<String> = cut.iter().map(part).collect();
        let how = if self.cut.is_some() { "as asked" } else { "by measured cost" };
        let what = match cut.len() / self.mesh.pipeline {
            1 => format!("{} stages", cut.len()),
            chunks => format!("{} stages of {chunks} chunks", self.mesh.pipeline),
        };
        format!("{what}, cut {how}: {}", parts.join(", "))
    }
}

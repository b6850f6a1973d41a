//! The ways in which the program trains the model, one after the other.

use std::ops::Range;

use anyhow::{anyhow, bail};
use concise_wrapper::launch::Launch;
use datasets::SAMPLE;
use devices::DevicePlan;
use model_parallel::mesh::Mesh;
use model_parallel::partition::{self, LayerCost};
use model_parallel::pipeline::predict::Costs;
use model_parallel::pipeline::{Checked, Kind, Timeline, UNBOUNDED, check, predict};

use crate::arguments::Prepared;

/// The number of times that each layer is measured. The least counts.
const TIMES: usize = 5;

/// The costs of all layers, for each number of samples of a micro-batch. The smallest number comes first.
type Measured = Vec<(usize, Vec<LayerCost>)>;

/// One way to train: a mesh of devices, and the order of work on the mesh.
pub(crate) struct Way {
    /// The name in tables and files.
    pub(crate) name: String,
    /// The devices.
    pub(crate) mesh: Mesh,
    /// The number of pieces of each batch: each has its own statistics in a batch norm, and gradients are their sum.
    pub(crate) shards: usize,
    /// The schedule, or `None` for one device that works on whole batches without a schedule.
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
    fn new(
        name: String,
        mesh: Mesh,
        (kind, micro_batches): (Kind, usize),
        costs: &Costs,
        cut: Vec<Range<usize>>,
    ) -> anyhow::Result<Self> {
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
        self.mesh.devices() == 1
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
    /// The devices of this process for a way.
    pub(crate) fn devices_of(&self, way: &Way) -> &DevicePlan {
        self.one.as_ref().filter(|_| way.is_alone()).unwrap_or(&self.several)
    }

    /// Measures the layers on the first device of the process that prints, and plans all ways. All processes call this
    /// together, and get the same ways.
    pub(crate) fn plan(&self, launch: &Launch) -> anyhow::Result<Plan> {
        let cuts = launch.speaks() && self.mesh.pipeline > 1;
        let mine = if cuts { self.measure() } else { Ok(Measured::new()) };
        let measured = launch.of_speaker(launch.agree(mine)?)?;
        launch.agree(self.ways(&measured))
    }

    fn measure(&self) -> anyhow::Result<Measured> {
        let mut measured = Measured::new();
        let slot = self.several.slots().first().ok_or_else(|| anyhow!("there is no device"))?;
        let (device, dtype) = (slot.open()?, self.setup.dtype);
        for &(_, micro_batches) in &self.schedules {
            let rows = self.rows(self.mesh.data * micro_batches);
            if measured.iter().all(|(known, _)| *known != rows) {
                let tensors = device.tensors();
                let costs = device.run(|| {
                    partition::measure(&self.layers, &SAMPLE, rows, TIMES, dtype, tensors)
                })?;
                measured.push((rows, costs));
            }
        }
        measured.sort_by_key(|(rows, _)| *rows);
        Ok(measured)
    }

    /// The ways, from the costs of the layers.
    fn ways(&self, measured: &Measured) -> anyhow::Result<Plan> {
        let mesh = self.mesh;
        let mut plan = Plan { ways: Vec::new(), notes: self.notes.clone() };
        let mut split = Vec::new();
        if mesh.pipeline > 1 {
            for &schedule in &self.schedules {
                split.extend(self.stages(schedule, measured, &mut plan.notes)?);
            }
        } else if mesh.devices() > 1 {
            split.push(self.one_stage(mesh, 1)?);
        }
        if !self.chosen && mesh.devices() > 1 {
            match self.model.no_parts(&self.layers, mesh.devices()) {
                Some(why) => plan.notes.push(format!("no tensor parallelism: {why}")),
                None => split.push(self.one_stage(Mesh::tensor(mesh.devices()), 1)?),
            }
        }
        if self.one.is_some() {
            // Batch norms see shards. Without batch norms, pipelines have the numbers of the same shards on one device.
            let has_norms = self.model.has_norms();
            let compared = split.iter().filter(|way| has_norms || way.stages().is_some());
            let mut shards: Vec<usize> = compared.map(|way| way.shards).chain([1]).collect();
            shards.sort_unstable();
            shards.dedup();
            for shards in shards {
                plan.ways.push(self.one_stage(Mesh::pipeline(1), shards)?);
            }
        }
        plan.ways.extend(split);
        Ok(plan)
    }

    /// Plans a way in which no device waits for another stage.
    fn one_stage(&self, mesh: Mesh, micro_batches: usize) -> anyhow::Result<Way> {
        let name = match (mesh.devices(), mesh.tensor) {
            (1, _) if micro_batches == 1 => {
                let name = "one device".to_owned();
                return Ok(Way { name, mesh, shards: 1, pipeline: None });
            }
            (1, _) => format!("one device, {micro_batches} micro-batches"),
            (_, 1) => format!("mesh {mesh}"),
            (devices, parts) if devices == parts => "tensor parallel".to_owned(),
            _ => format!("tensor parallel, mesh {mesh}"),
        };
        let (whole, costs) = (0..self.layers.len(), Costs::equal(1, Default::default()));
        Way::new(name, mesh, (Kind::Naive, micro_batches), &costs, vec![whole])
    }

    /// Plans a pipeline, with notes on its cut. Returns `None` for a default schedule that does not exist here.
    fn stages(
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
        let of_mesh = match mesh == Mesh::pipeline(mesh.pipeline) {
            true => String::new(),
            false => format!(", mesh {mesh}"),
        };
        let name = match micro_batches {
            1 => format!("{kind}, whole batch{of_mesh}"),
            _ => format!("{kind}, {micro_batches} micro-batches{of_mesh}"),
        };
        let costs = Costs::of_cut(costs, &cut, kind == Kind::ZbH1);
        Way::new(name, mesh, (kind, micro_batches), &costs, cut).map(Some)
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

//! From flags to the ways in which the program trains the model.

use std::collections::HashMap;
use std::ops::Range;

use anyhow::{Result, bail};
use concise_wrapper::launch::Launch;
use harness::cli::{UsageError, each_once};
use harness::report::counted;
use itertools::Itertools as _;
use model_parallel::layers::Layers;
use model_parallel::mesh::{Axis, Mesh};
use model_parallel::partition::{self, shorten};
use model_parallel::runs::{self, Training};
use model_parallel::{Cost, Kind, UNBOUNDED, check};

use crate::arguments::Arguments;
use crate::draw;

/// The flags of a call that trains, checked, with the data loaded.
pub(crate) struct Prepared {
    pub(crate) flags: Arguments,
    pub(crate) training: Training,
    pub(crate) ways: Vec<Run>,
}

/// One way to train: a mesh of devices, and the order of work on the mesh.
pub(crate) type Run = runs::Run<()>;

/// `2 stages, cut by measured cost: layers 0–5 (96 % of the work), 6 (4 %)`
fn note(Run { cut, mesh, .. }: &Run, how: &str, costs: &[f64]) -> String {
    let part = |part: &Range<usize>| {
        let share = costs[part.clone()].iter().sum::<f64>() / costs.iter().sum::<f64>();
        let of_what = if part.start == 0 { " of the work" } else { "" };
        format!("{} ({:.0} %{of_what})", range(part.start, part.end - 1), share * 100.0)
    };
    let chunks = cut.len() / mesh.pipeline;
    let chunks = if chunks > 1 { format!(" of {chunks} chunks") } else { String::new() };
    format!(
        "{} stages{chunks}, cut {how}: layers {}",
        mesh.pipeline,
        cut.iter().map(part).join(", ")
    )
}

/// `3–5`, and `3` for a single number.
pub(crate) fn range(first: usize, last: usize) -> String {
    if first == last { first.to_string() } else { format!("{first}–{last}") }
}

impl Arguments {
    /// The ways to train on `mesh`, each after the ways that it is compared with. A default way that does not exist here is
    /// left out with a note. Fails with a [`UsageError`] for other ways that do not exist.
    pub(crate) fn ways(
        &self,
        mesh: Mesh,
        layers: &Layers,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Run>> {
        let chosen = self.common.mesh.is_some() || !self.schedule.is_empty();
        let pipelines = self.schedules(mesh).into_iter().map(|(kind, number)| (mesh, kind, number));
        let of_tensors = (!chosen).then(|| (Mesh::tensor(mesh.devices()), Kind::Naive, 1));
        let several = pipelines.chain(of_tensors).filter(|(mesh, ..)| mesh.devices() > 1);
        let several = several.collect_vec();
        // Without batch norms, a pipeline alone has the numbers of its micro-batches on one device.
        let alike = several.iter().filter(|(mesh, ..)| self.has_norms() || mesh.pipeline > 1);
        let shards = alike.map(|(mesh, _, number)| mesh.data * number).chain(self.shards);
        let alone = shards.chain([1]).sorted().dedup();
        let alone = alone.map(|shards| (Mesh::pipeline(1), Kind::Naive, shards));
        let mut ways = Vec::new();
        for (mesh, kind, number) in alone.chain(several) {
            match self.way(mesh, kind, number, layers) {
                Ok(way) => ways.push(way),
                Err(error) if chosen || mesh.tensor == 1 && kind.chunks() == 1 => {
                    return Err(error);
                }
                Err(error) if mesh.tensor == 1 => notes.push(format!("no {kind}: {error}")),
                Err(error) => notes.push(format!("no tensor parallelism: {error}")),
            }
        }
        Ok(ways)
    }

    /// One of the ways. Without `--cut` the cut is made as if all layers cost the same. Fails with a [`UsageError`] when there is
    /// no such schedule, or the layers cannot be cut so.
    fn way(&self, mesh: Mesh, kind: Kind, micro_batches: usize, layers: &Layers) -> Result<Run> {
        let schedule = kind.schedule(mesh.pipeline, micro_batches).map_err(UsageError::new)?;
        // Executors send at once, as if channels held any number of messages.
        let checked = check(schedule.with_replicas(mesh.data), UNBOUNDED)?;
        match mesh.tensor {
            1 => {}
            _ if self.has_norms() => bail!(UsageError::new("ResNet-18 is split in stages only")),
            parts => layers.check_parts(parts).map_err(UsageError::new)?,
        }
        let (parts, has_stages) = (checked.schedule().units(), mesh.pipeline > 1);
        let (what, cut) = match self.cut.iter().join(",") {
            begins if has_stages && !begins.is_empty() => {
                (format!("--cut {begins}"), partition::cut_by_hand(&self.cut, layers.len()))
            }
            _ => (layers.name().to_owned(), partition::cut(&vec![1.0; layers.len()], parts)),
        };
        let cut = cut.map_err(|error| UsageError::new(format_args!("{what}: {error}")))?;
        if cut.len() != parts {
            bail!(UsageError::new(format_args!(
                "{what} makes {} stages, not {parts}: there are {} with {} each",
                cut.len(),
                counted(mesh.pipeline, "device"),
                counted(kind.chunks(), "chunk"),
            )));
        }
        let split = match (mesh.data, mesh.pipeline, mesh.tensor) {
            (1, 1, 1) => "one device".to_owned(),
            (_, 1, 1) => format!("mesh {mesh}"),
            (_, 1, _) => "tensor parallel".to_owned(),
            _ => kind.to_string(),
        };
        let pieces = match micro_batches {
            1 if has_stages => ", whole batch".to_owned(),
            2.. if has_stages || mesh.devices() == 1 => format!(", {micro_batches} micro-batches"),
            _ => String::new(),
        };
        let is_mixed = mesh.devices() > mesh.data.max(mesh.pipeline).max(mesh.tensor);
        let axes = if is_mixed { format!(", mesh {mesh}") } else { String::new() };
        let name = [&*split, &pieces, &axes].concat();
        let title = match mesh.devices() {
            1 => name.clone(),
            devices => format!("{name} on {devices} devices"),
        };
        // The number of chunks distinguishes several interleaved schedules.
        let interleaved = self.schedule.iter().filter(|kind| kind.chunks() > 1).count();
        let is_short = kind.chunks() > 1 && interleaved < 2;
        let label = if is_short { "interleaved 1F1B".to_owned() } else { split };
        let (step, held, facts) = (None, Vec::new(), ());
        Ok(Run { name, title, label, mesh, checked, cut, step, held, facts })
    }
}

impl Prepared {
    /// Checks the flags against each other and against the machine, plans the ways, then loads the data and opens files. With
    /// `--draw` prints the drawings, and returns `None`.
    pub(crate) fn new(mut flags: Arguments, launch: &Launch) -> Result<Option<Self>> {
        each_once("--schedule", &flags.schedule, Kind::to_string)?;
        if flags.draw {
            draw::draw(flags, launch)?;
            return Ok(None);
        }
        let (several, mesh) = flags.common.plan(launch, Mesh::pipeline)?;
        flags.check(launch, mesh)?;
        let ((layers, size), mut notes) = (flags.network(&several)?, Vec::new());
        let mut ways = flags.ways(mesh, &layers, &mut notes)?;
        // Each process has a device, so no process trains alone.
        ways.retain(|way| launch.processes().is_none() || !way.is_alone());
        // Each rank of tensor parallelism has whole activations, and copies in messages.
        let activations = ways.iter().map(|way| way.mesh.tensor).max().filter(|&parts| parts > 1);
        // Each run keeps its results, and the threads of its ranks leave their memory to the next run.
        let copies = (2 + 4 * ways.len(), activations.map_or(1, |parts| 2 * parts));
        let (model, plan) = ((layers, size), (several, mesh));
        let training = Training::prepare(launch, &mut flags.common, model, plan, copies, notes)?;
        Ok(Some(Self { flags, training, ways }))
    }

    /// Cuts the model by the measured costs of its layers. All processes call this together: the process that prints measures
    /// and predicts, and all processes get its cuts.
    pub(crate) fn cut_by_cost(&mut self, launch: &Launch) -> Result<()> {
        launch.agree(if launch.speaks() { self.measure() } else { Ok(()) })?;
        let cuts = launch.of_speaker(self.ways.iter().map(|way| way.cut.clone()).collect_vec())?;
        if self.flags.cut.is_empty() {
            self.ways.iter_mut().zip(cuts).for_each(|(way, cut)| way.cut = cut);
        }
        Ok(())
    }

    /// Measures the layers on the first device, for each size of a micro-batch. Then cuts all pipelines, and predicts them. For a
    /// text, predicts all ways, because the table of memory has the predicted bytes.
    fn measure(&mut self) -> Result<()> {
        let Self { flags, training, ways } = self;
        let of_text = training.layers.takes_tokens();
        let is_predicted = |way: &&mut Run| of_text || way.mesh.pipeline > 1;
        let mut predicted = ways.iter_mut().filter(is_predicted).collect_vec();
        // The smallest micro-batches belong to the schedules that should be fast.
        let pipelines = predicted.iter().filter(|way| way.mesh.pipeline > 1);
        let most = pipelines.map(|way| (way.shards(), 1)).max();
        let sizes = predicted.iter().map(|way| (way.shards(), way.mesh.tensor)).chain(most);
        let costs = |size| Ok((size, training.costs(size, &mut *flags.optimizer())?));
        let costs = sizes.unique().map(costs).collect::<Result<HashMap<_, _>>>()?;
        let totals = most.map_or(Vec::new(), |most| costs[&most].iter().map(Cost::total).collect());
        let mut notes = Vec::new();
        for way in &mut predicted {
            let layers = &costs[&(way.shards(), way.mesh.tensor)];
            let (is_pipeline, mut how) = (way.mesh.pipeline > 1, "as asked");
            if flags.cut.is_empty() && is_pipeline {
                (how, way.cut) = ("by measured cost", partition::cut(&totals, way.cut.len())?);
                if way.cut.len() > way.mesh.pipeline {
                    way.cut = shorten(&way.checked, layers, way.cut.clone())?;
                }
            }
            notes.extend(is_pipeline.then(|| note(way, how, &totals)));
            // One device has no replicas: a sum is an addition for each other replica.
            let mut units = Cost::of_parts(layers, &way.cut);
            units.iter_mut().for_each(|it| it.all_reduce *= (way.mesh.data - 1) as f64);
            let step = way.checked.simulate(&units, 0.0)?;
            // The bytes are predicted for running sums.
            let devices = if flags.shards.is_none() { 0..way.mesh.devices() } else { 0..0 };
            let stage = |device| way.mesh.coordinate(device, Axis::Pipeline);
            way.held = devices.map(|device| step.held(stage(device))).collect();
            way.step = Some(step);
        }
        training.notes.extend(notes.into_iter().unique());
        Ok(())
    }
}

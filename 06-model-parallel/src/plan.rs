//! From flags to the ways in which the program trains the model.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use anyhow::bail;
use concise_wrapper::launch::Launch;
use concise_wrapper::optimizer::Sgd;
use concise_wrapper::sizing;
use datasets::SAMPLE;
use devices::DevicePlan;
use harness::cli::{UsageError, each_once};
use harness::report::counted;
use itertools::Itertools as _;
use model_parallel::layers::Layers;
use model_parallel::mesh::Mesh;
use model_parallel::partition::{self, Setting, shorten};
use model_parallel::{Checked, Cost, Kind, Timeline, UNBOUNDED, check};
use trainer::TrainSetup;
use trainer::memory::Footprint;

use crate::arguments::Arguments;
use crate::draw;

/// On a CPU, the number of training and test images without `--train-size` and `--test-size`.
const IMAGES_ON_A_CPU: (usize, usize) = (10_240, 2_000);

/// The number of times that each layer is measured. The least counts.
const TIMES: usize = 5;

/// The flags of a call that trains, checked, with the data loaded.
pub(crate) struct Prepared {
    pub(crate) flags: Arguments,
    pub(crate) setup: TrainSetup,
    pub(crate) layers: Layers,
    pub(crate) ways: Vec<Way>,
    pub(crate) notes: Vec<String>,
    /// The devices of this process.
    several: DevicePlan,
    /// One device alone; `None` when each process has one.
    one: Option<DevicePlan>,
    /// The names of all processes' devices, in the process that prints.
    pub(crate) devices: Vec<String>,
}

/// One way to train: a mesh of devices, and the order of work on the mesh.
pub(crate) struct Way {
    /// The name in titles and files.
    pub(crate) name: String,
    /// The short name in tables, which have the number of micro-batches in a column.
    pub(crate) label: String,
    pub(crate) mesh: Mesh,
    /// The kind of schedule. One stage has a naive one.
    pub(crate) kind: Kind,
    /// The number of micro-batches of each batch, on all replicas together. Each has its own statistics in a batch norm, and
    /// gradients are the sum over them.
    pub(crate) shards: usize,
    /// Whether gradients are added along a tree: the bits of any number of replicas.
    pub(crate) by_shards: bool,
    pub(crate) checked: Checked,
    /// The layers of each part of the model.
    pub(crate) cut: Vec<Range<usize>>,
    /// The prediction for a pipeline, in the process that prints.
    pub(crate) predicted: Option<Timeline>,
}

impl Way {
    /// Fails with a [`UsageError`] when there is no such schedule, or the layers cannot be cut so. Without `--cut` the cut is made
    /// as if all layers cost the same.
    fn new(
        mesh: Mesh,
        (kind, micro_batches): (Kind, usize),
        layers: &Layers,
        flags: &Arguments,
    ) -> anyhow::Result<Self> {
        let schedule = kind.schedule(mesh.pipeline, micro_batches).map_err(UsageError::new)?;
        let schedule = schedule.with_replicas(mesh.data);
        // Executors send at once, as if channels held any number of messages.
        let checked = check(schedule, UNBOUNDED)?;
        match mesh.tensor {
            1 => {}
            _ if flags.has_norms() => bail!(UsageError::new("ResNet-18 is split in stages only")),
            parts => layers.check_parts(parts).map_err(UsageError::new)?,
        }
        let parts = mesh.pipeline * kind.chunks();
        let cut = match flags.cut.as_slice() {
            begins if begins.is_empty() || mesh.pipeline == 1 => {
                partition::cut(&vec![1.0; layers.len()], parts)
            }
            begins => partition::cut_by_hand(begins, layers.len()),
        };
        let what = match flags.cut.is_empty() {
            true => layers.name().to_owned(),
            false => format!("--cut {}", flags.cut.iter().join(",")),
        };
        let of_network = |error| UsageError::new(format_args!("{what}: {error}"));
        let cut = cut.map_err(of_network)?;
        if cut.len() != parts {
            bail!(UsageError::new(format_args!(
                "--cut {} makes {} stages, not {parts}: there are {} with {} each",
                flags.cut.iter().join(","),
                cut.len(),
                counted(mesh.pipeline, "device"),
                counted(kind.chunks(), "chunk"),
            )));
        }
        let several_interleaved =
            flags.schedules.iter().filter(|kind| kind.chunks() > 1).count() > 1;
        let label = match (mesh.data, mesh.pipeline, mesh.tensor, kind) {
            (1, 1, 1, _) => "one device".to_owned(),
            (_, 1, 1, _) => format!("mesh {mesh}"),
            (_, 1, _, _) => "tensor parallel".to_owned(),
            (.., Kind::Interleaved { .. }) if !several_interleaved => "interleaved 1F1B".to_owned(),
            _ => kind.to_string(),
        };
        let mut name = if mesh.pipeline > 1 { kind.to_string() } else { label.clone() };
        if mesh.pipeline > 1 && micro_batches == 1 {
            name += ", whole batch";
        } else if mesh.pipeline > 1 || mesh.devices() == 1 && micro_batches > 1 {
            name += &format!(", {micro_batches} micro-batches");
        }
        if [mesh.data, mesh.pipeline, mesh.tensor].into_iter().filter(|&it| it > 1).count() > 1 {
            name += &format!(", mesh {mesh}");
        }
        let shards = mesh.data * micro_batches;
        let by_shards = flags.shards.is_some();
        Ok(Self { name, label, mesh, kind, shards, by_shards, checked, cut, predicted: None })
    }

    /// Whether one device does everything. The table compares all ways with such a way.
    pub(crate) fn is_alone(&self) -> bool {
        self.mesh.devices() == 1
    }

    /// The copies of a batch's activations: one, or two for each rank that shares layers and exchanges activations.
    fn activations(&self) -> usize {
        if self.mesh.tensor > 1 { 2 * self.mesh.tensor } else { 1 }
    }

    /// Whether the model is cut into stages.
    pub(crate) fn has_stages(&self) -> bool {
        self.mesh.pipeline > 1
    }

    /// The name, and the number of devices if there are several.
    pub(crate) fn title(&self) -> String {
        let Self { name, mesh, .. } = self;
        if self.is_alone() { name.clone() } else { format!("{name} on {} devices", mesh.devices()) }
    }

    /// `2 stages, cut by measured cost: layers 0–5 (96 % of the work), 6 (4 %)`
    fn note(&self, how: &str, costs: &[f64]) -> String {
        let part = |part: &Range<usize>| {
            let layers = match part.len() {
                1 => part.start.to_string(),
                _ => format!("{}–{}", part.start, part.end - 1),
            };
            let share = costs[part.clone()].iter().sum::<f64>() / costs.iter().sum::<f64>();
            let of_what = if part.start == 0 { " of the work" } else { "" };
            format!("{layers} ({:.0} %{of_what})", share * 100.0)
        };
        let parts = self.cut.iter().map(part).join(", ");
        let chunks = match self.kind.chunks() {
            1 => String::new(),
            chunks => format!(" of {chunks} chunks"),
        };
        format!("{} stages{chunks}, cut {how}: layers {parts}", self.mesh.pipeline)
    }
}

impl Prepared {
    /// Checks the flags against each other and against the machine, plans the ways, then loads the data and opens files. With
    /// `--draw` prints the drawings, and returns `None`.
    pub(crate) fn new(mut flags: Arguments, launch: &Launch) -> anyhow::Result<Option<Self>> {
        each_once("--schedule", &flags.schedules, Kind::to_string)?;
        if flags.draw {
            draw::draw(flags, launch.speaks())?;
            return Ok(None);
        }
        let of_mesh = flags.mesh.map(|mesh| mesh.devices());
        let (several, world_size) =
            launch.plan(&flags.launch.each, of_mesh.or(flags.launch.devices))?;
        let mesh = flags.mesh.unwrap_or(Mesh::pipeline(world_size));
        flags.check(launch, mesh)?;
        let mut notes: Vec<String> = launch.note(&several).into_iter().collect();
        let part = sizing::limit_images(&mut flags.train, &several, IMAGES_ON_A_CPU);
        notes.extend(sizing::note(None, part));
        let layers = flags.layers(&several)?;
        let one = match launch.processes() {
            Some(_) => None,
            None => Some(flags.launch.each.plan_one_of(&several)?),
        };
        let ways = ways(&flags, mesh, &layers, one.is_some(), &mut notes)?;
        flags.check_files(launch.speaks(), mesh)?;
        let footprint = Footprint {
            // Each run keeps its results, and the threads of its ranks leave their memory to the next run.
            weights: 2 + 4 * ways.len(),
            // Each rank of tensor parallelism has whole activations, and copies in messages.
            activations: ways.iter().map(Way::activations).max().unwrap_or(1),
            batches: several.len() as f64 / world_size as f64,
            ..Footprint::new(flags.size(&several), &several)
        };
        let mut setup = launch.one_first(|first| {
            flags.train.data.follows = !first;
            flags.train.prepare(&flags.reports, mesh.data, mesh.data, &footprint)
        })?;
        notes.extend(setup.data_note.take());
        Ok(Some(Self { flags, setup, layers, ways, notes, several, one, devices: Vec::new() }))
    }

    /// The devices of this process for a way.
    pub(crate) fn devices_of(&self, way: &Way) -> &DevicePlan {
        self.one.as_ref().filter(|_| way.is_alone()).unwrap_or(&self.several)
    }

    /// The number of samples of the largest batch.
    pub(crate) fn batch(&self) -> usize {
        self.setup.options.batch_size.min(self.setup.data.train.len())
    }

    /// Cuts the model by the measured costs of its layers. All processes call this together: the process that prints measures
    /// and predicts, and all processes get its cuts.
    pub(crate) fn cut_by_cost(&mut self, launch: &Launch) -> anyhow::Result<()> {
        self.devices = launch.devices(&self.several)?;
        let measures = launch.speaks() && self.ways.iter().any(Way::has_stages);
        launch.agree(if measures { self.measure() } else { Ok(()) })?;
        let cuts: Vec<_> = self.ways.iter().map(|way| way.cut.clone()).collect();
        let cuts = launch.of_speaker(cuts)?;
        if self.flags.cut.is_empty() {
            self.ways.iter_mut().zip(cuts).for_each(|(way, cut)| way.cut = cut);
        }
        Ok(())
    }

    /// Measures the layers on the first device, for each size of a micro-batch. Then cuts and predicts all pipelines.
    fn measure(&mut self) -> anyhow::Result<()> {
        let (batch, device) = (self.batch(), self.several.slots()[0].open()?);
        let (layers, dtype, tensors) = (&self.layers, self.setup.dtype, device.tensors());
        let rows = |way: &Way| batch.div_ceil(way.shards);
        let constants = self.flags.extras.constants;
        let each = partition::each(layers);
        let mut known = HashMap::<_, Vec<Cost>>::new();
        let mut costs = |units: &[Range<usize>], rows| match known.entry((rows, units.to_vec())) {
            Entry::Occupied(known) => Ok::<Vec<Cost>, anyhow::Error>(known.get().clone()),
            Entry::Vacant(new) => {
                let (setting, mut sgd) =
                    (Setting { sample: &SAMPLE, rows, tries: TIMES }, Sgd::new(constants));
                let measure =
                    || partition::measure(layers, units, setting, dtype, tensors, &mut sgd);
                Ok(new.insert(device.run(measure)?).clone())
            }
        };
        // The smallest micro-batches belong to the schedules that should be fast.
        let smallest = self.ways.iter().filter(|way| way.has_stages()).map(rows).min();
        let totals = costs(&each, smallest.unwrap_or(batch))?;
        let totals: Vec<f64> = totals.iter().map(Cost::total).collect();
        let asked = !self.flags.cut.is_empty();
        for way in self.ways.iter_mut().filter(|way| way.has_stages()) {
            if !asked {
                way.cut = partition::cut(&totals, way.cut.len())?;
                if way.kind.chunks() > 1 {
                    let of_layers = costs(&each, rows(way))?;
                    way.cut = shorten(&way.checked, &of_layers, way.cut.clone())?;
                }
            }
            let note = way.note(if asked { "as asked" } else { "by measured cost" }, &totals);
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
            // One device has no replicas: a sum is an addition for each other replica.
            let mut of_units = costs(&way.cut, rows(way))?;
            of_units.iter_mut().for_each(|it| it.all_reduce *= (way.mesh.data - 1) as f64);
            way.predicted = Some(way.checked.simulate(&of_units, 0.0)?);
        }
        Ok(())
    }
}

/// The ways to train on `mesh`, each after the ways that it is `compared` with. A default way that does not exist here is left
/// out with a note. Fails with a [`UsageError`] for other ways that do not exist.
fn ways(
    flags: &Arguments,
    mesh: Mesh,
    layers: &Layers,
    compared: bool,
    notes: &mut Vec<String>,
) -> anyhow::Result<Vec<Way>> {
    let chosen = flags.mesh.is_some() || !flags.schedules.is_empty();
    let schedules = flags.schedules(mesh).into_iter();
    let mut wanted: Vec<_> = schedules.map(|schedule| (mesh, schedule)).collect();
    if !chosen {
        wanted.push((Mesh::tensor(mesh.devices()), (Kind::Naive, 1)));
    }
    let mut ways = Vec::new();
    for (mesh, schedule @ (kind, _)) in wanted.into_iter().filter(|(mesh, _)| mesh.devices() > 1) {
        let is_needed = chosen || mesh.pipeline > 1 && kind.chunks() == 1;
        match Way::new(mesh, schedule, layers, flags) {
            Ok(way) => ways.push(way),
            Err(error) if is_needed => return Err(error),
            Err(error) if mesh.tensor > 1 => notes.push(format!("no tensor parallelism: {error}")),
            Err(error) => notes.push(format!("no {kind}: {error}")),
        }
    }
    // Without batch norms, a pipeline alone has the numbers of its micro-batches on one device.
    let of_shards = ways.iter().filter(|way| flags.has_norms() || way.has_stages());
    let shards = of_shards.map(|way| way.shards).chain(flags.shards).chain([1]);
    let shards: BTreeSet<usize> = shards.collect();
    for (place, shards) in shards.into_iter().filter(|_| compared).enumerate() {
        ways.insert(place, Way::new(Mesh::pipeline(1), (Kind::Naive, shards), layers, flags)?);
    }
    Ok(ways)
}

//! From flags to what is to be done: everything is checked, the data is loaded, layers are measured.

use std::path::PathBuf;

use anyhow::anyhow;
use candle_core::DType;
use concise_wrapper::launch::Launch;
use concise_wrapper::resnet;
use concise_wrapper::train::Extras;
use model_parallel::mesh::Mesh;
use model_parallel::partition::{self, Cut, LayerCost};
use model_parallel::pipeline::Kind;
use model_parallel::pipeline::predict::Costs;
use single_gpu::cli::{DeviceArguments, ReportArguments, TrainSetup, UsageError};
use single_gpu::data::{CLASSES, PIXELS, SIDE};
use single_gpu::device::DevicePlan;
use single_gpu::report::file;

use super::architecture::Architecture;
use super::{Arguments, ModelKind};
use crate::way::{Planned, Way};

/// On a CPU ResNet-18 is so much narrower, unless `--width` says otherwise.
const WIDTH_ON_A_CPU: usize = 16;

/// On a CPU, so many training and test images are used, unless `--train-size` and `--test-size` say
/// otherwise.
const IMAGES_ON_A_CPU: (u64, u64) = (10_240, 2_000);

/// How often each layer is measured; the least counts.
const TIMES: usize = 5;

/// The shape of an image, without the batch's axis.
pub(crate) const SAMPLE: [usize; 3] = [1, SIDE, SIDE];

/// What layers cost, for each size of micro-batch that there is.
type Measured = Vec<(usize, Vec<LayerCost>)>;

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
    mesh: Mesh,
    /// Whether the mesh was asked for.
    mesh_given: bool,
    /// Each with its number of micro-batches.
    schedules: Vec<(Kind, usize)>,
    schedules_given: bool,
    pub(crate) cut: Option<Cut>,
    /// Why the layers cannot be cut into parts, if they cannot.
    no_parts: Option<String>,
    pub(crate) gantt: Option<PathBuf>,
    pub(crate) notes: Vec<String>,
}

impl Arguments {
    /// Checks the flags against each other and against the machine, then loads the data.
    pub(crate) fn prepare(mut self, launch: &Launch) -> anyhow::Result<Prepared> {
        let asked = self.asked()?;
        let several = launch.place(&mut self.devices, asked)?;
        let devices = self.devices.count;
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
        if let Some(path) = &self.gantt {
            let refused =
                |error| UsageError::new(format_args!("--gantt {}: {error}", path.display()));
            file::check(path).map_err(refused)?;
            let ReportArguments { metrics, plot, trace, timeline } = &self.train.reports;
            if [metrics, plot, trace, timeline].contains(&&self.gantt) {
                let text = format!(
                    "--gantt and another flag both name {}: give each a file of its own",
                    path.display()
                );
                return Err(UsageError::new(text).into());
            }
        }
        let mut notes: Vec<String> = launch.note(&several).into_iter().collect();
        let on_cpu = several.threads_per_device().is_some();
        let width = match self.width {
            Some(width) => width as usize,
            None if on_cpu => WIDTH_ON_A_CPU,
            None => resnet::WIDTH,
        };
        if on_cpu {
            let (training, test) = IMAGES_ON_A_CPU;
            if self.train.train_size.is_none() {
                notes.push(
                    "sized to a CPU: part of the images; --train-size changes that".to_owned(),
                );
            }
            self.train.train_size.get_or_insert(training);
            self.train.test_size.get_or_insert(test);
        }
        let one = match launch.processes() {
            Some(_) => None,
            None => {
                let threads_per_device = several.threads_per_device();
                Some(DeviceArguments { threads_per_device, ..self.devices.each }.plan(1)?)
            }
        };
        let schedules = self.schedules().into_iter();
        let schedules = schedules.map(|kind| (kind, self.micro_batches_of(kind))).collect();
        let hidden = self.hidden_widths();
        let mesh = self.mesh.unwrap_or(Mesh::pipeline(devices));
        let network = Architecture {
            model: self.model,
            widths: [&[PIXELS], hidden.as_slice(), &[CLASSES]].concat(),
            width,
        };
        network.check_cut(self.cut.as_ref(), mesh.pipeline)?;
        Ok(Prepared {
            extras: self.optimiser.extras(),
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

    /// Samples of the largest of so many shards of a batch, of which there may be one only, a smaller one.
    pub(crate) fn rows(&self, shards: usize) -> usize {
        let TrainSetup { options, data, .. } = &self.setup;
        options.batch_size.min(data.train.len()).div_ceil(shards)
    }

    /// What the layers cost on this process's first device, if they are to be cut; the same numbers on all
    /// processes, which call this together.
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
                let costs = device.run(|| {
                    partition::measure(
                        &layers,
                        &SAMPLE,
                        rows,
                        TIMES,
                        self.dtype(),
                        device.tensors(),
                    )
                });
                measured.push((rows, costs?));
            }
        }
        // The cut is by the smallest micro-batches: those of the schedules that are to be quick.
        measured.sort_by_key(|(rows, _)| *rows);
        Ok(measured)
    }

    /// All ways, from what layers cost.
    pub(crate) fn plan(&self, measured: &Measured) -> anyhow::Result<Planned> {
        let mut planned =
            Planned { ways: Vec::new(), cut: Vec::new(), costs: Vec::new(), left_out: None };
        if let Some((_, costs)) = measured.first() {
            let totals: Vec<f64> = costs.iter().map(LayerCost::total).collect();
            planned.cut = match &self.cut {
                Some(cut) => cut.ranges(totals.len())?,
                None => partition::cut(&totals, self.mesh.pipeline)?,
            };
            planned.costs.clone_from(costs);
        } else {
            planned.cut.push(0..self.network.layers()?.len());
        }
        let mut split = self.split(measured, &planned)?;
        let tensor_too = !self.mesh_given && !self.schedules_given && self.mesh.devices() > 1;
        match &self.no_parts {
            _ if !tensor_too => {}
            Some(why) => planned.left_out = Some(format!("no tensor parallelism: {why}")),
            None => split.push(Way::Tensor { mesh: Mesh::tensor(self.mesh.devices()) }),
        }
        // Batch norms see micro-batches, so there is something to compare for each number of these.
        let mut alone = vec![1];
        if self.network.model == ModelKind::Resnet18 {
            alone.extend(split.iter().map(Way::shards));
            alone.sort_unstable();
            alone.dedup();
        }
        let alone = alone.into_iter().filter(|_| self.one.is_some());
        planned.ways = alone.map(|shards| Way::Alone { shards }).collect();
        planned.ways.extend(split);
        Ok(planned)
    }

    /// The ways in which several devices take part.
    fn split(&self, measured: &Measured, planned: &Planned) -> anyhow::Result<Vec<Way>> {
        let mesh = self.mesh;
        if mesh.devices() == 1 {
            return Ok(Vec::new());
        }
        if mesh.tensor > 1 {
            return Ok(vec![Way::Tensor { mesh }]);
        }
        if mesh.pipeline == 1 {
            let whole = Costs { stages: vec![Default::default()], message: 0.0 };
            return Ok(vec![Way::pipeline(Kind::Naive, 1, mesh, &whole)?]);
        }
        let way = |&(kind, micro_batches): &(Kind, usize)| {
            let rows = self.rows(mesh.data * micro_batches);
            let of_rows = measured.iter().find(|(known, _)| *known == rows);
            let (_, costs) = of_rows.ok_or_else(|| anyhow!("no costs of {rows} rows"))?;
            Way::pipeline(kind, micro_batches, mesh, &Costs::of_cut(costs, &planned.cut))
        };
        self.schedules.iter().map(way).collect()
    }

    /// What has to be the same on all ranks, beside what the training loop compares.
    pub(crate) fn to_compare(&self, way: &Way, planned: &Planned) -> Vec<(String, String)> {
        let Self { mesh, .. } = self;
        [
            ("program version", env!("CARGO_PKG_VERSION").to_owned()),
            ("model", self.network.name()),
            ("mesh", mesh.to_string()),
            ("way", way.name()),
            ("cut", format!("{:?}", planned.cut)),
        ]
        .map(|(what, value)| (what.to_owned(), value))
        .to_vec()
    }
}

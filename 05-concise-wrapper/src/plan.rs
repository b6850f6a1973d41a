//! From flags to the runs that are to be made: everything is checked, then the data is loaded and files are opened.

use std::sync::Mutex;

use candle_core::{DType, Device, Module as _, ModuleT as _, Result};
use candle_nn::{FuncT, func_t};
use checkpoints::{Checkpoints, Configuration};
use concise_wrapper::ddp::Reduction;
use concise_wrapper::ddp::bucket::{BucketCaps, buckets};
use concise_wrapper::launch::Launch;
use concise_wrapper::lenet::LeNet;
use concise_wrapper::optimizer::scaled_rate;
use concise_wrapper::resnet::ResNet18;
use concise_wrapper::{Network, Precision, sizing};
use devices::DevicePlan;
use harness::cli::{ReportArguments, UsageError, name_of};
use harness::records::TrainOptions;
use harness::report::file::LazyFile;
use harness::report::number;
use harness::report::summary::Versions;
use params_and_allreduce::Algorithm;
use scratch_data_parallel::check_shards;
use trainer::TrainSetup;
use trainer::memory::{Footprint, NetworkSize};

use crate::arguments::{Arguments, ModelKind, Norm, Scale, TestNorm, WrapperKind};

/// On a CPU, the numbers of training and test images, unless `--train-size` and `--test-size` are given.
const IMAGES_ON_A_CPU: (usize, usize) = (6_144, 2_000);

/// The flags of one call, checked, with the data loaded.
pub(crate) struct Prepared {
    pub(crate) flags: Arguments,
    pub(crate) setup: TrainSetup,
    pub(crate) reduction: Reduction,
    /// The file of `--record`, in the process that writes it.
    pub(crate) recording: Mutex<Option<LazyFile>>,
    /// Remarks about the flags and the times.
    pub(crate) notes: Vec<String>,
    pub(crate) runs: Vec<Run>,
    pub(crate) width: usize,
}

/// A run that is to be made.
pub(crate) struct Run {
    pub(crate) name: &'static str,
    /// The devices of this process, and the number of devices of all processes.
    pub(crate) devices: DevicePlan,
    pub(crate) world_size: usize,
    pub(crate) wrapper: WrapperKind,
    pub(crate) options: TrainOptions,
    pub(crate) norm: Norm,
    /// Whether this run is the subject of `--slow-link`, `--record` and `--checkpoint`, and not a baseline.
    pub(crate) main: bool,
}

impl Prepared {
    /// Checks the flags against each other and against the machine, then loads the data.
    pub(crate) fn new(mut flags: Arguments, launch: &Launch) -> anyhow::Result<Self> {
        // A process that a launcher has started is one of several ranks.
        let alone = flags.wrapper == WrapperKind::Single && launch.processes().is_none();
        let devices = flags.launch.devices.or(alone.then_some(1));
        let (devices, world_size) = launch.plan(&flags.launch.each, devices)?;
        flags.check(launch, world_size)?;
        let precision = flags.train.dtype;
        if precision == DType::BF16 {
            let refused = |error| UsageError::new(format_args!("--precision bf16: {error}"));
            devices.check_bf16().map_err(refused)?;
        }
        let width = sizing::width(flags.width, &devices);
        let network = match flags.model {
            ModelKind::Lenet => NetworkSize::lenet(),
            ModelKind::Resnet18 => NetworkSize::resnet18(width),
        };
        // With the linear rule each device has a whole batch.
        let (shards, here) =
            (if flags.scale == Scale::Linear { 1 } else { world_size }, devices.len() as f64);
        let batches = here / shards as f64;
        let footprint = Footprint { batches, ..Footprint::new(network, &devices) };
        let reduction = reduction(&flags, launch, &devices, world_size)?;
        if let Some(slowness) = flags.reduction.slow_link().filter(|_| world_size > 1) {
            flags.train.check_memory(&footprint, (1, 1), None)?;
            // In reproducible mode, each gradient travels by itself.
            let (caps, algorithm) = match reduction {
                Reduction::Buckets { caps, algorithm, .. } => (caps, Some(algorithm)),
                Reduction::Reproducible { .. } => (BucketCaps { first: 0, others: 0 }, None),
            };
            let sizes = flags.network(width, 0)?.weights().parameter_sizes();
            let bytes = |bucket: Vec<usize>| bucket.into_iter().map(|nth| sizes[nth]).sum();
            let largest = buckets(&sizes, caps).into_iter().map(bytes).max().unwrap_or(0);
            let bytes = (sizes.iter().sum(), largest);
            slowness.check(flags.launch.timeout(), world_size, bytes, algorithm)?;
        }
        let mut notes: Vec<String> = launch.note(&devices).into_iter().collect();
        if flags.model == ModelKind::Resnet18 {
            let narrow = flags.width.is_none() && devices.is_of_slices();
            let part = sizing::limit_images(&mut flags.train, &devices, IMAGES_ON_A_CPU);
            notes.extend(sizing::note(narrow.then_some(width), part));
        }
        let mut recording = None;
        // Only the process that prints reads and writes files.
        if launch.speaks() {
            flags.check_files()?;
            let file = flags.record.as_ref().map(|path| LazyFile::new("--record", path));
            recording = file.transpose().map_err(UsageError::new)?;
        } else {
            flags.reports = ReportArguments::default();
        }
        let mut setup = launch.one_first(|first| {
            let mut train = flags.train.clone();
            // Images are of the type of the weights.
            (train.data.follows, train.dtype) = (!first, Precision::from(precision).weights());
            train.prepare(&flags.reports, world_size, shards, &footprint, None)
        })?;
        setup.dtype = precision;
        notes.extend(setup.data_note.take());
        let resumes = flags.checkpoints.as_ref().is_some_and(|it| it.resume.is_some());
        if let Some(metrics) = setup.outputs.metrics.as_mut().filter(|_| resumes) {
            metrics.resume();
        }
        let runs = runs(&flags, launch, devices, world_size, setup.options)?;
        let recording = Mutex::new(recording);
        Ok(Self { flags, setup, reduction, recording, notes, runs, width })
    }

    pub(crate) fn headline(&self) -> String {
        let mixed = if self.setup.dtype == DType::BF16 { " in bf16" } else { "" };
        self.setup.headline(&format!("{}{mixed}", self.model()))
    }

    fn model(&self) -> String {
        match self.flags.model {
            ModelKind::Lenet => "LeNet".to_owned(),
            ModelKind::Resnet18 => format!("ResNet-18 of width {}", self.width),
        }
    }

    /// The checkpoints of a run, if it has any, with the settings that the training loop does not know.
    pub(crate) fn checkpoints(&self, run: &Run) -> Option<Checkpoints> {
        let checkpoints = self.flags.checkpoints.clone().filter(|_| run.main)?;
        let scale = if self.flags.scale == Scale::Linear { run.world_size } else { 1 };
        Some(Checkpoints { scale, configuration: self.settings(run), ..checkpoints })
    }

    /// The settings of a run that decide its numbers, besides those of the training loop.
    fn settings(&self, run: &Run) -> Configuration {
        let shards = self.flags.reduction.shards;
        let norms = normalised_images(self.flags.model, run.norm, shards.is_some(), run.world_size);
        let shards = shards.map_or("none".to_owned(), |shards| shards.to_string());
        let mut settings = Configuration::default();
        settings.extend([("model", self.model()), ("batch norm", norms), ("shards", shards)]);
        settings
    }

    /// The settings that have to be the same on all ranks. The training loop compares further settings.
    pub(crate) fn to_compare(&self, run: &Run) -> Vec<(String, String)> {
        let mut all = Configuration::default();
        all.extend([
            ("program version", format!("{:?}", Versions::of_this_binary())),
            ("epochs", run.options.epochs.to_string()),
            ("way of adding up gradients", format!("{:?}", self.reduction)),
            ("--test-norm", name_of(&self.flags.test_norm)),
            ("--record", self.flags.record.is_some().to_string()),
        ]);
        all.0.extend(self.settings(run).0);
        all.0
    }
}

/// The runs: one device, then the devices of `--devices`. With checkpoints only the second run is made: a resumed run should
/// not wait for a baseline. The same holds for processes, each of which has one device.
fn runs(
    flags: &Arguments,
    launch: &Launch,
    devices: DevicePlan,
    world_size: usize,
    mut options: TrainOptions,
) -> anyhow::Result<Vec<Run>> {
    let baseline = Run {
        name: "one device",
        devices: flags.launch.each.plan_one_of(&devices)?,
        world_size: 1,
        wrapper: match flags.wrapper {
            WrapperKind::DataParallel if world_size == 1 => WrapperKind::DataParallel,
            // By shard, one device works through the same shards as several.
            WrapperKind::Ddp if flags.reduction.shards.is_some() => WrapperKind::Ddp,
            _ => WrapperKind::Single,
        },
        options,
        norm: Norm::Local,
        main: world_size == 1,
    };
    if world_size == 1 {
        return Ok(vec![baseline]);
    }
    if flags.scale == Scale::Linear {
        let one = options.batch_size;
        options.batch_size *= world_size;
        options.learning_rate = scaled_rate(options.learning_rate, options.batch_size, one);
    }
    let (wrapper, norm) = (flags.wrapper, flags.bn);
    let name = if wrapper == WrapperKind::DataParallel { "data parallel" } else { "ddp" };
    let several = Run { name, devices, world_size, wrapper, options, norm, main: true };
    let compares = launch.processes().is_none() && flags.checkpoints.is_none();
    Ok(if compares { vec![baseline, several] } else { vec![several] })
}

impl Run {
    /// `ddp on 2 devices: batch 2 × 256, lr 0.2`
    pub(crate) fn title(&self) -> String {
        let (TrainOptions { batch_size, learning_rate, .. }, devices) =
            (self.options, self.world_size);
        let several = if devices > 1 { format!(" on {devices} devices") } else { String::new() };
        let batch = match batch_size.is_multiple_of(devices) && devices > 1 {
            true => format!("{devices} × {}", batch_size / devices),
            // The shards of an uneven batch differ by a sample.
            false => batch_size.to_string(),
        };
        format!("{}{several}: batch {batch}, lr {}", self.name, number(learning_rate))
    }
}

impl Arguments {
    /// Builds the network. `width` is the number of planes of ResNet-18's first group.
    pub(crate) fn network(&self, width: usize, seed: u64) -> Result<Network<FuncT<'static>>> {
        let (model, precision) = (self.model, self.train.dtype);
        let network = Network::new(seed, precision, &Device::Cpu, move |vb, norms| {
            if model == ModelKind::Lenet {
                let network = LeNet::new(vb)?;
                return Ok(func_t(move |images, _train| network.forward(images)));
            }
            let network = ResNet18::new(width, norms, vb)?;
            Ok(func_t(move |images, train| network.forward_t(images, train)))
        })?;
        if self.test_norm == TestNorm::Batch {
            network.norms().test_by_batch();
        }
        Ok(network)
    }
}

/// How the gradients of all `devices` are added up. `plan` has the devices of this process.
fn reduction(
    flags: &Arguments,
    launch: &Launch,
    plan: &DevicePlan,
    devices: usize,
) -> anyhow::Result<Reduction> {
    let asked = flags.reduction;
    if let Some(shards) = asked.shards {
        let shards = shards as usize;
        check_shards(shards, devices, flags.train.batch_size)?;
        return Ok(Reduction::Reproducible { shards });
    }
    let (algorithm, usual) = (asked.algorithm(launch, plan)?, BucketCaps::default());
    let others = asked.bucket_bytes().unwrap_or(usual.others);
    let caps = BucketCaps { first: usual.first.min(others), others };
    // Two of a library's sums at a time could come in another order on each GPU.
    let in_turn = flags.bn == Norm::Sync && devices > 1 && algorithm == Algorithm::Native;
    Ok(Reduction::Buckets { caps, algorithm, overlap: !asked.no_overlap && !in_turn })
}

/// The images from which a batch norm computes its statistics, in words. Where these differ, the networks differ.
fn normalised_images(model: ModelKind, norm: Norm, by_shard: bool, world_size: usize) -> String {
    match norm {
        _ if model == ModelKind::Lenet => "none".to_owned(),
        _ if by_shard => "over each shard".to_owned(),
        Norm::Local if world_size > 1 => format!("over each of {world_size} parts of a batch"),
        Norm::Local | Norm::Sync => "over the whole batch".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_number_of_parts_to_normalise_by_is_another_run() {
        let images = |norm, by_shard, devices| {
            normalised_images(ModelKind::Resnet18, norm, by_shard, devices)
        };
        let whole = images(Norm::Local, false, 1);
        for devices in [1, 2, 4] {
            assert_eq!(images(Norm::Sync, false, devices), whole);
        }
        let by_shard = images(Norm::Local, true, 1);
        assert_eq!(images(Norm::Local, true, 4), by_shard);
        let [two, four] = [2, 4].map(|devices| images(Norm::Local, false, devices));
        let all = std::collections::BTreeSet::from([whole, by_shard, two, four]);
        assert_eq!(all.len(), 4, "{all:?}");
    }
}

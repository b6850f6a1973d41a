//! From flags to the runs that are to be made: everything is checked, then the data is loaded and files are opened.

use std::iter;
use std::sync::Mutex;

use candle_core::{DType, Device, Module as _, ModuleT as _};
use candle_nn::{FuncT, func_t};
use checkpoints::{Checkpoints, Configuration};
use concise_wrapper::ddp::Reduction;
use concise_wrapper::ddp::bucket::{BucketCaps, buckets};
use concise_wrapper::launch::Launch;
use concise_wrapper::lenet::LeNet;
use concise_wrapper::optimizer::scaled_rate;
use concise_wrapper::resnet::ResNet18;
use concise_wrapper::weights::Weights;
use concise_wrapper::{Network, sizing};
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
    /// The devices of this process.
    several: DevicePlan,
    /// The number of devices of all processes.
    world_size: usize,
    /// The planes of ResNet-18's first group.
    pub(crate) width: usize,
}

/// A run that is to be made.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) name: &'static str,
    /// The devices of this process.
    pub(crate) devices: DevicePlan,
    /// The number of devices of all processes.
    pub(crate) world_size: usize,
    pub(crate) wrapper: WrapperKind,
    pub(crate) options: TrainOptions,
    pub(crate) norm: Norm,
    /// Whether this run is the subject of `--break`, `--slow-link`, `--record` and `--checkpoint`, and not a baseline.
    pub(crate) main: bool,
}

impl Run {
    /// The images of the batch norms' statistics.
    pub(crate) fn batch_norm(&self) -> &'static str {
        if self.world_size == 1 { "of the batch" } else { self.norm.name() }
    }
}

impl Prepared {
    /// Checks the flags against each other and against the machine, then loads the data.
    pub(crate) fn new(mut flags: Arguments, launch: &Launch) -> anyhow::Result<Self> {
        let (several, world_size) = launch.plan(&flags.launch.each, flags.launch.devices)?;
        flags.check(launch, world_size)?;
        if flags.precision() == DType::BF16 {
            let refused = |error| UsageError::new(format_args!("--precision bf16: {error}"));
            several.check_bf16().map_err(refused)?;
        }
        let width = sizing::width(flags.width, &several);
        let footprint = footprint(&flags, width, &several, world_size);
        let reduction = reduction(&flags, launch, &several, world_size)?;
        if let Some(slowness) = flags.reduction.slow_link().filter(|_| world_size > 1) {
            flags.train.check_memory(&footprint, (1, 1))?;
            let (bytes, algorithm) = sent(flags.network(width, 0)?.weights(), reduction);
            slowness.check(flags.launch.timeout(), world_size, bytes, algorithm)?;
        }
        let mut notes: Vec<String> = launch.note(&several).into_iter().collect();
        if flags.model == ModelKind::Resnet18 {
            let narrow = flags.width.is_none() && several.is_of_slices();
            let part = sizing::limit_images(&mut flags.train, &several, IMAGES_ON_A_CPU);
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
        // With the linear rule each device has a whole batch. `--compare` trains with both rules.
        let whole_batches = flags.scale == Scale::Linear && flags.compare.is_none();
        let shards = if whole_batches { 1 } else { world_size };
        let mut setup = launch.one_first(|first| {
            flags.train.data.follows = !first;
            flags.train.prepare(&flags.reports, world_size, shards, &footprint)
        })?;
        setup.dtype = flags.precision();
        notes.extend(setup.data_note.take());
        if let (Some(Checkpoints { resume: Some(_), .. }), Some(metrics)) =
            (&flags.checkpoints, &mut setup.outputs.metrics)
        {
            metrics.resume();
        }
        let recording = Mutex::new(recording);
        Ok(Self { flags, setup, reduction, recording, notes, several, world_size, width })
    }

    /// The runs: one device, then the devices of `--devices`. With checkpoints only the second run is made: a resumed run
    /// should not wait for a baseline. The same holds for processes, each of which has one device.
    pub(crate) fn runs(&self, launch: &Launch) -> Result<Vec<Run>, UsageError> {
        let flags = &self.flags;
        let one = Run {
            name: "one device",
            devices: flags.launch.each.plan_one_of(&self.several)?,
            world_size: 1,
            wrapper: match flags.wrapper {
                WrapperKind::DataParallel if self.world_size == 1 => WrapperKind::DataParallel,
                // By shard, one device works through the same shards as several.
                WrapperKind::Ddp if flags.reduction.shards.is_some() => WrapperKind::Ddp,
                _ => WrapperKind::Single,
            },
            options: self.setup.options,
            norm: Norm::Local,
            main: self.world_size == 1,
        };
        if let Some(seeds) = flags.compare {
            // Batch and rate, and then batch norm, change by themselves.
            let scales = [Scale::None, Scale::Linear].into_iter();
            let norms = |scale| [Norm::Local, Norm::Sync].map(|norm| self.on_several(scale, norm));
            let of_seed: Vec<Run> = iter::once(one).chain(scales.flat_map(norms)).collect();
            let with_seed = |seed| {
                let of_seed = of_seed.iter().cloned();
                of_seed.map(move |run| Run { options: TrainOptions { seed, ..run.options }, ..run })
            };
            return Ok((1..=seeds.into()).flat_map(with_seed).collect());
        }
        let several = || self.on_several(flags.scale, flags.bn);
        Ok(match launch.processes() {
            _ if self.world_size == 1 => vec![one],
            None if flags.checkpoints.is_none() => vec![one, several()],
            _ => vec![several()],
        })
    }

    /// The run on the devices of `--devices`.
    fn on_several(&self, scale: Scale, norm: Norm) -> Run {
        let (wrapper, mut options) = (self.flags.wrapper, self.setup.options);
        if scale == Scale::Linear {
            let TrainOptions { batch_size, learning_rate, .. } = options;
            options.batch_size *= self.world_size;
            options.learning_rate = scaled_rate(learning_rate, options.batch_size, batch_size);
        }
        let name = if wrapper == WrapperKind::DataParallel { "data parallel" } else { "ddp" };
        let (devices, world_size) = (self.several.clone(), self.world_size);
        Run { name, devices, world_size, wrapper, options, norm, main: true }
    }

    /// `ddp on 2 devices: batch 2 × 256, lr 0.2`
    pub(crate) fn title(&self, run: &Run) -> String {
        let TrainOptions { batch_size, learning_rate, seed, .. } = run.options;
        let mut title = run.name.to_owned();
        if run.world_size > 1 {
            title += &format!(" on {} devices", run.world_size);
        }
        if self.flags.compare.is_some() {
            if run.world_size > 1 {
                title += &format!(", {} batch norm", run.batch_norm());
            }
            title += &format!(", seed {seed}");
        }
        // The shards of an uneven batch differ by a sample.
        let batch = match (run.world_size, batch_size % run.world_size) {
            (1, _) | (_, 1..) => batch_size.to_string(),
            (devices, 0) => format!("{devices} × {}", batch_size / devices),
        };
        title + &format!(": batch {batch}, lr {}", number(learning_rate))
    }

    /// Describes the runs in one line.
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
        Some(Checkpoints { configuration: self.settings(run), ..checkpoints })
    }

    /// The settings of a run that decide its numbers, besides those of the training loop.
    fn settings(&self, run: &Run) -> Configuration {
        let (model, shards) = (self.flags.model, self.flags.reduction.shards);
        let norms = normalised_images(model, run.norm, shards.is_some(), run.world_size);
        let shards = shards.map_or_else(|| "none".to_owned(), |shards| shards.to_string());
        let mut settings = Configuration::default();
        settings.extend([("model", self.model()), ("batch norm", norms), ("shards", shards)]);
        settings
    }

    /// The settings that have to be the same on all ranks. The training loop compares further settings.
    pub(crate) fn to_compare(&self, run: &Run) -> Vec<(String, String)> {
        let mut all = Configuration::default();
        all.extend([
            ("program version", format!("{:?}", Versions::of_this_binary())),
            // A rank of `--break leave-early` changes its epochs later.
            ("epochs", run.options.epochs.to_string()),
            ("way of adding up gradients", format!("{:?}", self.reduction)),
            ("--test-norm", name_of(&self.flags.test_norm)),
            ("--break", format!("{:?}", self.flags.breakage)),
            ("--record", self.flags.record.is_some().to_string()),
        ]);
        [all.0, self.settings(run).0].concat()
    }
}

impl Arguments {
    /// Builds the network. `width` is the number of planes of ResNet-18's first group.
    pub(crate) fn network(
        &self,
        width: usize,
        seed: u64,
    ) -> candle_core::Result<Network<FuncT<'static>>> {
        let (model, precision) = (self.model, self.precision());
        let network = Network::new(seed, precision, &Device::Cpu, move |vb, norms| match model {
            ModelKind::Resnet18 => {
                let network = ResNet18::new(width, norms, vb)?;
                Ok(func_t(move |images, train| network.forward_t(images, train)))
            }
            ModelKind::Lenet => {
                let network = LeNet::new(vb)?;
                Ok(func_t(move |images, _train| network.forward(images)))
            }
        })?;
        if self.test_norm == TestNorm::Batch {
            network.norms().test_by_batch();
        }
        Ok(network)
    }
}

/// The memory of the runs in this process. `plan` has the devices of this process.
fn footprint(flags: &Arguments, width: usize, plan: &DevicePlan, world_size: usize) -> Footprint {
    let network = match flags.model {
        ModelKind::Lenet => NetworkSize::lenet(),
        ModelKind::Resnet18 => NetworkSize::resnet18(width),
    };
    // With the linear rule each device has a whole batch. `--compare` trains with both rules.
    let batches = match flags.scale {
        Scale::None if flags.compare.is_none() => plan.len() as f64 / world_size as f64,
        _ => plan.len() as f64,
    };
    Footprint { batches, ..Footprint::new(network, plan) }
}

/// How the gradients of all `devices` are added up. `plan` has the devices of this process.
fn reduction(
    flags: &Arguments,
    launch: &Launch,
    plan: &DevicePlan,
    devices: usize,
) -> Result<Reduction, UsageError> {
    let asked = flags.reduction;
    if let Some(shards) = asked.shards {
        let shards = shards as usize;
        check_shards(shards, devices, flags.train.batch_size)?;
        return Ok(Reduction::Reproducible { shards });
    }
    let algorithm = asked.algorithm(launch, plan)?;
    let usual = BucketCaps::default();
    let others = asked.bucket_bytes().unwrap_or(usual.others);
    let caps = BucketCaps { first: usual.first.min(others), others };
    // Two of a library's sums at a time could come in another order on each GPU.
    let in_turn = flags.bn == Norm::Sync && devices > 1 && algorithm == Algorithm::Native;
    Ok(Reduction::Buckets { caps, algorithm, overlap: !asked.no_overlap && !in_turn })
}

/// The bytes of all parameters, the most bytes of gradients that are added up at a time, and the algorithm if there is one.
fn sent(weights: &Weights, reduction: Reduction) -> ((usize, usize), Option<Algorithm>) {
    let sizes = weights.parameter_sizes();
    let (caps, algorithm) = match reduction {
        Reduction::Buckets { caps, algorithm, .. } => (caps, Some(algorithm)),
        // Each gradient by itself.
        Reduction::Reproducible { .. } => (BucketCaps { first: 0, others: 0 }, None),
    };
    let bytes = |bucket: Vec<usize>| bucket.into_iter().map(|nth| sizes[nth]).sum();
    let largest = buckets(&sizes, caps).into_iter().map(bytes).max();
    ((sizes.iter().sum(), largest.unwrap_or(0)), algorithm)
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

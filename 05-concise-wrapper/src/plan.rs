//! From flags to the runs that are to be made: everything is checked, then the data is loaded and files are opened.

use std::sync::Mutex;
use std::time::Duration;

use backends::Ranks;
use candle_core::{DType, Device, Module as _, ModuleT as _};
use candle_nn::{FuncT, func_t};
use checkpoints::Checkpoints;
use concise_wrapper::ddp::Reduction;
use concise_wrapper::ddp::bucket::{BucketCaps, buckets};
use concise_wrapper::launch::Launch;
use concise_wrapper::lenet::LeNet;
use concise_wrapper::optimizer::Schedule;
use concise_wrapper::resnet::ResNet18;
use concise_wrapper::slow_link::Slowness;
use concise_wrapper::{Network, Precision, sizing};
use devices::DevicePlan;
use harness::cli::{ReportArguments, UsageError, name_of};
use harness::records::TrainOptions;
use harness::report::file::LazyFile;
use harness::report::files_are_wanted;
use harness::report::summary::Versions;
use params_and_allreduce::Algorithm;
use scratch_data_parallel::breakage::Breakage;
use scratch_data_parallel::check_shards;
use trainer::TrainSetup;

use crate::arguments::{Arguments, ModelKind, Norm, PrecisionKind, Scale, TestNorm, WrapperKind};

/// On a CPU, the numbers of training and test images, unless `--train-size` and `--test-size` are given.
const IMAGES_ON_A_CPU: (u64, u64) = (12_288, 2_000);

/// The flags of one call, checked, with the data loaded.
pub(crate) struct Prepared {
    pub(crate) flags: Arguments,
    pub(crate) setup: TrainSetup,
    pub(crate) precision: Precision,
    pub(crate) reduction: Reduction,
    pub(crate) slowness: Option<Slowness>,
    /// Whether `--record` is given, in any process.
    pub(crate) records: bool,
    /// The file of `--record`, in the process that writes it.
    pub(crate) recording: Option<Mutex<LazyFile>>,
    /// Remarks about the flags and the times.
    pub(crate) notes: Vec<String>,
    /// The devices of this process.
    several: DevicePlan,
    /// The number of devices of all processes.
    world_size: usize,
    processes: bool,
    /// The planes of ResNet-18's first group.
    width: usize,
}

/// A run that is to be made.
pub(crate) struct Planned {
    pub(crate) name: &'static str,
    /// The devices of this process.
    pub(crate) plan: DevicePlan,
    /// The number of devices of all processes.
    pub(crate) world_size: usize,
    pub(crate) wrapper: WrapperKind,
    pub(crate) options: TrainOptions,
    pub(crate) norm: Norm,
    /// Whether this run is the subject of `--break`, `--slow-link`, `--record` and `--checkpoint`, and not a baseline.
    pub(crate) main: bool,
    /// `ddp: train(2, 512, 0.2)`
    pub(crate) title: String,
}

impl Prepared {
    /// Checks the flags against each other and against the machine, then loads the data.
    pub(crate) fn new(mut flags: Arguments, launch: &Launch) -> anyhow::Result<Self> {
        let (several, world_size) = launch.plan(&flags.launch.each, flags.launch.devices)?;
        flags.check(launch, world_size)?;
        let precision = precision(&flags, &several)?;
        // Two sums at a time would come in another order on each GPU.
        let in_turn = flags.bn == Norm::Sync && world_size > 1 && !launch.has_messages();
        let reduction = reduction(&flags, launch, &several, world_size, in_turn)?;
        let records = flags.record.is_some();
        if launch.speaks() {
            flags.checkpoints.as_ref().map_or(Ok(()), Checkpoints::check)?;
        } else {
            // Only the process that prints reads and writes files.
            flags.train.reports = ReportArguments::default();
            flags.record = None;
        }
        let width = sizing::width(flags.width, &several);
        let asked = flags.reduction.unwrap_or_default();
        let slowness = asked.slow_link.map(|speed| Slowness::of_megabytes(speed, Duration::ZERO));
        if let Some(slowness) = slowness.filter(|_| world_size > 1) {
            let sizes = network(flags.model, width, precision, 0)?.weights().parameter_sizes();
            // The bytes that are added up at a time.
            let (gradients, algorithm) = match reduction {
                Reduction::Buckets { caps, algorithm, .. } => {
                    let sum =
                        |bucket: &Vec<usize>| bucket.iter().map(|&nth| sizes[nth]).sum::<usize>();
                    (buckets(&sizes, caps).iter().map(sum).max(), Some(algorithm))
                }
                Reduction::Reproducible { .. } => (sizes.iter().copied().max(), None),
            };
            let bytes = (sizes.iter().sum::<usize>(), gradients.unwrap_or(0));
            slowness.check(flags.launch.timeout(), world_size, bytes, algorithm)?;
        }
        let mut notes: Vec<String> = launch.note(&several).into_iter().collect();
        if in_turn && !asked.no_overlap {
            notes.push(
                "with --bn sync NCCL adds buckets up after the backward pass, as with --no-overlap: two sums at a time would \
                 come in another order on each GPU"
                    .to_owned(),
            );
        }
        if flags.model == ModelKind::Resnet18 {
            let narrow = flags.width.is_none() && several.is_of_slices();
            let part = sizing::limit_images(&mut flags.train, &several, IMAGES_ON_A_CPU);
            notes.extend(sizing::note(narrow.then_some(width), part));
        }
        flags.check_files()?;
        if flags.checkpoints.is_some() {
            files_are_wanted();
        }
        // With the linear rule each device has a whole batch. `--compare` trains with both rules.
        let whole_batches = flags.scale() == Scale::Linear && flags.compare.is_none();
        let shards = if whole_batches { 1 } else { world_size };
        let mut setup = flags.train.prepare_for_shards(world_size, shards)?;
        if flags.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.resume.is_some()) {
            setup.outputs.resume();
        }
        let recording = flags.record.as_deref().map(|path| LazyFile::new("--record", path));
        Ok(Self {
            setup,
            precision,
            reduction,
            slowness,
            records,
            recording: recording.transpose().map_err(UsageError::new)?.map(Mutex::new),
            notes,
            several,
            world_size,
            processes: launch.processes().is_some(),
            width,
            flags,
        })
    }

    /// The runs: one device, then the devices of `--devices`. With checkpoints only the second run is made: a resumed run
    /// should not wait for a baseline. The same holds for processes, each of which has one device.
    pub(crate) fn plan(&self) -> Result<Vec<Planned>, UsageError> {
        let one = || self.on_one_device();
        let several = |scale, norm| self.on_several(scale, norm);
        if let Some(seeds) = self.flags.compare {
            // Batch and rate, and then batch norm, change by themselves.
            let mut runs = Vec::new();
            for seed in 1..=seeds {
                let mut of_seed = vec![one()?];
                for scale in [Scale::None, Scale::Linear] {
                    of_seed.extend([Norm::Local, Norm::Sync].map(|norm| several(scale, norm)));
                }
                for run in &mut of_seed {
                    run.options.seed = seed.into();
                    run.title =
                        format!("seed {seed}, batch norm {}: {}", run.batch_norm(), run.title);
                }
                runs.append(&mut of_seed);
            }
            return Ok(runs);
        }
        if self.world_size == 1 {
            let one = one()?;
            let wrapper = match self.flags.wrapper {
                WrapperKind::DataParallel => WrapperKind::DataParallel,
                WrapperKind::Single | WrapperKind::Ddp => one.wrapper,
            };
            return Ok(vec![Planned { wrapper, main: true, ..one }]);
        }
        let several = several(self.flags.scale(), self.flags.bn);
        let alone = self.processes || self.flags.checkpoints.is_some();
        Ok(if alone { vec![several] } else { vec![one()?, several] })
    }

    /// The baseline.
    fn on_one_device(&self) -> Result<Planned, UsageError> {
        let plan = self.flags.launch.each.plan_one_of(&self.several)?;
        // By shard, one device works through the same shards as several.
        let wrapper = if self.flags.by_shard() { self.flags.wrapper } else { WrapperKind::Single };
        let run = Planned::new("one device", plan, 1, wrapper, self.setup.options, Norm::Local);
        Ok(Planned { main: false, ..run })
    }

    /// The run on the devices of `--devices`.
    fn on_several(&self, scale: Scale, norm: Norm) -> Planned {
        let mut options = self.setup.options;
        if scale == Scale::Linear {
            let reference = options.batch_size;
            options.batch_size *= self.world_size;
            let schedule = Schedule::constant(options.learning_rate);
            options.learning_rate = schedule.scaled(options.batch_size, reference).rate;
        }
        let wrapper = self.flags.wrapper;
        let name = if wrapper == WrapperKind::DataParallel { "data parallel" } else { "ddp" };
        Planned::new(name, self.several.clone(), self.world_size, wrapper, options, norm)
    }

    /// The bug of a run, if it has one on purpose.
    pub(crate) fn breakage(&self, planned: &Planned) -> Option<Breakage> {
        self.flags.breakage.filter(|_| planned.main)
    }

    /// Builds the network of a run.
    pub(crate) fn network(
        &self,
        planned: &Planned,
    ) -> candle_core::Result<Network<FuncT<'static>>> {
        let seed = planned.options.seed;
        let network = network(self.flags.model, self.width, self.precision, seed)?;
        if self.flags.test_norm == TestNorm::Batch {
            network.norms().test_by_batch();
        }
        Ok(network)
    }

    /// Describes the runs in one line.
    pub(crate) fn headline(&self) -> String {
        let mixed = if self.precision.is_mixed() { " in bf16" } else { "" };
        self.setup.headline(&format!("{}{mixed}", self.model_name()))
    }

    fn model_name(&self) -> String {
        match self.flags.model {
            ModelKind::Lenet => "LeNet".to_owned(),
            ModelKind::Resnet18 => format!("ResNet-18 of width {}", self.width),
        }
    }

    /// The checkpoints of a run, if it has any, with the settings that the training loop does not know.
    pub(crate) fn checkpoints(&self, planned: &Planned) -> Option<Checkpoints> {
        let mut checkpoints = self.flags.checkpoints.clone().filter(|_| planned.main)?;
        let none = || "none".to_owned();
        let shards = match self.reduction {
            Reduction::Reproducible { shards } => Some(shards),
            Reduction::Buckets { .. } => None,
        };
        let norms = || normalised_images(planned.norm, shards, planned.world_size);
        let (model, width, norms) = match self.flags.model {
            ModelKind::Lenet => ("LeNet", none(), none()),
            ModelKind::Resnet18 => ("ResNet-18", self.width.to_string(), norms()),
        };
        checkpoints.configuration.extend([
            ("model", model.to_owned()),
            ("width", width),
            ("batch norm", norms),
            ("shards", shards.map_or_else(none, |shards| shards.to_string())),
        ]);
        Some(checkpoints)
    }

    /// The settings that have to be the same on all ranks. The training loop compares further settings.
    pub(crate) fn to_compare(&self, planned: &Planned) -> Vec<(String, String)> {
        [
            ("program version", format!("{:?}", Versions::of_this_binary())),
            ("model", self.model_name()),
            // A rank of `--break leave-early` changes its epochs later.
            ("epochs", planned.options.epochs.to_string()),
            ("way of adding up gradients", format!("{:?}", self.reduction)),
            ("batch norm", format!("{:?}", planned.norm)),
            ("--test-norm", name_of(&self.flags.test_norm)),
            ("--break", format!("{:?}", self.flags.breakage)),
            ("--record", self.records.to_string()),
        ]
        .map(|(what, value)| (what.to_owned(), value))
        .to_vec()
    }
}

impl Planned {
    fn new(
        name: &'static str,
        plan: DevicePlan,
        world_size: usize,
        wrapper: WrapperKind,
        options: TrainOptions,
        norm: Norm,
    ) -> Self {
        let TrainOptions { batch_size, learning_rate, .. } = options;
        let title = format!("{name}: train({world_size}, {batch_size}, {learning_rate})");
        Self { name, plan, world_size, wrapper, options, norm, main: true, title }
    }

    /// The samples of the batch norms' statistics, in words.
    pub(crate) fn batch_norm(&self) -> &'static str {
        match self.norm {
            _ if self.world_size == 1 => "of the batch",
            Norm::Local => "local",
            Norm::Sync => "synchronised",
        }
    }
}

fn network(
    model: ModelKind,
    width: usize,
    precision: Precision,
    seed: u64,
) -> candle_core::Result<Network<FuncT<'static>>> {
    Network::new(seed, precision, &Device::Cpu, move |vb, norms| match model {
        ModelKind::Resnet18 => {
            let network = ResNet18::new(width, norms, vb)?;
            Ok(func_t(move |images, train| network.forward_t(images, train)))
        }
        ModelKind::Lenet => {
            let network = LeNet::new(vb)?;
            Ok(func_t(move |images, _train| network.forward(images)))
        }
    })
}

/// The type that layers compute in.
fn precision(flags: &Arguments, plan: &DevicePlan) -> Result<Precision, UsageError> {
    let precision = Precision::from(match flags.precision {
        Some(PrecisionKind::F32) => DType::F32,
        Some(PrecisionKind::F64) => DType::F64,
        Some(PrecisionKind::Bf16) => DType::BF16,
        None => flags.train.dtype.into(),
    });
    let refused = |error| UsageError::new(format_args!("--precision {precision}: {error}"));
    if precision.is_mixed() {
        plan.check_bf16().map_err(refused)?;
    }
    Ok(precision)
}

/// How the gradients of all `devices` are added up. `plan` has the devices of this process. `in_turn` buckets are added up
/// after the backward pass, as [`synchronise_norms`](concise_wrapper::Ddp::synchronise_norms) says.
fn reduction(
    flags: &Arguments,
    launch: &Launch,
    plan: &DevicePlan,
    devices: usize,
    in_turn: bool,
) -> Result<Reduction, UsageError> {
    let asked = flags.reduction.unwrap_or_default();
    if let Some(shards) = asked.shards {
        let shards = shards as usize;
        check_shards(shards, devices, flags.train.batch_size)?;
        return Ok(Reduction::Reproducible { shards });
    }
    let usual = if launch.has_messages() { Algorithm::Ring } else { Algorithm::Native };
    let algorithm = asked.algorithm.unwrap_or(usual);
    let ranks = if launch.processes().is_some() { Ranks::Processes } else { Ranks::Threads };
    backends::check(algorithm, plan, ranks)
        .map_err(|error| UsageError::new(format_args!("--algorithm {algorithm}: {error}")))?;
    let mut caps = BucketCaps::default();
    if let Some(megabytes) = asked.bucket_mb {
        caps.others = (megabytes * f64::from(1 << 20)) as usize;
        caps.first = caps.first.min(caps.others);
    }
    Ok(Reduction::Buckets { caps, algorithm, overlap: !asked.no_overlap && !in_turn })
}

/// The images from which a batch norm computes its statistics, in words. Where these differ, the networks differ.
fn normalised_images(norm: Norm, shards: Option<usize>, world_size: usize) -> String {
    match norm {
        _ if shards.is_some() => "over each shard".to_owned(),
        Norm::Local if world_size > 1 => format!("over each of {world_size} parts of a batch"),
        Norm::Local | Norm::Sync => "over the whole batch".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_number_of_parts_to_normalise_by_is_another_run() {
        let whole = normalised_images(Norm::Local, None, 1);
        for devices in [1, 2, 4] {
            assert_eq!(normalised_images(Norm::Sync, None, devices), whole);
        }
        let by_shard = normalised_images(Norm::Local, Some(8), 1);
        assert_eq!(normalised_images(Norm::Local, Some(8), 4), by_shard);
        let [two, four] = [2, 4].map(|devices| normalised_images(Norm::Local, None, devices));
        let all = std::collections::BTreeSet::from([whole, by_shard, two, four]);
        assert_eq!(all.len(), 4, "{all:?}");
    }
}

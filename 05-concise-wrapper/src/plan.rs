//! From flags to the runs that are to be made: everything is checked, then the data is loaded and files are opened.

use std::time::Duration;

use backends::Ranks;
use candle_core::{DType, Device, ModuleT, Tensor};
use checkpoints::Checkpoints;
use concise_wrapper::ddp::Reduction;
use concise_wrapper::ddp::bucket::BucketCaps;
use concise_wrapper::launch::Launch;
use concise_wrapper::lenet::LeNet;
use concise_wrapper::optimizer::Schedule;
use concise_wrapper::recording::Recording;
use concise_wrapper::resnet::{self, ResNet18};
use concise_wrapper::slow_link::Slowness;
use concise_wrapper::{Network, Precision, sizing};
use devices::DevicePlan;
use harness::cli::{ReportArguments, UsageError, name_of};
use harness::records::TrainOptions;
use harness::report::file::{self, LazyFile};
use harness::report::summary::Versions;
use harness::report::{counted, files_are_wanted};
use params_and_allreduce::Algorithm;
use scratch_data_parallel::breakage::Breakage;
use scratch_data_parallel::check_shards;
use trainer::TrainSetup;

use crate::arguments::{Arguments, ModelKind, Norm, PrecisionKind, Scale, TestNorm, WrapperKind};
use crate::checks;

/// On a CPU, the numbers of training and test images, unless `--train-size` and `--test-size` are given.
const IMAGES_ON_A_CPU: (u64, u64) = (12_288, 2_000);

/// The flags of one call, checked, with the data loaded.
pub(crate) struct Prepared {
    pub(crate) flags: Arguments,
    pub(crate) setup: TrainSetup,
    pub(crate) precision: Precision,
    pub(crate) reduction: Reduction,
    pub(crate) slowness: Option<Slowness>,
    /// The file of `--record`, in the process that writes it.
    pub(crate) recording: Option<Recording<LazyFile>>,
    /// The devices of this process.
    several: DevicePlan,
    /// The number of devices of all processes.
    world_size: usize,
    processes: bool,
    /// The planes of ResNet-18's first group.
    width: usize,
    /// Remarks about the flags and the times.
    pub(crate) notes: Vec<String>,
    /// Whether `--record` is given, in any process.
    pub(crate) records: bool,
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
        checks::check(&flags, launch, world_size)?;
        let precision = precision(&flags, &several)?;
        let reduction = reduction(&flags, launch, &several, world_size)?;
        let records = flags.record.is_some();
        if launch.speaks() {
            flags.checkpoints.as_ref().map_or(Ok(()), Checkpoints::check)?;
        } else {
            // Only the process that prints reads and writes files.
            flags.train.reports = ReportArguments::default();
            flags.record = None;
        }
        let width = sizing::width(flags.width, &several);
        let slow_link = flags.reduction.and_then(|reduction| reduction.slow_link);
        let slowness = slow_link.map(|megabytes| Slowness::of_megabytes(megabytes, Duration::ZERO));
        if let Some(slowness) = slowness.filter(|_| world_size > 1) {
            let sizes = network(flags.model, width, precision, 0)?.weights().parameter_sizes();
            checks::check_link(slowness, flags.launch.timeout(), &sizes, world_size, reduction)?;
        }
        let mut notes: Vec<String> = launch.note(&several).into_iter().collect();
        if in_turn(&flags, launch, world_size) {
            notes.push(
                "with --bn sync NCCL adds buckets up after the backward pass, as with --no-overlap: two sums at a time would \
                 come in another order on each GPU"
                    .to_owned(),
            );
        }
        if flags.model == ModelKind::Resnet18 {
            let narrow = flags.width.is_none() && several.is_of_slices();
            let part = sizing::limit_images(&mut flags.train, &several, IMAGES_ON_A_CPU);
            notes.extend(sized_to_a_cpu(narrow.then_some(width), part));
        }
        checks::check_files(&flags)?;
        if flags.checkpoints.is_some() {
            files_are_wanted();
        }
        // With the linear rule each device has a whole batch. `--compare` trains with both rules.
        let whole_batches = scale(&flags) == Scale::Linear && flags.compare.is_none();
        let shards = if whole_batches { 1 } else { world_size };
        let mut setup = flags.train.prepare_for_shards(world_size, shards)?;
        if flags.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.resume.is_some()) {
            setup.outputs.resume();
        }
        let open = |path: &std::path::PathBuf| {
            let refused = |error| UsageError::new(file::flag_error("--record", path, &error));
            let file = LazyFile::new(path).map_err(refused)?;
            Ok::<_, UsageError>(Recording::new(format_args!("--record {}", path.display()), file))
        };
        let recording = flags.record.as_ref().map(open).transpose()?;
        Ok(Self {
            setup,
            precision,
            reduction,
            slowness,
            recording,
            several,
            world_size,
            processes: launch.processes().is_some(),
            width,
            notes,
            records,
            flags,
        })
    }

    /// The runs: one device, then the devices of `--devices`. With checkpoints only the second run is made: a resumed run
    /// should not wait for a baseline. The same holds for processes, each of which has one device.
    pub(crate) fn plan(&self) -> Result<Vec<Planned>, UsageError> {
        if let Some(seeds) = self.flags.compare {
            let of_seeds: Result<Vec<_>, _> = (1..=seeds).map(|seed| self.compared(seed)).collect();
            return Ok(of_seeds?.into_iter().flatten().collect());
        }
        let one = self.on_one_device()?;
        if self.world_size == 1 {
            let wrapper = match self.flags.wrapper {
                WrapperKind::DataParallel => WrapperKind::DataParallel,
                WrapperKind::Single | WrapperKind::Ddp => one.wrapper,
            };
            return Ok(vec![Planned { wrapper, main: true, ..one }]);
        }
        let several = self.on_several(scale(&self.flags), self.flags.bn);
        let alone = self.processes || self.flags.checkpoints.is_some();
        Ok(if alone { vec![several] } else { vec![one, several] })
    }

    /// The runs of `--compare` with one seed. Batch and rate, and then batch norm, change by themselves.
    fn compared(&self, seed: u32) -> Result<Vec<Planned>, UsageError> {
        let mut runs = vec![self.on_one_device()?];
        for scale in [Scale::None, Scale::Linear] {
            runs.extend([Norm::Local, Norm::Sync].map(|norm| self.on_several(scale, norm)));
        }
        for run in &mut runs {
            run.options.seed = seed.into();
            run.title = format!("seed {seed}, batch norm {}: {}", run.batch_norm(), run.title);
        }
        Ok(runs)
    }

    /// The baseline.
    fn on_one_device(&self) -> Result<Planned, UsageError> {
        let plan = self.flags.launch.each.plan_one_of(&self.several)?;
        // By shard, one device works through the same shards as several.
        let by_shard = matches!(self.reduction, Reduction::Reproducible { .. });
        let wrapper = if by_shard { self.flags.wrapper } else { WrapperKind::Single };
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
    pub(crate) fn network(&self, planned: &Planned) -> candle_core::Result<Network<Net>> {
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
        let (model, width, norms) = match self.flags.model {
            ModelKind::Lenet => ("LeNet", none(), none()),
            ModelKind::Resnet18 => {
                let norms = normalised_images(planned.norm, shards, planned.world_size);
                ("ResNet-18", self.width.to_string(), norms)
            }
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

/// Either network.
pub(crate) enum Net {
    ResNet18(ResNet18),
    LeNet(LeNet),
}

impl ModuleT for Net {
    fn forward_t(&self, images: &Tensor, train: bool) -> candle_core::Result<Tensor> {
        match self {
            Self::ResNet18(network) => network.forward_t(images, train),
            Self::LeNet(network) => network.forward_t(images, train),
        }
    }
}

fn network(
    model: ModelKind,
    width: usize,
    precision: Precision,
    seed: u64,
) -> candle_core::Result<Network<Net>> {
    Network::new(seed, precision, &Device::Cpu, move |vb, norms| match model {
        ModelKind::Resnet18 => ResNet18::new(width, norms, vb).map(Net::ResNet18),
        ModelKind::Lenet => LeNet::new(vb).map(Net::LeNet),
    })
}

/// Batch and rate of the run on several devices.
fn scale(flags: &Arguments) -> Scale {
    let by_shard = flags.reduction.is_some_and(|reduction| reduction.shards.is_some());
    flags.scale.unwrap_or(if by_shard { Scale::None } else { Scale::Linear })
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
    precision.check(plan).map_err(refused)?;
    Ok(precision)
}

/// How the gradients of all `devices` are added up. `plan` has the devices of this process.
fn reduction(
    flags: &Arguments,
    launch: &Launch,
    plan: &DevicePlan,
    devices: usize,
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
    let overlap = !asked.no_overlap && !in_turn(flags, launch, devices);
    Ok(Reduction::Buckets { caps, algorithm, overlap })
}

/// Whether buckets are added up after the backward pass without `--no-overlap`, as
/// [`synchronise_norms`](concise_wrapper::Ddp::synchronise_norms) says.
fn in_turn(flags: &Arguments, launch: &Launch, devices: usize) -> bool {
    let asked = flags.reduction.is_some_and(|reduction| reduction.no_overlap);
    !asked && flags.bn == Norm::Sync && devices > 1 && !launch.has_messages()
}

/// The images from which a batch norm computes its statistics, in words. Where these differ, the networks differ.
fn normalised_images(norm: Norm, shards: Option<usize>, world_size: usize) -> String {
    match norm {
        _ if shards.is_some() => "over each shard".to_owned(),
        Norm::Local if world_size > 1 => format!("over each of {world_size} parts of a batch"),
        Norm::Local | Norm::Sync => "over the whole batch".to_owned(),
    }
}

/// A note about defaults that are smaller on a CPU: the planes of ResNet-18's first group, and part of the images.
fn sized_to_a_cpu(width: Option<usize>, part: bool) -> Option<String> {
    let planes = width.map(|width| {
        format!("{} in the first group in place of {}", counted(width, "plane"), resnet::WIDTH)
    });
    Some(match (planes, part) {
        (Some(planes), true) => format!(
            "sized to a CPU: {planes}, and part of the images; --width and --train-size change that"
        ),
        (Some(planes), false) => format!("sized to a CPU: {planes}; --width changes that"),
        (None, true) => "sized to a CPU: part of the images; --train-size changes that".to_owned(),
        (None, false) => return None,
    })
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

    #[test]
    fn only_what_nobody_asked_for_is_noted() {
        assert_eq!(sized_to_a_cpu(None, false), None);
        let told = |width, part| sized_to_a_cpu(width, part).expect("a note");
        assert!(told(Some(16), true).ends_with("--width and --train-size change that"));
        let planes =
            "sized to a CPU: 16 planes in the first group in place of 64; --width changes that";
        assert_eq!(told(Some(16), false), planes);
        let images = "sized to a CPU: part of the images; --train-size changes that";
        assert_eq!(told(None, true), images);
    }
}

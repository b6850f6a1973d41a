//! The flags, and the checks that need more than one of them.

use std::fmt;

use clap::{Args, Parser, ValueEnum};
use concise_wrapper::ddp::Reduction;
use concise_wrapper::ddp::bucket::BucketCaps;
use concise_wrapper::optimiser::{Momentum, Schedule};
use concise_wrapper::resnet;
use concise_wrapper::train::Extras;
use params_and_allreduce::Algorithm;
use scratch_data_parallel::breakage::Breakage;
use single_gpu::cli::{DeviceArguments, SeveralDevices, TrainArguments, TrainSetup, UsageError};
use single_gpu::device::DevicePlan;
use single_gpu::train::TrainOptions;

/// On a CPU the network is so much narrower, unless `--width` says otherwise: an epoch takes seconds.
const WIDTH_ON_A_CPU: usize = 16;

/// On a CPU, so many training and test images are used, unless `--train-size` and `--test-size` say
/// otherwise.
const IMAGES_ON_A_CPU: (u64, u64) = (12_288, 2_000);

/// Train a network behind a wrapper: on one device, then on K with K times the batch and K times the rate.
///
/// Without a GPU a device is a slice of the CPU, and the defaults are sized to it: a narrower ResNet-18, on
/// part of the images.
#[derive(Debug, Parser)]
#[command(version, disable_help_flag = true)]
#[command(mut_arg("lr", |rate| rate.default_value("0.1").help("Learning rate of one device")))]
#[command(mut_arg("batch_size", |size| size.help("Samples in a batch of one device")))]
#[command(mut_arg("epochs", |epochs| epochs.default_value("5")))]
pub(crate) struct Arguments {
    #[command(flatten)]
    devices: SeveralDevices,

    /// What is trained
    #[arg(long, value_enum, default_value_t = ModelKind::Resnet18)]
    model: ModelKind,

    /// Planes of ResNet-18's first group [default: 64; 16 on a CPU]
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u32).range(1..=1024))]
    width: Option<u32>,

    /// How the model is put on the K devices
    #[arg(long, value_enum, default_value_t = WrapperKind::Ddp)]
    wrapper: WrapperKind,

    /// Whose images batch norm's statistics are of
    #[arg(long, value_enum, default_value_t = Norm::Local)]
    bn: Norm,

    /// Batch and rate of the K devices, beside those of one
    #[arg(long, value_enum)]
    scale: Option<Scale>,

    #[command(flatten)]
    reduction: ReductionArguments,

    #[command(flatten)]
    optimiser: OptimiserArguments,

    #[command(flatten)]
    train: TrainArguments,

    /// Get it wrong on purpose, on the K devices under DDP
    #[arg(long = "break", value_enum, value_name = "BUG", conflicts_with = "shards")]
    breakage: Option<Breakage>,

    /// Print help
    #[arg(short, long, action = clap::ArgAction::HelpLong)]
    help: Option<bool>,
}

/// Flags that say how gradients travel.
#[derive(Args, Clone, Debug)]
struct ReductionArguments {
    /// Give the same bits on any number of devices: cut every batch into S shards, whatever K is
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=1024))]
    shards: Option<u32>,

    /// How DDP's buckets are added up across devices [default: ring]
    #[arg(long, value_enum)]
    algorithm: Option<Algorithm>,

    /// The most that a bucket of gradients holds, in MB; the first holds at most 1 [default: 25]
    #[arg(long, value_name = "MB", value_parser = parse_megabytes)]
    bucket_mb: Option<f64>,

    /// Send the buckets after the backward pass, not during it
    #[arg(long)]
    no_overlap: bool,
}

/// Flags of the optimiser.
#[derive(Args, Clone, Debug)]
struct OptimiserArguments {
    /// The share of the velocity that is kept from step to step
    #[arg(long, default_value_t = 0.0, value_name = "SHARE", value_parser = parse_momentum,
          allow_negative_numbers = true)]
    momentum: f64,

    /// How strongly weights are pulled towards 0
    #[arg(long, default_value_t = 0.0, value_name = "DECAY", value_parser = parse_decay,
          allow_negative_numbers = true)]
    weight_decay: f64,

    /// Steps over which the learning rate rises to its full height
    #[arg(long, default_value_t = 0, value_name = "STEPS")]
    warm_up: u32,
}

/// The networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelKind {
    /// 18 layers with batch norm
    Resnet18,
    /// Stage 1's network
    Lenet,
}

/// How a model is put on several devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WrapperKind {
    /// No wrapper: one device only
    Single,
    /// One line: scatter, replicas, gather
    DataParallel,
    /// A rank for each device; gradients travel during the backward pass
    Ddp,
}

/// Whose statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Norm {
    /// Each device's own
    Local,
    /// All devices' together
    Sync,
}

/// What becomes of batch and rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scale {
    /// K times the batch and K times the rate: each device is as busy as one alone
    Linear,
    /// The same batch and the same rate, shared by the devices
    None,
}

/// The flags of one call, checked, with the data loaded.
pub(crate) struct Prepared {
    pub(crate) setup: TrainSetup,
    pub(crate) model: ModelKind,
    pub(crate) width: usize,
    pub(crate) norm: Norm,
    pub(crate) extras: Extras,
    wrapper: WrapperKind,
    several: DevicePlan,
    device: DeviceArguments,
    scale: Scale,
    reduction: Reduction,
    breakage: Option<Breakage>,
    notes: Vec<String>,
}

/// A run that is to be made.
pub(crate) struct Planned {
    pub(crate) name: &'static str,
    pub(crate) plan: DevicePlan,
    pub(crate) wrapper: WrapperKind,
    pub(crate) options: TrainOptions,
    pub(crate) reduction: Reduction,
    pub(crate) norm: Norm,
    pub(crate) breakage: Option<Breakage>,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TrainOptions { batch_size, learning_rate, .. } = self.options;
        write!(f, "{}: train({}, {batch_size}, {learning_rate})", self.name, self.plan.len(),)
    }
}

impl Arguments {
    /// Checks the flags against each other and against the machine, then loads the data.
    pub(crate) fn prepare(self) -> anyhow::Result<Prepared> {
        let several = self.devices.plan()?;
        self.check()?;
        let reduction = self.reduction(&several)?;
        let Self {
            devices, model, width, wrapper, bn, scale, optimiser, mut train, breakage, ..
        } = self;
        let mut notes: Vec<String> = several.note().map(str::to_owned).into_iter().collect();
        let on_cpu = several.threads_per_device().is_some();
        let width = match width {
            Some(width) => width as usize,
            None if on_cpu => WIDTH_ON_A_CPU,
            None => resnet::WIDTH,
        };
        if on_cpu && model == ModelKind::Resnet18 {
            let (training, test) = IMAGES_ON_A_CPU;
            let part = train.train_size.is_none();
            train.train_size.get_or_insert(training);
            train.test_size.get_or_insert(test);
            if part || width < resnet::WIDTH {
                notes.push(format!(
                    "sized to a CPU: {width} planes in the first group in place of {}, and part of the \
                     images; --width and --train-size change that",
                    resnet::WIDTH
                ));
            }
        }
        let scale = scale.unwrap_or(match reduction {
            Reduction::Reproducible { .. } => Scale::None,
            Reduction::Buckets { .. } => Scale::Linear,
        });
        let constants =
            Momentum { momentum: optimiser.momentum, weight_decay: optimiser.weight_decay };
        let extras = Extras { constants, warm_up: optimiser.warm_up as usize };
        let setup = train.prepare(devices.count)?;
        let device = devices.each;
        Ok(Prepared {
            setup,
            model,
            width,
            norm: bn,
            extras,
            wrapper,
            several,
            device,
            scale,
            reduction,
            breakage,
            notes,
        })
    }

    fn check(&self) -> Result<(), UsageError> {
        let Self { wrapper, bn, scale, reduction, model, width, .. } = self;
        let refuse = |text: &str| Err(UsageError::new(text));
        if *wrapper != WrapperKind::Ddp {
            if reduction.shards.is_some() {
                return refuse("--shards adds up by shard, which only --wrapper ddp does");
            }
            if reduction.algorithm.is_some()
                || reduction.bucket_mb.is_some()
                || reduction.no_overlap
            {
                return refuse(
                    "--algorithm, --bucket-mb and --no-overlap are about DDP's buckets: use them with \
                     --wrapper ddp",
                );
            }
        }
        if *wrapper != WrapperKind::Ddp && self.breakage.is_some() {
            return refuse("--break breaks --wrapper ddp");
        }
        if *wrapper == WrapperKind::Single && self.devices.count > 1 {
            return refuse("--wrapper single trains on one device: add --devices 1");
        }
        if reduction.shards.is_some() {
            if *bn == Norm::Sync {
                return refuse(
                    "--bn sync makes the statistics of all devices' images, whose bits depend on how \
                     many there are; --shards uses each shard's own, so leave one of the two out",
                );
            }
            if *scale == Some(Scale::Linear) {
                return refuse(
                    "--scale linear changes the batch with the number of devices; --shards is for the \
                     same batch on any number, so leave one of the two out",
                );
            }
        }
        if *model == ModelKind::Lenet && (width.is_some() || *bn == Norm::Sync) {
            return refuse("--width and --bn are about ResNet-18: LeNet has neither");
        }
        Ok(())
    }

    fn reduction(&self, plan: &DevicePlan) -> Result<Reduction, UsageError> {
        let ReductionArguments { shards, algorithm, bucket_mb, no_overlap } = self.reduction;
        if let Some(shards) = shards {
            let shards = shards as usize;
            if algorithm.is_some() || bucket_mb.is_some() || no_overlap {
                return Err(UsageError::new(
                    "--shards adds up along a tree of its own: leave out --algorithm, --bucket-mb and \
                     --no-overlap",
                ));
            }
            if shards < plan.len() {
                return Err(UsageError::new(format_args!(
                    "{shards} shards cannot be shared out over {} devices: each needs at least one",
                    plan.len()
                )));
            }
            if self.train.batch_size < shards as u64 {
                return Err(UsageError::new(format_args!(
                    "batch size {} cannot be cut into {shards} shards: each needs at least one sample",
                    self.train.batch_size
                )));
            }
            return Ok(Reduction::Reproducible { shards });
        }
        let algorithm = algorithm.unwrap_or(Algorithm::Ring);
        algorithm
            .check(plan)
            .map_err(|error| UsageError::new(format_args!("--algorithm {algorithm}: {error}")))?;
        let mut caps = BucketCaps::default();
        if let Some(megabytes) = bucket_mb {
            caps.others = (megabytes * f64::from(1 << 20)) as usize;
            caps.first = caps.first.min(caps.others);
        }
        Ok(Reduction::Buckets { caps, algorithm, overlap: !no_overlap })
    }
}

impl Prepared {
    /// What is about to be trained, in one line.
    pub(crate) fn headline(&self) -> String {
        let model = match self.model {
            ModelKind::Lenet => "LeNet".to_owned(),
            ModelKind::Resnet18 => format!("ResNet-18 of width {}", self.width),
        };
        self.setup.headline(&model)
    }

    /// What to know before believing the numbers.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The runs: one device, then the devices asked for.
    pub(crate) fn plan(&self) -> anyhow::Result<Vec<Planned>> {
        let threads = self.several.threads_per_device();
        let alone = DeviceArguments { threads_per_device: threads, ..self.device }.plan(1)?;
        let (wrapper, reduction) = (self.wrapper, self.reduction);
        let by_shard = matches!(reduction, Reduction::Reproducible { .. });
        let one = Planned {
            name: "one device",
            plan: alone,
            // By shard, one device works through the same shards.
            wrapper: if by_shard { wrapper } else { WrapperKind::Single },
            options: self.setup.options,
            reduction,
            norm: Norm::Local,
            breakage: None,
        };
        let devices = self.several.len();
        if devices == 1 {
            let wrapper = if wrapper == WrapperKind::DataParallel { wrapper } else { one.wrapper };
            return Ok(vec![Planned { wrapper, ..one }]);
        }
        let mut options = self.setup.options;
        if self.scale == Scale::Linear {
            let reference = options.batch_size;
            options.batch_size *= devices;
            let schedule = Schedule::constant(options.learning_rate);
            options.learning_rate = schedule.scaled(options.batch_size, reference).rate;
        }
        let name = match wrapper {
            WrapperKind::DataParallel => "data parallel",
            WrapperKind::Ddp | WrapperKind::Single => "ddp",
        };
        let plan = self.several.clone();
        let (norm, breakage) = (self.norm, self.breakage);
        let several = Planned { name, plan, wrapper, options, reduction, norm, breakage };
        Ok(vec![one, several])
    }
}

fn parse_megabytes(argument: &str) -> Result<f64, String> {
    match argument.parse::<f64>() {
        Ok(megabytes) if megabytes > 0.0 && megabytes <= 1e6 => Ok(megabytes),
        _ => Err("a bucket holds a positive number of megabytes such as 25".to_owned()),
    }
}

fn parse_momentum(argument: &str) -> Result<f64, String> {
    match argument.parse::<f64>() {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(share),
        _ => Err("momentum is a share from 0 to below 1, such as 0.9".to_owned()),
    }
}

fn parse_decay(argument: &str) -> Result<f64, String> {
    match argument.parse::<f64>() {
        Ok(decay) if decay.is_finite() && decay >= 0.0 => Ok(decay),
        _ => Err("weight decay is a number from 0, such as 0.0005".to_owned()),
    }
}

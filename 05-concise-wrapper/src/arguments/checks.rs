//! Flags that make no sense together.

use backends::Ranks;
use candle_core::DType;
use checkpoints::MOST_EPOCHS;
use concise_wrapper::Precision;
use concise_wrapper::ddp::Reduction;
use concise_wrapper::ddp::bucket::BucketCaps;
use concise_wrapper::launch::Launch;
use devices::DevicePlan;
use harness::cli::UsageError;
use params_and_allreduce::Algorithm;
use scratch_data_parallel::breakage::Breakage;
use scratch_data_parallel::check_shards;

use super::{
    Arguments, ModelKind, Norm, PrecisionKind, ReductionArguments, Scale, TestNorm, WrapperKind,
};

impl Arguments {
    /// Refuses flags that contradict each other.
    pub(super) fn check(&self, launch: &Launch, devices: usize) -> Result<(), UsageError> {
        let Self { wrapper, bn, test_norm, scale, reduction, model, width, .. } = self;
        let refuse = |text: &str| Err(UsageError::new(text));
        let processes = launch.processes().is_some();
        if processes && (self.compare.is_some() || *wrapper != WrapperKind::Ddp) {
            return refuse(
                "each of these processes is one rank of --wrapper ddp: started by itself, this program has other \
                 wrappers, and --compare",
            );
        }
        if !launch.has_messages() {
            if reduction.shards.is_some() || reduction.slow_link.is_some() {
                return refuse(
                    "--shards and --slow-link need messages between two ranks, and NCCL, which alone connects these \
                     processes, has none: start them with mpirun",
                );
            }
            if self.breakage == Some(Breakage::LoneBroadcast) {
                return refuse(
                    "--break lone-broadcast: NCCL, which alone connects these processes, does not notice that ranks do \
                     different things, and what comes of it is undefined; start them with mpirun",
                );
            }
            if reduction.algorithm.is_some_and(|asked| asked != Algorithm::Native) {
                return refuse(
                    "NCCL alone connects these processes: leave --algorithm out, or start them with mpirun",
                );
            }
        }
        if *wrapper != WrapperKind::Ddp {
            if reduction.shards.is_some() {
                return refuse("--shards adds up by shard, which only --wrapper ddp does");
            }
            if reduction.algorithm.is_some()
                || reduction.bucket_mb.is_some()
                || reduction.no_overlap
                || reduction.slow_link.is_some()
            {
                return refuse(
                    "--algorithm, --bucket-mb, --no-overlap and --slow-link are about DDP's buckets: use them \
                     with --wrapper ddp",
                );
            }
        }
        if *wrapper != WrapperKind::Ddp && self.breakage.is_some() {
            return refuse("--break breaks --wrapper ddp");
        }
        if self.breakage.is_some() && devices == 1 {
            return refuse(
                "--break is about what devices do together: use it with --devices 2 or more",
            );
        }
        if *wrapper == WrapperKind::DataParallel && self.train.reports.timeline.is_some() {
            return refuse(
                "--timeline draws a step as ranks make it, and --wrapper data-parallel has its loop on none: use it with \
                 --wrapper ddp",
            );
        }
        if *wrapper == WrapperKind::Single && devices > 1 {
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
        if self.checkpoints.is_some() && self.train.epochs as usize > MOST_EPOCHS {
            return Err(UsageError::new(format_args!(
                "--checkpoint: a checkpoint has room for what is reported of {MOST_EPOCHS} epochs, and --epochs is {}",
                self.train.epochs
            )));
        }
        if self.compare.is_some() && (devices == 1 || *model == ModelKind::Lenet) {
            return refuse("--compare is about ResNet-18's batch norm on several devices");
        }
        let about_norms = *bn == Norm::Sync || *test_norm == TestNorm::Batch;
        if *model == ModelKind::Lenet && (width.is_some() || about_norms) {
            return refuse(
                "--width, --bn and --test-norm are about ResNet-18: LeNet has no such thing",
            );
        }
        Ok(())
    }

    /// What layers are to compute in.
    pub(super) fn precision(&self, plan: &DevicePlan) -> Result<Precision, UsageError> {
        let precision = Precision::from(match self.precision {
            Some(PrecisionKind::F32) => DType::F32,
            Some(PrecisionKind::F64) => DType::F64,
            Some(PrecisionKind::Bf16) => DType::BF16,
            None => self.train.dtype.into(),
        });
        let refused = |error| UsageError::new(format_args!("--precision {precision}: {error}"));
        precision.check(plan).map_err(refused)?;
        Ok(precision)
    }

    /// How the gradients of all devices are to be added up, of which those of `plan` are this process's.
    pub(super) fn reduction(
        &self,
        launch: &Launch,
        plan: &DevicePlan,
        devices: usize,
    ) -> Result<Reduction, UsageError> {
        let ReductionArguments { shards, algorithm, bucket_mb, no_overlap, slow_link } =
            self.reduction;
        if let Some(shards) = shards {
            let shards = shards as usize;
            if algorithm.is_some() || bucket_mb.is_some() || no_overlap {
                return Err(UsageError::new(
                    "--shards adds up along a tree of its own: leave out --algorithm, --bucket-mb and \
                     --no-overlap",
                ));
            }
            check_shards(shards, devices, self.train.batch_size)?;
            return Ok(Reduction::Reproducible { shards });
        }
        let native = algorithm.filter(|asked| !Algorithm::OURS.contains(asked));
        if let (Some(native), Some(_)) = (native, slow_link) {
            return Err(UsageError::new(format_args!(
                "--slow-link slows the course's own messages down, and --algorithm {native} sends none: take one-shot, \
                 naive, tree or ring"
            )));
        }
        let usual = if launch.has_messages() { Algorithm::Ring } else { Algorithm::Native };
        let algorithm = algorithm.unwrap_or(usual);
        let ranks = if launch.processes().is_some() { Ranks::Processes } else { Ranks::Threads };
        backends::check(algorithm, plan, ranks)
            .map_err(|error| UsageError::new(format_args!("--algorithm {algorithm}: {error}")))?;
        let mut caps = BucketCaps::default();
        if let Some(megabytes) = bucket_mb {
            caps.others = (megabytes * f64::from(1 << 20)) as usize;
            caps.first = caps.first.min(caps.others);
        }
        // As `Ddp::synchronise_norms` has it.
        let in_turn = self.bn == Norm::Sync && devices > 1 && !launch.has_messages();
        Ok(Reduction::Buckets { caps, algorithm, overlap: !no_overlap && !in_turn })
    }
}

//! Refuses flags that do not fit together, their numbers, or the devices: all that clap cannot say.

use std::time::Duration;

use concise_wrapper::checkpoint::MOST_EPOCHS;
use concise_wrapper::ddp::Reduction;
use concise_wrapper::ddp::bucket::buckets;
use concise_wrapper::launch::Launch;
use concise_wrapper::slow_link::Slowness;
use harness::cli::UsageError;
use harness::report::{files_are_wanted, thousands};
use params_and_allreduce::Algorithm;
use scratch_data_parallel::breakage::Breakage;

use crate::arguments::{Arguments, ModelKind, Norm, Scale, TestNorm, WrapperKind};

impl Arguments {
    /// Refuses flags that contradict each other, or that so many devices do not have.
    pub(crate) fn check(&self, launch: &Launch, devices: usize) -> Result<(), UsageError> {
        let Self { wrapper, model, bn, scale, breakage, compare, .. } = *self;
        let reduction = self.reduction.unwrap_or_default();
        let (by_shard, slow) = (reduction.shards.is_some(), reduction.slow_link.is_some());
        let (processes, nccl_alone) = (launch.processes().is_some(), !launch.has_messages());
        let ddp = wrapper == WrapperKind::Ddp;
        let about_norms =
            self.width.is_some() || bn == Norm::Sync || self.test_norm == TestNorm::Batch;
        let refusals = [
            (
                processes && (compare.is_some() || !ddp),
                "each of these processes is one rank of --wrapper ddp: started by itself, this program has other wrappers, \
                 and --compare",
            ),
            (
                processes && slow,
                "--slow-link needs one clock for all ranks, and these ranks are processes: start this program by itself, \
                 with --devices",
            ),
            (
                nccl_alone && by_shard,
                "--shards needs messages between two ranks, and NCCL, which alone connects these processes, has none: start \
                 them with mpirun",
            ),
            (
                nccl_alone && breakage == Some(Breakage::LoneBroadcast),
                "--break lone-broadcast: NCCL, which alone connects these processes, does not notice that ranks do \
                 different things, and what comes of it is undefined; start them with mpirun",
            ),
            (
                nccl_alone && reduction.algorithm.is_some_and(|asked| asked != Algorithm::Native),
                "NCCL alone connects these processes: leave --algorithm out, or start them with mpirun",
            ),
            (
                !ddp && self.reduction.is_some(),
                "--shards, --algorithm, --bucket-mb, --no-overlap and --slow-link are about DDP's all-reduce: use them with \
                 --wrapper ddp",
            ),
            (
                slow && reduction.algorithm == Some(Algorithm::Native),
                "--slow-link slows the course's own messages down, and --algorithm native sends none: take one-shot, naive, \
                 tree or ring",
            ),
            (!ddp && breakage.is_some(), "--break breaks --wrapper ddp"),
            (
                breakage.is_some() && devices == 1,
                "--break is about what devices do together: use it with --devices 2 or more",
            ),
            (
                wrapper == WrapperKind::DataParallel && self.train.reports.timeline.is_some(),
                "--timeline draws a step as ranks make it, and --wrapper data-parallel has its loop on none: use it with \
                 --wrapper ddp",
            ),
            (
                wrapper == WrapperKind::Single && devices > 1,
                "--wrapper single trains on one device: add --devices 1",
            ),
            (
                by_shard && bn == Norm::Sync,
                "--bn sync makes the statistics of all devices' images, whose bits depend on how many there are; --shards \
                 uses each shard's own, so leave one of the two out",
            ),
            (
                by_shard && scale == Some(Scale::Linear),
                "--scale linear changes the batch with the number of devices; --shards is for the same batch on any number, \
                 so leave one of the two out",
            ),
            (
                compare.is_some() && (devices == 1 || model == ModelKind::Lenet),
                "--compare is about ResNet-18's batch norm on several devices",
            ),
            (
                model == ModelKind::Lenet && about_norms,
                "--width, --bn and --test-norm are about ResNet-18: LeNet has no such thing",
            ),
        ];
        if let Some((_, why)) = refusals.into_iter().find(|(refused, _)| *refused) {
            return Err(UsageError::new(why));
        }
        if self.checkpoints.checkpoint.is_some() && self.train.epochs as usize > MOST_EPOCHS {
            return Err(UsageError::new(format_args!(
                "--checkpoint: a checkpoint has room for what is reported of {MOST_EPOCHS} epochs, and --epochs is {}",
                self.train.epochs
            )));
        }
        Ok(())
    }

    /// Refuses two flags that name one file, and a recording that a resumed run would overwrite. Nothing is opened or
    /// changed.
    pub(crate) fn check_files(&self) -> Result<(), UsageError> {
        let further = [("--record", self.record.as_deref())];
        self.train.reports.check(&further)?;
        let Some(folder) = &self.checkpoints.checkpoint else { return Ok(()) };
        self.train.reports.check_folder(&further, "--checkpoint", folder)?;
        if let Some(path) = self.record.as_deref().filter(|_| self.checkpoints.resume.is_some())
            && path.metadata().is_ok_and(|found| found.is_file() && found.len() > 0)
        {
            return Err(UsageError::new(format_args!(
                "--record {}: this is there already, perhaps from before the run was cut: with --resume, take a new file",
                path.display()
            )));
        }
        files_are_wanted();
        Ok(())
    }
}

/// Refuses a link so slow that a rank would give up waiting: while rank 0 sends the weights, or while gradients are added
/// up. `sizes` are the bytes of each parameter.
///
/// A run over such a link would fail later, with an error that names a rank without a fault.
pub(crate) fn check_link(
    slowness: Slowness,
    timeout: Duration,
    sizes: &[usize],
    ranks: usize,
    reduction: Reduction,
) -> Result<(), UsageError> {
    let weights = sizes.iter().sum();
    // The rounds of a tree. In each of them, rank 0 sends a copy.
    let rounds = ranks.next_power_of_two().ilog2() as usize;
    // The most bytes that are added up at a time, and the bytes that travel while a rank waits for one message.
    let (gradients, waiting) = match reduction {
        Reduction::Buckets { caps, algorithm, .. } => {
            let bytes = |bucket: &Vec<usize>| bucket.iter().map(|&nth| sizes[nth]).sum();
            let largest: usize = buckets(sizes, caps).iter().map(bytes).max().unwrap_or(0);
            match algorithm {
                Algorithm::Ring => (largest, largest.div_ceil(ranks)),
                // Up the tree, and down again, but for the last round.
                Algorithm::Tree => (largest, (2 * rounds).max(1).saturating_sub(1) * largest),
                // All messages that one rank receives or sends.
                _ => (largest, (ranks - 1) * largest),
            }
        }
        // Tensor by tensor. Rank 0 sends a copy of each sum to every other rank.
        Reduction::Reproducible { .. } => {
            let largest = sizes.iter().copied().max().unwrap_or(0);
            (largest, (ranks - 1) * largest)
        }
    };
    let too_long = |bytes| {
        let takes = slowness.takes(bytes);
        (takes > timeout).then_some(takes.as_secs_f64())
    };
    let what = if let Some(seconds) = too_long(rounds * weights) {
        let weights = thousands(weights);
        format!("rank 0 takes {seconds:.1} s to send the weights, {weights} bytes, to the others")
    } else if let Some(seconds) = too_long(waiting) {
        let gradients = thousands(gradients);
        format!(
            "a rank hears nothing for {seconds:.1} s while {gradients} bytes of gradients are added up"
        )
    } else {
        return Ok(());
    };
    Err(UsageError::new(format_args!(
        "--slow-link {}: {what} over such a link, and --timeout ends a wait after {} s: take a faster one, or wait longer",
        slowness.megabytes(),
        timeout.as_secs_f64(),
    )))
}

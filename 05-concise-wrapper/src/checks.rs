//! Refuses flags that do not fit together, the number of devices, or a time limit: all that clap cannot say.

use std::time::Duration;

use checkpoints::{Checkpoints, MOST_EPOCHS};
use concise_wrapper::ddp::Reduction;
use concise_wrapper::ddp::bucket::buckets;
use concise_wrapper::launch::Launch;
use concise_wrapper::slow_link::Slowness;
use harness::cli::UsageError;
use harness::report::thousands;
use params_and_allreduce::Algorithm;
use scratch_data_parallel::breakage::Breakage;

use crate::arguments::{Arguments, ModelKind, Norm, Scale, TestNorm, WrapperKind};

/// Refuses flags that contradict each other, or that make no sense on so many devices.
pub(crate) fn check(flags: &Arguments, launch: &Launch, devices: usize) -> Result<(), UsageError> {
    let Arguments { wrapper, model, bn, breakage, compare, .. } = *flags;
    let reduction = flags.reduction.unwrap_or_default();
    let (by_shard, slow) = (reduction.shards.is_some(), reduction.slow_link.is_some());
    let ddp = wrapper == WrapperKind::Ddp;
    let other_algorithm = reduction.algorithm.is_some_and(|it| it != Algorithm::Native);
    let needs_messages = by_shard || other_algorithm || breakage == Some(Breakage::LoneBroadcast);
    let about_norms =
        flags.width.is_some() || bn == Norm::Sync || flags.test_norm == TestNorm::Batch;
    let refusals = [
        (
            launch.processes().is_some() && (compare.is_some() || slow || !ddp),
            "each of these processes is one rank of --wrapper ddp: for --compare, --slow-link and other wrappers, start this \
             program by itself",
        ),
        (
            !launch.has_messages() && needs_messages,
            "NCCL alone connects these processes, without messages between two ranks: leave --shards, --algorithm and --break \
             lone-broadcast out, or start them with mpirun",
        ),
        (
            !ddp && flags.reduction.is_some(),
            "--shards, --algorithm, --bucket-mb, --no-overlap and --slow-link are about DDP's all-reduce: use them with \
             --wrapper ddp",
        ),
        (
            breakage.is_some() && (!ddp || devices == 1),
            "--break breaks --wrapper ddp on several devices: use it with --devices 2 or more",
        ),
        (
            wrapper == WrapperKind::DataParallel && flags.train.reports.timeline.is_some(),
            "--timeline draws a step as ranks make it, and --wrapper data-parallel has its loop on none: use it with \
             --wrapper ddp",
        ),
        (
            wrapper == WrapperKind::Single && devices > 1,
            "--wrapper single trains on one device: add --devices 1",
        ),
        (
            by_shard && (bn == Norm::Sync || flags.scale == Some(Scale::Linear)),
            "--shards gives the same bits on any number of devices, and --bn sync and --scale linear depend on that number: \
             leave one of the two out",
        ),
        (
            slow && reduction.algorithm == Some(Algorithm::Native),
            "--slow-link slows the course's own messages down, and --algorithm native sends none: take one-shot, naive, tree \
             or ring",
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
    let epochs = flags.train.epochs;
    if flags.checkpoints.is_some() && epochs as usize > MOST_EPOCHS {
        return Err(UsageError::new(format_args!(
            "--checkpoint: a checkpoint has room for what is reported of {MOST_EPOCHS} epochs, and --epochs is {epochs}"
        )));
    }
    Ok(())
}

/// Refuses two flags that name one file, and a recording that a resumed run would overwrite. Nothing is opened or changed.
pub(crate) fn check_files(flags: &Arguments) -> Result<(), UsageError> {
    let further = [("--record", flags.record.as_deref())];
    flags.train.reports.check(&further)?;
    let Some(Checkpoints { folder, resume, .. }) = &flags.checkpoints else { return Ok(()) };
    flags.train.reports.check_folder(&further, "--checkpoint", folder)?;
    match flags.record.as_deref().map(|path| (path, path.metadata())) {
        Some((path, Ok(found))) if resume.is_some() && found.is_file() && found.len() > 0 => {
            Err(UsageError::new(format_args!(
                "--record {}: this is there already, perhaps from before the run was cut: with --resume, take a new file",
                path.display()
            )))
        }
        _ => Ok(()),
    }
}

/// Refuses a link so slow that a rank would give up waiting: while rank 0 sends the weights, or while gradients are added
/// up. `sizes` are the bytes of each parameter. The error of such a run would name a rank without a fault.
pub(crate) fn check_link(
    slowness: Slowness,
    timeout: Duration,
    sizes: &[usize],
    ranks: usize,
    reduction: Reduction,
) -> Result<(), UsageError> {
    let weights: usize = sizes.iter().sum();
    // The rounds of a tree. In each of them, rank 0 sends a copy.
    let rounds = ranks.next_power_of_two().ilog2() as usize;
    // The bytes that are added up at a time.
    let gradients = match reduction {
        Reduction::Buckets { caps, .. } => {
            let buckets = buckets(sizes, caps).into_iter();
            buckets.map(|bucket| bucket.into_iter().map(|nth| sizes[nth]).sum()).max()
        }
        Reduction::Reproducible { .. } => sizes.iter().copied().max(),
    };
    let gradients: usize = gradients.unwrap_or(0);
    // The bytes that travel while a rank waits for one message.
    let waiting = match reduction {
        Reduction::Buckets { algorithm: Algorithm::Ring, .. } => gradients.div_ceil(ranks),
        // Up the tree, and down again, but for the last round.
        Reduction::Buckets { algorithm: Algorithm::Tree, .. } => (2 * rounds - 1) * gradients,
        // All messages that one rank receives or sends.
        _ => (ranks - 1) * gradients,
    };
    let too_long = |bytes: usize, what: &dyn Fn(f64) -> String| {
        let takes = slowness.takes(bytes);
        (takes > timeout).then(|| what(takes.as_secs_f64()))
    };
    let by_weights = too_long(rounds * weights, &|seconds| {
        let weights = thousands(weights);
        format!("rank 0 takes {seconds:.1} s to send the weights, {weights} bytes, to the others")
    });
    let by_gradients = || {
        too_long(waiting, &|seconds| {
            let bytes = thousands(gradients);
            format!(
                "a rank hears nothing for {seconds:.1} s while {bytes} bytes of gradients are added up"
            )
        })
    };
    by_weights.or_else(by_gradients).map_or(Ok(()), |what| {
        Err(UsageError::new(format_args!(
            "--slow-link {}: {what} over such a link, and --timeout ends a wait after {} s: take a faster one, or wait \
             longer",
            slowness.megabytes(),
            timeout.as_secs_f64(),
        )))
    })
}

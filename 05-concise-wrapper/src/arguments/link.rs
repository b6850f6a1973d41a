//! A link that is slowed down so far that ranks would give up waiting.

use std::time::Duration;

use candle_core::Device;
use concise_wrapper::ddp::Reduction;
use concise_wrapper::ddp::bucket::buckets;
use concise_wrapper::lenet::LeNet;
use concise_wrapper::resnet::ResNet18;
use concise_wrapper::slow_link::Slowness;
use concise_wrapper::{Network, Precision};
use harness::cli::UsageError;
use harness::report::thousands;
use params_and_allreduce::Algorithm;

use super::ModelKind;

/// Refuses a link over which a rank does not hear from another for longer than it waits: while rank 0 sends several
/// copies of the weights, or while gradients are added up. `sizes` are the parameters' in bytes.
///
/// Found out later, it would be told of a rank that does all it can.
pub(super) fn check_link(
    slowness: Slowness,
    timeout: Duration,
    sizes: &[usize],
    ranks: usize,
    reduction: Reduction,
) -> Result<(), UsageError> {
    let weights = sizes.iter().sum();
    // Along a tree: every copy that is there is sent on in the next round.
    let copies = ranks.next_power_of_two().ilog2() as usize;
    let (gradients, silence) = longest_silence(sizes, ranks, reduction);
    let too_long = |bytes| {
        let takes = slowness.takes(bytes);
        (takes > timeout).then_some(takes.as_secs_f64())
    };
    let what = if let Some(seconds) = too_long(copies * weights) {
        let weights = thousands(weights);
        format!("rank 0 takes {seconds:.1} s to send the weights, {weights} bytes, to the others")
    } else if let Some(seconds) = too_long(silence) {
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

/// The most bytes of gradients that are added up at a time; and how many travel, one after the other, while a rank waits
/// for the next message of another.
fn longest_silence(sizes: &[usize], ranks: usize, reduction: Reduction) -> (usize, usize) {
    let others = ranks.saturating_sub(1);
    match reduction {
        Reduction::Buckets { caps, algorithm, .. } => {
            let buckets = buckets(sizes, caps).into_iter();
            let bytes = |bucket: Vec<usize>| bucket.into_iter().map(|nth| sizes[nth]).sum();
            let largest = buckets.map(bytes).max().unwrap_or(0);
            let silence = match algorithm {
                // Up the tree, and nearly down again.
                Algorithm::Tree => (2 * ranks.next_power_of_two().ilog2() as usize).max(1) - 1,
                Algorithm::Ring => return (largest, largest.div_ceil(ranks)),
                // All that one rank receives, or sends.
                _ => others,
            };
            (largest, silence * largest)
        }
        // Tensor by tensor, and of each sum rank 0 sends a copy to everyone.
        Reduction::Reproducible { .. } => {
            let largest = sizes.iter().copied().max().unwrap_or(0);
            (largest, others * largest)
        }
    }
}

/// How many bytes each parameter of a model is.
pub(super) fn sizes(
    model: ModelKind,
    width: usize,
    precision: Precision,
) -> candle_core::Result<Vec<usize>> {
    let seed = 0;
    Ok(match model {
        ModelKind::Resnet18 => {
            let network = Network::new(seed, precision, &Device::Cpu, move |vb, norms| {
                ResNet18::new(width, norms, vb)
            });
            network?.weights().parameter_sizes()
        }
        ModelKind::Lenet => {
            let network = Network::new(seed, precision, &Device::Cpu, |vb, _| LeNet::new(vb));
            network?.weights().parameter_sizes()
        }
    })
}

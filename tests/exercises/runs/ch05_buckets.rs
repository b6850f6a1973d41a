//! The learner's buckets in stage 5's DDP, over a slow link.

use concise_wrapper::ddp::bucket::{BucketCaps, buckets};

use super::ddp::{CAPS, REDUCTION, Recording, network, train_slowly};
use super::prelude::*;
pub use crate::checks::ch05_buckets::Answer;

/// Shows a step with each side's buckets. Fails when the answer panics.
pub fn run(answer: Answer) -> Run {
    let sizes = network(&Device::Cpu)?.weights().parameter_sizes();
    let (yours, ours) = (answer(&sizes, CAPS), buckets(&sizes, CAPS));
    let recording = Recording::begin("ch05_buckets")?;
    let mut trained = Vec::new();
    for (name, buckets) in [("yours", &yours), ("ours", &ours)] {
        let training = train_slowly(name, |network, comm| {
            Ddp::new(network, comm, REDUCTION)?.with_buckets(buckets)
        });
        let mut training = match training.map_err(|error| error.to_string()) {
            Err(error) if error.contains(" buckets: ") => {
                // Without the lines of a backtrace.
                let error = error.lines().next().unwrap_or_default();
                return Ok(paragraph(format_args!("DDP refuses your buckets: {error}."))?);
            }
            training => training?,
        };
        let last: usize = buckets.last().into_iter().flatten().map(|&it| sizes[it]).sum();
        let first = full_after(buckets, sizes.len());
        training.more =
            vec![buckets.len().to_string(), first.to_string(), (last / 1000).to_string()];
        trained.push(training);
    }
    recording.show(trained, &["buckets", "full\nafter", "last,\nkB"])?;
    let (first, all) = (full_after(&yours, sizes.len()), sizes.len());
    let same = if yours == ours { "Your buckets are ours. " } else { "" };
    Ok(paragraph(format_args!(
        "{same}The first of your {} is full after {first} of {all} gradients. Until then no bucket travels, and the last bucket is \
         never hidden.",
        counted(yours.len(), "bucket"),
    ))?)
}

/// The number of gradients after which the first bucket is full. The last parameter's gradient comes first.
fn full_after(buckets: &[Vec<usize>], parameters: usize) -> usize {
    buckets.iter().take(1).flatten().min().map_or(0, |first| parameters - first)
}

//! The learner's buckets in stage 5's DDP, over a slow link.

use std::error::Error;

use concise_wrapper::Ddp;
use concise_wrapper::ddp::bucket::{BucketCaps, buckets};
use harness::records::TrainOptions;
use harness::report::paragraph;

use super::ddp::{CAPS, LINK, REDUCTION, Recording, network, train_on};

/// The sizes of the parameters' gradients in bytes, and the caps; the buckets.
pub type Answer = fn(&[usize], BucketCaps) -> Vec<Vec<usize>>;

const OPTIONS: TrainOptions =
    TrainOptions { epochs: 1, batch_size: 128, learning_rate: 0.1, seed: 1 };

/// Shows a step with each side's buckets. Fails when the answer panics.
pub fn run(answer: Answer) -> Result<(), Box<dyn Error>> {
    let sizes = network(&candle_core::Device::Cpu)?.weights().parameter_sizes();
    let (yours, ours) = (answer(&sizes, CAPS), buckets(&sizes, CAPS));
    let recording = Recording::begin("ch05_buckets")?;
    let train = |run: &str, buckets: &[Vec<usize>]| {
        train_on(2, run, Some(LINK), (1280, &OPTIONS), |network, comm| {
            Ddp::new(network, comm, REDUCTION)?.with_buckets(buckets)
        })
    };
    let with_yours = match train("yours", &yours) {
        Err(error) if error.to_string().contains(" buckets: ") => {
            // Without the lines of a backtrace.
            let error = error.to_string().lines().next().unwrap_or_default().to_owned();
            return Ok(paragraph(format_args!("DDP refuses your buckets: {error}."))?);
        }
        trained => trained?.0,
    };
    let with_ours = train("ours", &ours)?.0;
    let cells = [&yours, &ours].map(|buckets| {
        let of_last: usize = buckets.last().into_iter().flatten().map(|&it| sizes[it]).sum();
        let [first, last] = [full_after(&buckets[..1], sizes.len()), of_last / 1000];
        vec![buckets.len().to_string(), first.to_string(), format!("{last} kB")]
    });
    let names = ["buckets", "full after", "last"];
    recording.show("one step", &[&with_yours, &with_ours], (&names, &cells))?;
    let first = full_after(&yours[..1], sizes.len());
    Ok(paragraph(match yours == ours {
        true => "Your buckets are ours.".to_owned(),
        false => format!(
            "The first of your {} buckets is full after {first} of {} gradients. Until then no bucket travels, and the last \
             bucket is never hidden.",
            yours.len(),
            sizes.len()
        ),
    })?)
}

/// The number of gradients after which these buckets are full. The last parameter's gradient comes first.
fn full_after(buckets: &[Vec<usize>], parameters: usize) -> usize {
    buckets.iter().flatten().min().map_or(0, |first| parameters - first)
}

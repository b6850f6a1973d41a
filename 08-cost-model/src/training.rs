//! The prediction for n devices, from the compute time of a device, the cost of a link, and the times of the buckets.

use serde::{Deserialize, Serialize};

use crate::all_reduce::Way;
use crate::compute::Line;
use crate::hosts::Hosts;
use crate::model::Bucket;
use crate::step::{Predicted, Reduction, predict};

/// Bytes of the loss and the counts that ranks sum in a step: four numbers in f64.
const LOSS: f64 = 32.0;

/// How gradients come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// The algorithm.
    pub way: Way,
    /// Whether buckets travel during the backward pass.
    pub overlap: bool,
}

/// A step of `ranks` devices, each with `samples` samples of the batch.
///
/// `line` is the compute time of a device, and `buckets` are its gradients. The loss is summed in one shot as in stage 5,
/// or along a tree where that is quicker.
pub fn step(
    line: &Line,
    buckets: &[Bucket],
    hosts: &Hosts,
    ranks: usize,
    samples: f64,
    sum: Sum,
) -> Predicted {
    let compute = line.of(samples);
    if ranks < 2 {
        return Predicted::alone(&compute);
    }
    let seconds = |way: Way| way.cost(ranks, LOSS, hosts).seconds;
    let loss = seconds(Way::OneShot).min(seconds(Way::Tree));
    let reduction = Reduction {
        buckets,
        overlap: sum.overlap,
        copy: hosts.inside.handling,
        cost: &|bytes| sum.way.cost(ranks, bytes, hosts),
        loss,
    };
    predict(&compute, &reduction)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Link;

    const LINE: Line = Line { fixed: 1.0, sample: 0.5, forward: 0.25, update: 0.25 };
    const BUCKETS: [Bucket; 1] = [Bucket { ready: 1.0, bytes: 1000.0 }];
    const RING: Sum = Sum { way: Way::Ring, overlap: true };

    #[test]
    fn alone_it_is_the_line() {
        let hosts = Hosts::one(Link::new(1.0, 1.0));
        assert_eq!(step(&LINE, &BUCKETS, &hosts, 1, 8.0, RING).seconds, 5.25);
    }

    #[test]
    fn together_it_is_the_line_the_gradients_and_the_loss() {
        let hosts = Hosts::one(Link { latency: 0.5, wire: 0.01, handling: 0.0 });
        let step = step(&LINE, &BUCKETS, &hosts, 2, 4.0, RING);
        assert_eq!(step.compute, 3.25);
        // Two steps of half the bytes, and one message of the loss.
        assert_eq!(step.communication, 2.0 * (0.5 + 5.0));
        assert!((step.seconds - (3.25 + 11.0 + 0.5 + 0.32)).abs() < 1e-12, "{step:?}");
    }

    #[test]
    fn a_gradient_is_copied_to_its_bucket_as_fast_as_a_message_is_dealt_with() {
        let hosts = Hosts::one(Link { latency: 0.5, wire: 0.01, handling: 0.002 });
        let step = step(&LINE, &BUCKETS, &hosts, 2, 4.0, RING);
        let (gradients, loss) = (2.0 * (0.5 + 5.0 + 1.0), 0.5 + 32.0 * 0.012);
        assert_eq!(step.communication, gradients);
        assert!((step.seconds - (3.25 + 2.0 + gradients + loss)).abs() < 1e-12, "{step:?}");
    }
}

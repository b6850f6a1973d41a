//! A step on one of k devices: its parts, and the communication that overlap hides.
//!
//! ```text
//! without overlap   forward  backward ────────  all-reduce ───────────  update
//! with overlap      forward  backward ────────                    wait  update
//!                              all-reduce  0 ──  1 ──────  2 ─────────
//! ```
//!
//! With overlap, the all-reduce of a bucket begins when the bucket is full and the all-reduce before it has ended. The
//! device's own additions and copies fall into its backward pass, and make the pass longer.

use serde::{Deserialize, Serialize};

use crate::all_reduce::Cost;
use crate::model::Bucket;

/// The compute time of a device in a step with its share of the batch, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Compute {
    /// The forward pass.
    pub forward: f64,
    /// The backward pass.
    pub backward: f64,
    /// The update of the weights.
    pub update: f64,
}

impl Compute {
    /// The whole compute time.
    pub fn seconds(&self) -> f64 {
        self.forward + self.backward + self.update
    }
}

/// The buckets of a step, and the cost of their all-reduces.
pub struct Reduction<'a> {
    /// The buckets, in their order.
    pub buckets: &'a [Bucket],
    /// Whether their all-reduces run during the backward pass.
    pub overlap: bool,
    /// Seconds to copy a byte of a gradient to its place in its bucket.
    pub copy: f64,
    /// The cost of an all-reduce of a number of bytes.
    pub cost: &'a dyn Fn(f64) -> Cost,
    /// Seconds until all ranks know the loss of the whole batch.
    pub loss: f64,
}

/// The predicted time of a step, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// The step.
    pub seconds: f64,
    /// The compute time of the device alone.
    pub compute: f64,
    /// The sum of the times of all all-reduces.
    pub communication: f64,
}

impl Predicted {
    /// The communication that overlap does not hide: the time that the step would save with an instant link.
    pub fn exposed(&self) -> f64 {
        self.seconds - self.compute
    }

    /// A device by itself.
    pub fn alone(compute: &Compute) -> Self {
        let seconds = compute.seconds();
        Self { seconds, compute: seconds, communication: 0.0 }
    }
}

/// A step of several devices.
// ANCHOR: predict
pub fn predict(compute: &Compute, reduction: &Reduction<'_>) -> Predicted {
    let Reduction { buckets, overlap, copy, cost, loss } = *reduction;
    let Compute { forward, backward, update } = *compute;
    let copies: f64 = buckets.iter().map(|bucket| bucket.bytes * copy).sum();
    // The delay of the backward pass by copies and additions; the time until which the link is busy; the sum of all
    // all-reduces. Without overlap only copies delay the pass, because the all-reduces contain the additions.
    let (mut late, mut free, mut communication) = (0.0, 0.0, 0.0);
    for bucket in buckets {
        late += bucket.bytes * copy;
        let full = match overlap {
            true => forward + backward * bucket.ready + late,
            false => forward + backward + copies,
        };
        let Cost { seconds, busy } = cost(bucket.bytes);
        free = f64::max(free, full) + seconds;
        communication += seconds;
        if overlap {
            late += busy;
        }
    }
    let both = f64::max(free, forward + backward + late);
    Predicted { seconds: both + loss + update, compute: compute.seconds(), communication }
}
// ANCHOR_END: predict

#[cfg(test)]
mod tests {
    use super::*;

    const COMPUTE: Compute = Compute { forward: 10.0, backward: 20.0, update: 1.0 };
    const BUCKETS: [Bucket; 3] = [
        Bucket { ready: 0.25, bytes: 1.0 },
        Bucket { ready: 0.75, bytes: 4.0 },
        Bucket { ready: 1.0, bytes: 2.0 },
    ];

    fn step(overlap: bool, second: f64, busy: f64, copy: f64) -> Predicted {
        let cost = |bytes| Cost { seconds: bytes * second, busy: bytes * busy };
        predict(&COMPUTE, &Reduction { buckets: &BUCKETS, overlap, copy, cost: &cost, loss: 0.5 })
    }

    #[test]
    fn without_overlap_everything_adds_up() {
        let step = step(false, 2.0, 0.0, 0.0);
        assert_eq!(step.seconds, 31.0 + 14.0 + 0.5);
        assert_eq!((step.compute, step.communication), (31.0, 14.0));
        assert_eq!(step.exposed(), 14.5);
    }

    #[test]
    fn with_overlap_only_the_last_buckets_are_not_hidden() {
        // Full at 15, 25 and 30; there at 17, 33 and 37.
        assert_eq!(step(true, 2.0, 0.0, 0.0).seconds, 37.0 + 0.5 + 1.0);
        // A fast link: the last bucket alone.
        assert_eq!(step(true, 0.5, 0.0, 0.0).seconds, 31.0 + 0.5 + 1.0);
        // A link so slow that it never pauses again.
        assert_eq!(step(true, 10.0, 0.0, 0.0).seconds, 15.0 + 70.0 + 0.5 + 1.0);
    }

    #[test]
    fn who_adds_up_does_not_compute_meanwhile() {
        // All of it is work of the device: nothing is won.
        assert_eq!(step(true, 2.0, 2.0, 0.0).seconds, step(false, 2.0, 2.0, 0.0).seconds);
        // Copies are work in any case.
        assert_eq!(step(false, 2.0, 0.0, 1.0).seconds, step(false, 2.0, 0.0, 0.0).seconds + 7.0);
        assert!(step(true, 2.0, 1.0, 0.0).seconds > step(true, 2.0, 0.0, 0.0).seconds);
    }

    #[test]
    fn a_backward_pass_may_end_after_the_last_bucket() {
        // Full at 15, there at 17.
        let cost = |bytes| Cost { seconds: 2.0 * bytes, busy: bytes };
        let (buckets, loss) = (&BUCKETS[..1], 0.5);
        let reduction = Reduction { buckets, overlap: true, copy: 0.0, cost: &cost, loss };
        // The work for the bucket delays the pass.
        assert_eq!(predict(&COMPUTE, &reduction).seconds, 31.0 + 1.0 + 0.5);
    }

    #[test]
    fn one_device_has_no_communication() {
        let alone = Predicted::alone(&COMPUTE);
        assert_eq!((alone.seconds, alone.exposed(), alone.communication), (31.0, 0.0, 0.0));
    }
}

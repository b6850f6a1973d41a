//! Recordings of runs: a hash of every tensor in every step. `cargo course divergence` finds the first entry in which two runs part.
//!
//! A recording has one line of JSON for each tensor, in the order in which a step computes them: images, parameters, rank 0's
//! buffers, loss, gradients. After the last step it has parameters and buffers once more, under the number of the next step: a
//! run that resumes begins with them.

use serde::{Deserialize, Serialize};

/// One tensor at one time, or the loss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Counted from 1 over the whole run, also in a run that resumes another.
    pub step: usize,
    /// The rank.
    pub rank: usize,
    /// `images`, `parameter`, `buffer`, `loss` or `gradient`.
    pub kind: String,
    /// The name of the tensor. The name of images is the number of their shard.
    pub name: String,
    /// The hash of type, shape and bytes. The hash of the loss is its bits.
    pub hash: String,
}

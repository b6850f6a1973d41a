//! The learner's ring in chapter 2's table and under chapter 4's training.

use super::data_parallel::{show_speed, show_training};
use super::prelude::*;
pub use crate::checks::ch02_ring::Answer;

/// Shows the ring's speed and its training. Fails with the answer.
pub fn run(ring: Answer) -> Run {
    let sums = sums(ring);
    show_speed(&sums, Algorithm::Ring)?;
    show_training(&sums, Algorithm::Ring)
}

/// The ring of one tensor after the other.
pub(super) fn sums(ring: Answer) -> impl Fn(&Peer, &[Tensor]) -> Result<Vec<Tensor>, CommError> {
    move |rank, tensors| tensors.iter().map(|tensor| ring(rank, tensor)).collect()
}

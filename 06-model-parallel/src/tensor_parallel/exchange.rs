//! What a training step sends.
//!
//! With data parallelism a step sends as many numbers as there are parameters, however large the batch. Here it
//! sends activations: their number grows with the batch, and the number of parameters does not matter. And the
//! next layer waits for them, so nothing hides behind other work. That is why tensor parallelism stays among
//! devices with fast links.

use params_and_allreduce::Algorithm;
use params_and_allreduce::collectives::chunk_range;

use super::cut::Cut;

/// One exchange between all ranks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Everyone gets the sum.
    AllReduce {
        /// Numbers that each rank brings.
        elements: usize,
    },
    /// Everyone gets all parts.
    AllGather {
        /// Numbers beside each feature of the axis that is cut.
        rows: usize,
        /// The cut.
        cut: Cut,
    },
}

impl Exchange {
    /// How many numbers a rank sends, of `ranks`; `None` where an engine decides that.
    ///
    /// In a ring of n, an all-reduce of N numbers costs each rank about 2(n − 1)/n · N, and an all-gather
    /// (n − 1) times the widest part.
    ///
    /// # Panics
    ///
    /// When `rank` is not below `ranks`.
    pub fn sends(&self, algorithm: Algorithm, ranks: usize, rank: usize) -> Option<usize> {
        match *self {
            // Always around a ring; of parts as wide as the widest.
            Self::AllGather { rows, cut } => Some((ranks - 1) * rows * cut.widest(ranks)),
            Self::AllReduce { elements } => match algorithm {
                Algorithm::OneShot => Some((ranks - 1) * elements),
                Algorithm::Naive if rank == 0 => Some((ranks - 1) * elements),
                Algorithm::Naive => Some(elements),
                Algorithm::Tree => Some((usize::from(rank > 0) + children(ranks, rank)) * elements),
                Algorithm::Ring => {
                    let chunk = |index| chunk_range(elements, ranks, index % ranks).len();
                    // All chunks of the sum but its own, then all finished ones but the next rank's.
                    Some(2 * elements - chunk(rank) - chunk(rank + 1))
                }
                Algorithm::Native => None,
            },
        }
    }

    /// The sum over a step's exchanges; `None` where an engine decides that.
    ///
    /// # Panics
    ///
    /// When `rank` is not below `ranks`.
    pub fn sent(
        of_step: &[Self],
        algorithm: Algorithm,
        ranks: usize,
        rank: usize,
    ) -> Option<usize> {
        of_step.iter().map(|exchange| exchange.sends(algorithm, ranks, rank)).sum()
    }
}

/// How many ranks get their sum from this one in a binomial tree.
fn children(ranks: usize, rank: usize) -> usize {
    let distances = std::iter::successors(Some(1), |distance| Some(distance * 2));
    distances
        .take_while(|distance| *distance < ranks && rank.is_multiple_of(2 * distance))
        .filter(|distance| rank + distance < ranks)
        .count()
}

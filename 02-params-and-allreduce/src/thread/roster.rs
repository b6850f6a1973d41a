//! Who waits for whom, and who was the first to fail: what the ranks of one process know in common.
//!
//! When one rank fails, the ranks that wait for it fail too, then those that wait for them. Each of
//! them should name the rank that *began* it, not the one it happened to wait for. So the first cause
//! is written down here before the rank that knows it lets go of its links.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Stands for "waits for nobody".
const NOBODY: usize = usize::MAX;

/// What began it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FirstCause {
    /// A rank, and what it did to the others.
    Rank { rank: usize, why: String },
    /// Ranks of which each waits for the next, and the last for the first.
    Deadlock { circle: Vec<usize> },
}

/// Where one gets by asking a rank whom it waits for, then that one, and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Chain {
    /// To a rank that waits for nobody.
    Ends { rank: usize },
    /// Into a circle, told from its smallest rank on.
    Closes { circle: Vec<usize> },
}

/// What all ranks of a run know in common.
#[derive(Debug)]
pub(super) struct Roster {
    first_cause: Arc<OnceLock<FirstCause>>,
    first_failure: Arc<OnceLock<(usize, String)>>,
    waits_for: Vec<AtomicUsize>,
}

impl Roster {
    pub(super) fn new(world_size: usize) -> Self {
        Self {
            first_cause: Arc::default(),
            first_failure: Arc::default(),
            waits_for: nobody_waits(world_size),
        }
    }

    /// For other threads of the same ranks: who waits for whom among them, and the same first cause.
    pub(super) fn of_other_threads(&self) -> Self {
        Self {
            first_cause: Arc::clone(&self.first_cause),
            first_failure: Arc::clone(&self.first_failure),
            waits_for: nobody_waits(self.waits_for.len()),
        }
    }

    /// Notes that `rank` waits for a message from `other` while `wait` runs.
    pub(super) fn while_waiting<R>(
        &self,
        rank: usize,
        other: usize,
        wait: impl FnOnce() -> R,
    ) -> R {
        self.waits_for[rank].store(other, Ordering::SeqCst);
        let outcome = wait();
        self.waits_for[rank].store(NOBODY, Ordering::SeqCst);
        outcome
    }

    /// Follows the chain of waiting ranks from `rank` on.
    ///
    /// Ask when a wait has run out of time. Earlier, a circle proves nothing: a message may just have
    /// arrived, and a rank may have a second thread that is about to send one.
    pub(super) fn chain(&self, rank: usize) -> Chain {
        let mut met = vec![rank];
        let mut last = rank;
        loop {
            last = match self.waits_for[last].load(Ordering::SeqCst) {
                NOBODY => return Chain::Ends { rank: last },
                next => next,
            };
            if let Some(start) = met.iter().position(|&rank| rank == last) {
                return Chain::Closes { circle: from_the_smallest(met.split_off(start)) };
            }
            met.push(last);
        }
    }

    /// Tells what began it, unless that was told before; returns what stands.
    pub(super) fn accuse(&self, cause: FirstCause) -> FirstCause {
        self.first_cause.get_or_init(|| cause).clone()
    }

    /// Notes that a rank's work ended with a failure. Called before its links are let go.
    pub(super) fn failed(&self, rank: usize, why: String) {
        self.accuse(FirstCause::Rank { rank, why: why.clone() });
        self.first_failure.get_or_init(|| (rank, why));
    }

    /// The first rank whose work failed, and how.
    pub(super) fn first_failure(&self) -> Option<(usize, &str)> {
        self.first_failure.get().map(|(rank, why)| (*rank, why.as_str()))
    }

    /// The rank that began it, if it was one alone.
    pub(super) fn accused(&self) -> Option<usize> {
        match self.first_cause.get() {
            Some(FirstCause::Rank { rank, .. }) => Some(*rank),
            _ => None,
        }
    }
}

fn nobody_waits(world_size: usize) -> Vec<AtomicUsize> {
    (0..world_size).map(|_| AtomicUsize::new(NOBODY)).collect()
}

/// The same circle, whoever found it.
pub(crate) fn from_the_smallest(mut circle: Vec<usize>) -> Vec<usize> {
    let smallest = circle.iter().min().and_then(|min| circle.iter().position(|rank| rank == min));
    circle.rotate_left(smallest.unwrap_or_default());
    circle
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slept(rank: usize) -> FirstCause {
        FirstCause::Rank { rank, why: "slept".to_owned() }
    }

    #[test]
    fn the_end_of_a_chain_is_who_waits_for_nobody() {
        let roster = Roster::new(4);
        roster.while_waiting(0, 1, || {
            roster.while_waiting(1, 2, || assert_eq!(roster.chain(1), Chain::Ends { rank: 2 }));
            assert_eq!(roster.chain(1), Chain::Ends { rank: 1 });
        });
    }

    /// 3 waits for 2, and 2 → 1 → 4 → 2: 0 and 3 are not in the circle.
    #[test]
    fn a_circle_is_the_same_whoever_finds_it() {
        let roster = Roster::new(5);
        let circle = vec![1, 4, 2];
        for (rank, other) in [(3, 2), (2, 1), (1, 4), (4, 2)] {
            roster.waits_for[rank].store(other, Ordering::SeqCst);
        }
        for rank in [1, 2, 3, 4] {
            assert_eq!(roster.chain(rank), Chain::Closes { circle: circle.clone() }, "from {rank}");
        }
        assert_eq!(roster.chain(0), Chain::Ends { rank: 0 });
    }

    #[test]
    fn the_first_cause_stands() {
        let roster = Roster::new(3);
        roster.accuse(slept(2));
        roster.failed(1, "waited for rank 2".to_owned());
        assert_eq!(roster.accuse(slept(0)), slept(2));
        assert_eq!(roster.accused(), Some(2));
        assert_eq!(roster.first_failure(), Some((1, "waited for rank 2")));
    }
}

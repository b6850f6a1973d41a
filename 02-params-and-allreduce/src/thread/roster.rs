//! Who waits for whom, and who was the first to fail: what the ranks of one process know in common.
//!
//! When one rank fails, the ranks that wait for it fail too, then those that wait for them. Each of
//! them should name the rank that *began* it, not the one it happened to wait for. So the first cause
//! is written down here before the rank that knows it lets go of its links.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Stands for "waits for nobody".
const NOBODY: usize = usize::MAX;

/// A rank, and what it did to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FirstCause {
    pub(super) rank: usize,
    pub(super) why: String,
}

/// What all ranks of a run know in common.
#[derive(Debug)]
pub(super) struct Roster {
    first_cause: OnceLock<FirstCause>,
    first_failure: OnceLock<usize>,
    waits_for: Vec<AtomicUsize>,
}

impl Roster {
    pub(super) fn new(world_size: usize) -> Self {
        Self {
            first_cause: OnceLock::new(),
            first_failure: OnceLock::new(),
            waits_for: (0..world_size).map(|_| AtomicUsize::new(NOBODY)).collect(),
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

    /// Follows the chain of waiting ranks from `rank` to the one that waits for nobody.
    ///
    /// When the chain closes on itself, every rank in it waits for another: a deadlock, and `rank` is as
    /// good a name for it as any.
    pub(super) fn end_of_chain(&self, rank: usize) -> usize {
        let mut last = rank;
        for _ in 0..self.waits_for.len() {
            match self.waits_for[last].load(Ordering::SeqCst) {
                NOBODY => return last,
                next => last = next,
            }
        }
        rank
    }

    /// Names the rank that began it, unless one was named before; returns the one that stands.
    pub(super) fn accuse(&self, rank: usize, why: impl Into<String>) -> FirstCause {
        self.first_cause.get_or_init(|| FirstCause { rank, why: why.into() }).clone()
    }

    /// Notes that a rank's work ended with a failure. Called before its links are let go.
    pub(super) fn failed(&self, rank: usize, why: String) {
        self.accuse(rank, why);
        self.first_failure.get_or_init(|| rank);
    }

    /// The first rank whose work failed.
    pub(super) fn first_failure(&self) -> Option<usize> {
        self.first_failure.get().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_chain_is_who_waits_for_nobody() {
        let roster = Roster::new(4);
        roster.while_waiting(0, 1, || {
            roster.while_waiting(1, 2, || assert_eq!(roster.end_of_chain(1), 2));
            assert_eq!(roster.end_of_chain(1), 1);
        });
    }

    #[test]
    fn a_circle_ends_too() {
        let roster = Roster::new(2);
        roster.while_waiting(0, 1, || {
            roster.while_waiting(1, 0, || assert_eq!(roster.end_of_chain(1), 1));
        });
    }

    #[test]
    fn the_first_cause_stands() {
        let roster = Roster::new(3);
        roster.accuse(2, "slept");
        roster.failed(1, "waited for rank 2".to_owned());
        assert_eq!(roster.accuse(0, "left").rank, 2);
        assert_eq!(roster.first_failure(), Some(1));
    }
}

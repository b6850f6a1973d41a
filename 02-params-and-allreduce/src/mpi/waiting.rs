//! What a line and its postman both see: whom the line waits for, and whether its rank has left.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whom a rank waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    /// It computes, or has stalled, or is done.
    Nobody,
    /// A tensor of this rank's.
    Rank(usize),
    /// MPI's own all-reduce, which needs every rank.
    All,
}

const NOBODY: usize = usize::MAX;
const ALL: usize = usize::MAX - 1;

/// A line's state, as its postman has to know it.
#[derive(Debug)]
pub(super) struct Waiting {
    whom: AtomicUsize,
    left: AtomicBool,
}

impl Waiting {
    pub(super) fn new() -> Self {
        Self { whom: AtomicUsize::new(NOBODY), left: AtomicBool::new(false) }
    }

    /// Notes whom the line waits for while `wait` runs.
    pub(super) fn during<R>(&self, whom: WaitsFor, wait: impl FnOnce() -> R) -> R {
        let number = match whom {
            WaitsFor::Nobody => NOBODY,
            WaitsFor::Rank(rank) => rank,
            WaitsFor::All => ALL,
        };
        self.whom.store(number, Ordering::SeqCst);
        let outcome = wait();
        self.whom.store(NOBODY, Ordering::SeqCst);
        outcome
    }

    /// Whom the line waits for now.
    pub(super) fn whom(&self) -> WaitsFor {
        match self.whom.load(Ordering::SeqCst) {
            NOBODY => WaitsFor::Nobody,
            ALL => WaitsFor::All,
            rank => WaitsFor::Rank(rank),
        }
    }

    /// Notes that the rank's work is done.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
    }

    /// Whether the rank's work is done.
    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::SeqCst)
    }
}

//! What a line and its postman both see: whom they wait for, and whether the rank has left.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::communicator::Error;

/// Whom a rank waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    /// It computes, or has stalled, or is done.
    Nobody,
    /// A tensor of this rank's.
    Rank(usize),
    /// MPI's own all-reduce, which needs every rank.
    All,
    /// Nobody gets anything from it, or gives it anything, before a message to or from this rank gets on.
    HeldUpBy(usize),
}

const NOBODY: usize = usize::MAX;
const ALL: usize = usize::MAX - 1;

/// A line's state, as its postman has to know it.
#[derive(Debug)]
pub(super) struct Waiting {
    whom: AtomicUsize,
    /// The rank to or from which a message does not get on: others' lie behind it.
    held_up_by: AtomicUsize,
    left: AtomicBool,
}

impl Waiting {
    pub(super) fn new() -> Self {
        let nobody = || AtomicUsize::new(NOBODY);
        Self { whom: nobody(), held_up_by: nobody(), left: AtomicBool::new(false) }
    }

    /// Notes whom the line waits for while `wait` runs. If that fails, the note stays until the line [goes
    /// on](Self::goes_on): as a rule this rank ends the job now, and nobody is to take it for the one that began it.
    pub(super) fn during<R>(
        &self,
        whom: WaitsFor,
        wait: impl FnOnce() -> Result<R, Error>,
    ) -> Result<R, Error> {
        let number = match whom {
            WaitsFor::Nobody => NOBODY,
            WaitsFor::Rank(rank) | WaitsFor::HeldUpBy(rank) => rank,
            WaitsFor::All => ALL,
        };
        self.whom.store(number, Ordering::SeqCst);
        let outcome = wait();
        if outcome.is_ok() {
            self.goes_on();
        }
        outcome
    }

    /// Notes that the line has got something, and waits for nobody.
    pub(super) fn goes_on(&self) {
        self.whom.store(NOBODY, Ordering::SeqCst);
    }

    /// Notes whom the postman is held up by; who that was.
    pub(super) fn hold_up(&self, by: Option<usize>) -> Option<usize> {
        let before = self.held_up_by.swap(by.unwrap_or(NOBODY), Ordering::SeqCst);
        (before != NOBODY).then_some(before)
    }

    /// Whom the rank waits for now.
    pub(super) fn whom(&self) -> WaitsFor {
        let held_up_by = self.held_up_by.load(Ordering::SeqCst);
        if held_up_by != NOBODY {
            return WaitsFor::HeldUpBy(held_up_by);
        }
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

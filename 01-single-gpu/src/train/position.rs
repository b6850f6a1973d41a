//! Where a run is, so that another can go on from there.

use std::time::Duration;

use super::{BatchSums, EpochRecord};

/// Where a run is between two steps: what a checkpoint has to keep of the loop.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Position {
    /// The epochs that have ended.
    pub records: Vec<EpochRecord>,
    /// Batches done of the epoch that is under way.
    pub batches: usize,
    /// What those batches saw.
    pub sums: BatchSums,
    /// How long they took.
    pub elapsed: Duration,
}

impl Position {
    /// The epoch that is under way, counted from 1.
    pub fn epoch(&self) -> usize {
        self.records.len() + 1
    }

    /// Steps since the beginning of the run.
    pub fn steps(&self, batches_per_epoch: usize) -> usize {
        self.records.len() * batches_per_epoch + self.batches
    }
}

//! Is this a schedule? The laws that every one keeps, whatever its kind.
//!
//! | file | the law |
//! | --- | --- |
//! | `laws` | on each stage: what is used is there first, everything is done once, and the update comes last |
//! | `order` | between stages: what is received is what is sent, in the same order |
//! | `deadlock` | all together: nobody waits for ever |
//! | `error` | how a broken law is told |
//!
//! The first two look at lists. The third executes the schedule, without computing anything, and with
//! channels that hold as many messages as the caller says. A schedule may be sound with channels that hold one
//! message, and come to a halt where every send waits for its receiver.

mod deadlock;
mod error;
mod laws;
mod order;

use super::memory::Peak;
use super::schedule::Schedule;
pub use error::{Error, Step, Wait};

/// A schedule that keeps the laws, with channels of a known capacity. Only [`check`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    schedule: Schedule,
    capacity: usize,
    smallest_capacity: usize,
}

impl Checked {
    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// How many messages a channel holds.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many messages a channel has to hold at least.
    pub fn smallest_capacity(&self) -> usize {
        self.smallest_capacity
    }

    /// The most that each stage keeps, in stage order.
    pub fn peaks(&self) -> Vec<Peak> {
        let lists = self.schedule.instructions.iter();
        lists.map(|list| Peak::of(list.iter().map(|instruction| instruction.action))).collect()
    }
}

// ANCHOR: check
/// Checks a schedule, whoever made it, for channels that hold `capacity` messages.
///
/// # Errors
///
/// The first law that is broken, and where: see [`Error`].
pub fn check(schedule: Schedule, capacity: usize) -> Result<Checked, Error> {
    laws::shape(&schedule)?;
    for stage in 0..schedule.stages() {
        laws::keep(&schedule, stage)?;
    }
    order::same_at_both_ends(&schedule)?;
    let smallest_capacity = deadlock::smallest_capacity(&schedule, capacity)?;
    Ok(Checked { schedule, capacity, smallest_capacity })
}
// ANCHOR_END: check

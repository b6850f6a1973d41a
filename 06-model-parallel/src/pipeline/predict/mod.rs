//! When everything will happen, from how long each part takes.
//!
//! A stage computes one thing at a time, in the order of its list. A message of a channel leaves when it is
//! sent and the one before it has arrived. What sending costs the sender depends on the channel's capacity:
//! with 0, both ends are held up until the message is over; otherwise the sender goes on at once, unless the
//! channel is full.

mod costs;

use super::check::Checked;
use super::run::{Clock, run};
use super::schedule::{Action, Instruction};
use super::timeline::Timeline;
pub use costs::{Costs, Error, StageCost};

/// How long things take in a schedule with this many chunks.
struct Chunked<'a> {
    costs: &'a Costs,
    chunks: f64,
}

impl Clock for Chunked<'_> {
    fn work(&self, stage: usize, Instruction { action, .. }: Instruction) -> f64 {
        let cost = &self.costs.stages[stage];
        match action {
            Action::Forward(_) => cost.forward / self.chunks,
            Action::Backward(_) => (cost.backward_input + cost.backward_weight) / self.chunks,
            Action::BackwardInput(_) => cost.backward_input / self.chunks,
            Action::BackwardWeight(_) => cost.backward_weight / self.chunks,
            Action::Update => cost.update,
            _ => 0.0,
        }
    }

    fn message(&self) -> f64 {
        self.costs.message
    }
}

/// The timeline of a schedule, with channels as they were when it was checked.
///
/// # Errors
///
/// When there is not a cost for each stage, or one is negative or not a finite number.
///
/// # Panics
///
/// Never: a checked schedule runs to its end.
pub fn predict(checked: &Checked, costs: &Costs) -> Result<Timeline, Error> {
    let schedule = checked.schedule();
    costs.check(schedule.stages())?;
    let clock = Chunked { costs, chunks: schedule.chunks as f64 };
    let spans = run(schedule, checked.capacity(), &clock);
    let spans =
        spans.expect("whether a stage waits for ever does not depend on how long things take");
    Ok(Timeline { stages: schedule.stages(), spans })
}

//! The times of a schedule, from the time that each part takes.
//!
//! A stage computes one thing at a time, in the order of its list. A message of a channel leaves when it is sent and
//! the message before it has arrived. With capacity 0 a message holds up both stages. With another capacity the sender
//! goes on at once, unless the channel is full.

use super::check::Checked;
use super::schedule::{Action, Instruction};
use super::timeline::{Timeline, run};
use crate::Refused;
use crate::partition::Cost;

// ANCHOR: predict
/// Predicts the timeline of a schedule, with the channels that the schedule was checked for.
///
/// `costs` has a cost for each stage, which its chunks share equally, or a cost for each part of the model, in order. A
/// message between two stages takes `message` seconds. Fails when the number of costs is another, or a time is negative or
/// not finite.
pub fn predict(checked: &Checked, costs: &[Cost], message: f64) -> Result<Timeline, Refused> {
    let schedule = checked.schedule();
    let (stages, found) = (schedule.stages(), costs.len());
    let parts = stages * schedule.chunks;
    if ![stages, parts].contains(&found) {
        return Err(Refused(format!("costs of {found} stages for a schedule of {stages}")));
    }
    let times =
        |it: &Cost| [it.forward, it.backward, it.backward_input, it.backward_weight, it.update];
    let mut seconds = costs.iter().flat_map(times).chain([message]);
    if let Some(wrong) = seconds.find(|seconds| !seconds.is_finite() || *seconds < 0.0) {
        return Err(Refused(format!("{wrong} s is no time that something takes")));
    }
    let share = (parts / found) as f64;
    let work = |stage: usize, Instruction { chunk, action }: Instruction| {
        let cost = &costs[schedule.part(stage, chunk) % found];
        match action {
            Action::Forward(_) => cost.forward / share,
            Action::Backward(_) => cost.backward / share,
            Action::BackwardInput(_) => cost.backward_input / share,
            Action::BackwardWeight(_) => cost.backward_weight / share,
            Action::Update => cost.update,
            _ => 0.0,
        }
    };
    let spans = run(schedule, checked.capacity, message, work);
    let spans = spans.expect("a checked schedule has no deadlock, however long the passes take");
    Ok(Timeline { stages, spans })
}
// ANCHOR_END: predict

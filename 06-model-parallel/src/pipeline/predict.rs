//! The times of a schedule, from the time that each part takes.
//!
//! A stage computes one thing at a time, in the order of its list. A message of a channel leaves when it is sent and
//! the message before it has arrived. With capacity 0 a message holds up both stages. With another capacity the sender
//! goes on at once, unless the channel is full.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::check::Checked;
use super::schedule::{Action, Instruction};
use super::timeline::{Timeline, run};
use crate::Refused;
use crate::partition::LayerCost;

// ANCHOR: predict
/// The seconds that some layers take for one micro-batch: the forward pass, the two halves of the backward pass, and the
/// update, once a step. A backward pass in one piece takes the sum of both halves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the lines above explain the fields")]
pub struct StageCost {
    pub forward: f64,
    pub backward_input: f64,
    pub backward_weight: f64,
    pub update: f64,
}

/// The seconds that a pipeline takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// A cost for each stage, which its chunks share equally; or a cost for each part of the model, in order.
    pub stages: Vec<StageCost>,
    /// A message between two stages.
    pub message: f64,
}

impl StageCost {
    /// In units of time instead of seconds: a forward pass takes one, and so does each half of a backward pass.
    pub const UNITS: Self =
        Self { forward: 1.0, backward_input: 1.0, backward_weight: 1.0, update: 0.0 };
}

impl Costs {
    /// The costs of the parts of a cut, from measured layers, without updates. Messages take no time. `in_halves` says
    /// whether backward passes come in two halves, which together may take longer than one piece. Panics when the cut has
    /// a layer that was not measured.
    pub fn of_cut(layers: &[LayerCost], cut: &[Range<usize>], in_halves: bool) -> Self {
        let cost = |part: &Range<usize>| {
            let sum = |seconds: fn(&LayerCost) -> f64| -> f64 {
                layers[part.clone()].iter().map(seconds).sum()
            };
            let [backward_input, backward_weight] = match in_halves {
                true => [sum(|layer| layer.backward_input), sum(|layer| layer.backward_weight)],
                false => [sum(|layer| layer.backward) / 2.0; 2],
            };
            let forward = sum(|layer| layer.forward);
            StageCost { forward, backward_input, backward_weight, update: 0.0 }
        };
        Self { stages: cut.iter().map(cost).collect(), message: 0.0 }
    }

    /// The costs of equal stages. Messages take no time.
    pub fn equal(stages: usize, cost: StageCost) -> Self {
        Self { stages: vec![cost; stages], message: 0.0 }
    }
}

/// Predicts the timeline of a schedule, with the channels that the schedule was checked for. Fails when there is no cost
/// for each stage or each part, or a cost is negative or not finite.
pub fn predict(checked: &Checked, costs: &Costs) -> Result<Timeline, Refused> {
    let schedule = checked.schedule();
    let (stages, chunks, found) = (schedule.stages(), schedule.chunks, costs.stages.len());
    let of_parts = found == stages * chunks;
    if !of_parts && found != stages {
        return Err(Refused(format!("costs of {found} stages for a schedule of {stages}")));
    }
    let times = |it: &StageCost| [it.forward, it.backward_input, it.backward_weight, it.update];
    let mut seconds = costs.stages.iter().flat_map(times).chain([costs.message]);
    if let Some(wrong) = seconds.find(|seconds| !seconds.is_finite() || *seconds < 0.0) {
        return Err(Refused(format!("{wrong} s is no time that something takes")));
    }
    let work = |stage: usize, Instruction { chunk, action }: Instruction| {
        let (cost, share) = match of_parts {
            true => (&costs.stages[schedule.part(stage, chunk)], 1.0),
            false => (&costs.stages[stage], chunks as f64),
        };
        match action {
            Action::Forward(_) => cost.forward / share,
            Action::Backward(_) => (cost.backward_input + cost.backward_weight) / share,
            Action::BackwardInput(_) => cost.backward_input / share,
            Action::BackwardWeight(_) => cost.backward_weight / share,
            Action::Update => cost.update,
            _ => 0.0,
        }
    };
    let spans = run(schedule, checked.capacity, costs.message, work);
    let spans = spans.expect("a checked schedule has no deadlock, however long the passes take");
    Ok(Timeline { stages, spans })
}
// ANCHOR_END: predict

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_costs_what_its_layers_cost() {
        let layer = |number: usize| {
            let forward = number as f64;
            LayerCost {
                forward,
                backward: 10.0 * forward,
                backward_input: 5.0 * forward,
                backward_weight: 7.0 * forward,
            }
        };
        let layers: Vec<LayerCost> = (1..=4).map(layer).collect();
        let stage = |forward: f64, input: f64, weight: f64| StageCost {
            forward,
            backward_input: input * forward,
            backward_weight: weight * forward,
            update: 0.0,
        };
        for (in_halves, input, weight) in [(false, 5.0, 5.0), (true, 5.0, 7.0)] {
            let costs = Costs::of_cut(&layers, &[0..1, 1..4], in_halves);
            let stages = vec![stage(1.0, input, weight), stage(9.0, input, weight)];
            assert_eq!(costs, Costs { stages, message: 0.0 });
        }
    }
}

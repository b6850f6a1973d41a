//! How long each part takes.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::partition::LayerCost;

/// How long one stage's layers take, in seconds.
///
/// The first three are for one micro-batch and all layers of the stage. Where these are in several chunks,
/// each is taken to be an equal share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageCost {
    /// The forward pass.
    pub forward: f64,
    /// The gradient of the input.
    pub backward_input: f64,
    /// The gradient of the weights.
    pub backward_weight: f64,
    /// The update of the weights, once a step.
    pub update: f64,
}

/// How long everything takes, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Each stage.
    pub stages: Vec<StageCost>,
    /// A message between two stages.
    pub message: f64,
}

/// Why nothing can be predicted.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The costs are of another pipeline.
    #[error("costs of {costs} stages for a schedule of {stages}")]
    Stages {
        /// How many costs there are.
        costs: usize,
        /// How many stages there are.
        stages: usize,
    },
    /// A time that cannot be.
    #[error("{seconds} s is no time that something takes")]
    Seconds {
        /// The first of them.
        seconds: f64,
    },
}

impl StageCost {
    /// In units of time, not seconds: a forward pass takes one, and a backward pass, which does about twice the
    /// work, one for each of its halves.
    pub const UNITS: Self =
        Self { forward: 1.0, backward_input: 1.0, backward_weight: 1.0, update: 0.0 };

    /// What a stage of these layers costs, without its update.
    ///
    /// Layers are measured with their backward pass in one piece. Its two halves are taken to be equal, which
    /// does not matter to a schedule that has it in one piece too.
    pub fn of(layers: &[LayerCost]) -> Self {
        let forward = layers.iter().map(|layer| layer.forward).sum();
        let half = layers.iter().map(|layer| layer.backward).sum::<f64>() / 2.0;
        Self { forward, backward_input: half, backward_weight: half, update: 0.0 }
    }
}

impl Costs {
    /// What the stages of a cut cost, of layers that were measured; messages take no time.
    ///
    /// # Panics
    ///
    /// When the cut has a layer that was not measured.
    pub fn of_cut(layers: &[LayerCost], cut: &[Range<usize>]) -> Self {
        let stages = cut.iter().map(|stage| StageCost::of(&layers[stage.clone()])).collect();
        Self { stages, message: 0.0 }
    }

    /// Stages that all take equally long, and messages that take no time.
    pub fn equal(stages: usize, cost: StageCost) -> Self {
        Self { stages: vec![cost; stages], message: 0.0 }
    }

    /// Whether they fit a pipeline of so many stages.
    pub(super) fn check(&self, stages: usize) -> Result<(), Error> {
        if self.stages.len() != stages {
            return Err(Error::Stages { costs: self.stages.len(), stages });
        }
        let of_stages = self.stages.iter().flat_map(|cost| {
            [cost.forward, cost.backward_input, cost.backward_weight, cost.update]
        });
        match of_stages.chain([self.message]).find(|time| !time.is_finite() || *time < 0.0) {
            Some(seconds) => Err(Error::Seconds { seconds }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_costs_what_its_layers_cost() {
        let layer =
            |number: usize| LayerCost { forward: number as f64, backward: 10.0 * number as f64 };
        let layers: Vec<LayerCost> = (1..=4).map(layer).collect();
        let costs = Costs::of_cut(&layers, &[0..1, 1..4]);
        let stage = |forward: f64| {
            let half = 5.0 * forward;
            StageCost { forward, backward_input: half, backward_weight: half, update: 0.0 }
        };
        assert_eq!(costs, Costs { stages: vec![stage(1.0), stage(9.0)], message: 0.0 });
    }
}

//! How long each part takes.

use serde::{Deserialize, Serialize};

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

impl Costs {
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

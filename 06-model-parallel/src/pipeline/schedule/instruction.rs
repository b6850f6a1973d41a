//! What a stage can be told to do.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a stage does with one micro-batch, or at the end of the step with its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "do", content = "micro_batch", rename_all = "snake_case")]
pub enum Action {
    /// Wait for the activation that the stage before has computed.
    RecvActivation(usize),
    /// Run this stage's layers; what the backward pass will need is kept.
    Forward(usize),
    /// Send the activation to the next stage.
    SendActivation(usize),
    /// Wait for the gradient of what this stage has sent on.
    RecvGradient(usize),
    /// Compute the gradients of the input and of the weights.
    Backward(usize),
    /// The first half of [`Backward`](Self::Backward): the gradient of the input, for which others wait.
    BackwardInput(usize),
    /// The second half: the gradient of the weights, for which nobody waits before the update.
    BackwardWeight(usize),
    /// Send the gradient of the input to the stage before.
    SendGradient(usize),
    /// Change the weights, by the gradients of all micro-batches.
    Update,
}

impl Action {
    /// The micro-batch that is worked on; `None` for an update.
    pub fn micro_batch(self) -> Option<usize> {
        match self {
            Self::RecvActivation(i)
            | Self::Forward(i)
            | Self::SendActivation(i)
            | Self::RecvGradient(i)
            | Self::Backward(i)
            | Self::BackwardInput(i)
            | Self::BackwardWeight(i)
            | Self::SendGradient(i) => Some(i),
            Self::Update => None,
        }
    }

    /// Whether something is sent to another stage.
    pub fn sends(self) -> bool {
        matches!(self, Self::SendActivation(_) | Self::SendGradient(_))
    }

    /// Whether the device works. It does not while a stage sends or receives.
    pub fn computes(self) -> bool {
        !matches!(
            self,
            Self::RecvActivation(_)
                | Self::SendActivation(_)
                | Self::RecvGradient(_)
                | Self::SendGradient(_)
        )
    }
}

/// An action, and the chunk of the stage's layers that it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Instruction {
    /// Which of the stage's chunks, from 0; always 0 where a stage has one. An update is of all chunks.
    pub chunk: usize,
    /// What is done.
    #[serde(flatten)]
    pub action: Action,
}

impl From<Action> for Instruction {
    /// For the only chunk.
    fn from(action: Action) -> Self {
        Self { chunk: 0, action }
    }
}

impl fmt::Display for Instruction {
    /// `Forward(3)`, or `Forward(3) of chunk 1`; chunk 0 is not written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.action)?;
        match self.chunk {
            0 => Ok(()),
            chunk => write!(f, " of chunk {chunk}"),
        }
    }
}

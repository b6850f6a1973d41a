//! The order of work of all stages: a schedule is data.
//!
//! A schedule is a list of instructions for every stage. [`orders`](super::orders) generates schedules. A
//! [worker](super::worker) executes the list of its stage from first to last, and does not know the kind of the schedule.

use std::fmt;

use serde::{Deserialize, Serialize};

// ANCHOR: action
/// One thing that a stage does: with a micro-batch, or with its weights at the end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "do", content = "micro_batch", rename_all = "snake_case")]
pub enum Action {
    /// Receives the activation that the part before has computed.
    RecvActivation(usize),
    /// Runs the layers, and keeps the activations for the backward pass.
    Forward(usize),
    /// Sends the activation to the part after.
    SendActivation(usize),
    /// Receives the gradient of the activation that this stage has sent.
    RecvGradient(usize),
    /// Computes the gradients of the input and of the weights.
    Backward(usize),
    /// The first half of a backward pass: the gradient of the input, which the stage before waits for.
    BackwardInput(usize),
    /// The second half: the gradients of the weights, which no stage waits for before the update.
    BackwardWeight(usize),
    /// Sends the gradient of the input to the part before.
    SendGradient(usize),
    /// Updates the weights with the gradients of all micro-batches.
    Update,
}

impl Action {
    /// The micro-batch, or `None` for an update.
    pub fn micro_batch(self) -> Option<usize> {
        match self {
            Self::RecvActivation(i) | Self::SendActivation(i) | Self::Forward(i) => Some(i),
            Self::RecvGradient(i) | Self::SendGradient(i) | Self::Backward(i) => Some(i),
            Self::BackwardInput(i) | Self::BackwardWeight(i) => Some(i),
            Self::Update => None,
        }
    }

    /// Whether the action sends a message.
    pub fn sends(self) -> bool {
        matches!(self, Self::SendActivation(_) | Self::SendGradient(_))
    }

    /// Whether the device computes. A device that sends or receives does not.
    pub fn computes(self) -> bool {
        !self.sends() && !matches!(self, Self::RecvActivation(_) | Self::RecvGradient(_))
    }
}
// ANCHOR_END: action

// ANCHOR: schedule
/// An action, and the chunk of the stage's layers that the action is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Instruction {
    /// The number of the chunk on its stage, from 0. An update is of all chunks and has chunk 0.
    pub chunk: usize,
    /// The action.
    #[serde(flatten)]
    pub action: Action,
}

impl From<Action> for Instruction {
    /// The action for chunk 0.
    fn from(action: Action) -> Self {
        Self { chunk: 0, action }
    }
}

impl fmt::Display for Instruction {
    /// Writes `Forward(3)` for chunk 0, and `Forward(3) of chunk 1` for another chunk.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.action)?;
        match self.chunk {
            0 => Ok(()),
            chunk => write!(f, " of chunk {chunk}"),
        }
    }
}

/// The instructions of every stage for one step of training, from the first micro-batch to the update.
///
/// Anybody can write a schedule, and [`check`](crate::pipeline::check()) finds its mistakes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// The number of micro-batches of a batch. Micro-batches are numbered from 0.
    pub micro_batches: usize,
    /// The number of chunks of the model on each stage: 1, except in interleaved schedules.
    pub chunks: usize,
    /// One list for each stage, in stage order.
    pub instructions: Vec<Vec<Instruction>>,
}
// ANCHOR_END: schedule

// ANCHOR: messages
/// The kind of tensors that a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Carries {
    /// Activations, towards the end of the model.
    Activations,
    /// Gradients, towards the beginning of the model.
    Gradients,
}

/// The name of an activation or a gradient: its kind, the part of the model that uses the tensor, and the micro-batch.
pub(super) type Key = (Carries, usize, usize);

/// A message between two stages. A channel carries the messages of one kind from one stage to another, and they arrive in
/// the order of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub from: usize,
    pub to: usize,
    pub key: Key,
    /// Whether the instruction sends the message, or receives it.
    pub sends: bool,
}

impl Message {
    pub fn channel(&self) -> (usize, usize, Carries) {
        (self.from, self.to, self.key.0)
    }
}

/// The capacity of a channel that is never full, as in stage 2's `Communicator::send`.
///
/// A capacity is the largest number of messages that are sent and not yet received. With capacity 0 a send waits until the
/// receiver receives, as in `MPI_Ssend` and NCCL.
pub const UNBOUNDED: usize = usize::MAX;

impl Schedule {
    /// A schedule with one chunk a stage, from the list of each stage.
    pub fn of(stages: usize, micro_batches: usize, actions: impl Fn(usize) -> Vec<Action>) -> Self {
        let list = |stage| actions(stage).into_iter().map(Instruction::from).collect();
        Self { micro_batches, chunks: 1, instructions: (0..stages).map(list).collect() }
    }

    /// The number of stages. Each stage has a device.
    pub fn stages(&self) -> usize {
        self.instructions.len()
    }

    /// The numbers of the model's parts on a stage, its first chunk first.
    pub fn parts(&self, stage: usize) -> impl Iterator<Item = usize> + use<> {
        (stage..self.stages() * self.chunks).step_by(self.stages())
    }

    /// The number of the part that is a chunk of a stage. With two chunks on each of three stages:
    ///
    /// ```text
    ///            stage 0   stage 1   stage 2
    /// chunk 0    part 0    part 1    part 2
    /// chunk 1    part 3    part 4    part 5
    /// ```
    pub(super) fn part(&self, stage: usize, chunk: usize) -> usize {
        chunk * self.stages() + stage
    }

    /// Whether a part is the last one, which ends in the loss. The first part, 0, begins with the data.
    pub(super) fn is_last(&self, part: usize) -> bool {
        part + 1 == self.stages() * self.chunks
    }

    /// The message that an instruction of a stage sends or receives. Returns `None` for an instruction that computes,
    /// and when the neighbouring part is missing or on the same stage.
    pub(super) fn message(
        &self,
        stage: usize,
        Instruction { chunk, action }: Instruction,
    ) -> Option<Message> {
        let (stages, here) = (self.stages(), self.part(stage, chunk));
        let (sends, carries, there) = match action {
            Action::RecvActivation(_) => (false, Carries::Activations, here.checked_sub(1)?),
            Action::SendActivation(_) => (true, Carries::Activations, here + 1),
            Action::RecvGradient(_) => (false, Carries::Gradients, here + 1),
            Action::SendGradient(_) => (true, Carries::Gradients, here.checked_sub(1)?),
            _ => return None,
        };
        let (sender, part) = if sends { (here, there) } else { (there, here) };
        let (from, to) = (sender % stages, part % stages);
        let message = Message { from, to, key: (carries, part, action.micro_batch()?), sends };
        (from != to && there < stages * self.chunks).then_some(message)
    }

    /// The messages from one stage to another, in the order of sending.
    pub(super) fn messages(&self, from: usize, to: usize) -> impl Iterator<Item = Message> {
        let messages = self.instructions[from].iter().filter_map(move |&it| self.message(from, it));
        messages.filter(move |message| message.sends && message.to == to)
    }
}
// ANCHOR_END: messages

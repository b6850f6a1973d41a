//! A step is a list: everything that a stage does in a step of training is an instruction of its list.
//!
//! A model is a list of *units*, which are runs of its layers. An instruction names a unit, and says what happens to
//! it. [`orders`](super::orders) returns lists, [`check`](super::check()) checks them,
//! [`simulate`](mod@super::simulate) times and weighs them, [`gantt`](super::gantt) draws them, and an
//! [`Executor`](super::Executor) does what they say. None of these knows the kind of a schedule.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use serde::{Deserialize, Serialize};

// ANCHOR: action
/// What happens to a unit, with a micro-batch or for all micro-batches together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "do", content = "micro_batch", rename_all = "snake_case")]
pub enum Action {
    /// Receives the activation that the unit before has computed.
    RecvActivation(usize),
    /// Runs the layers, and keeps the activations for the backward pass.
    Forward(usize),
    /// Runs the layers, and keeps no activations. If a [`Recompute`](Self::Recompute) comes later, keeps the input.
    ForwardOnly(usize),
    /// Sends the activation to the unit after.
    SendActivation(usize),
    /// Receives the gradient of the activation that the unit has sent.
    RecvGradient(usize),
    /// Runs the layers again from the kept input, and keeps the activations for the backward pass.
    Recompute(usize),
    /// Computes the gradients of the input and of the weights.
    Backward(usize),
    /// The first half of a backward pass: the gradient of the input, which the unit before waits for.
    BackwardInput(usize),
    /// The second half: the gradients of the weights, which no other unit waits for.
    BackwardWeight(usize),
    /// Sends the gradient of the input to the unit before.
    SendGradient(usize),
    /// Starts to join the parameters of the unit from the chunks of all replicas.
    Gather,
    /// Waits for the joined parameters, and gives them to the layers.
    Wait,
    /// Drops the joined parameters. Each replica keeps its chunk.
    Free,
    /// Starts to sum the gradients of the unit over all replicas.
    AllReduce,
    /// Starts to sum the gradients of the unit over all replicas. Each replica gets its chunk of the sum.
    ReduceScatter,
    /// Updates the weights of the unit with the summed gradients, or the replica's chunk of the weights with its
    /// chunk.
    Update,
}

impl Action {
    /// The micro-batch, or `None` for an action that is for all micro-batches.
    pub fn micro_batch(self) -> Option<usize> {
        match self {
            Self::RecvActivation(i) | Self::SendActivation(i) | Self::Forward(i) => Some(i),
            Self::RecvGradient(i) | Self::SendGradient(i) | Self::Backward(i) => Some(i),
            Self::BackwardInput(i) | Self::BackwardWeight(i) => Some(i),
            Self::ForwardOnly(i) | Self::Recompute(i) => Some(i),
            _ => None,
        }
    }

    /// Whether all replicas do the action together. The second thread of each rank does it, while the rank goes on.
    pub fn is_collective(self) -> bool {
        matches!(self, Self::Gather | Self::AllReduce | Self::ReduceScatter)
    }

    /// Whether the layers of the unit run, with its parameters.
    pub fn runs_layers(self) -> bool {
        matches!(
            self,
            Self::Forward(_) | Self::ForwardOnly(_) | Self::Recompute(_) | Self::Backward(_)
        ) || matches!(self, Self::BackwardInput(_) | Self::BackwardWeight(_))
    }

    /// Whether the device computes. Otherwise the rank communicates, waits or frees memory.
    pub fn computes(self) -> bool {
        self.runs_layers() || self == Self::Update
    }

    /// Whether the action computes a gradient of the weights.
    pub fn adds_gradients(self) -> bool {
        matches!(self, Self::Backward(_) | Self::BackwardWeight(_))
    }
}
// ANCHOR_END: action

// ANCHOR: schedule
/// An action, and the unit of the model that the action is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Instruction {
    /// The number of the unit in the model, from 0.
    pub unit: usize,
    /// The action.
    #[serde(flatten)]
    pub action: Action,
}

impl fmt::Display for Instruction {
    /// `Forward(3) of unit 1`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of unit {}", self.action, self.unit)
    }
}

/// One step of training: the list of every stage, from the first micro-batch to the last update.
///
/// Anybody can write a schedule, and [`check`](super::check()) finds its mistakes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// The number of micro-batches of a batch. Micro-batches are numbered from 0.
    pub micro_batches: usize,
    /// The number of pipelines that train together, each on its share of a batch. All have the same lists.
    pub replicas: usize,
    /// The stage that holds each unit.
    pub placement: Vec<usize>,
    /// The first unit that is trained. The units before have nothing to train, and nobody computes their gradients.
    pub first_trained: usize,
    /// Whether each replica holds a chunk of each unit between two steps. Otherwise each replica holds all parameters.
    pub sharded: bool,
    /// One list for each stage, in stage order.
    pub lists: Vec<Vec<Instruction>>,
}
// ANCHOR_END: schedule

// ANCHOR: messages
/// The kind of tensors that a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Carries {
    /// Activations, towards the end of the model.
    Activations,
    /// Gradients, towards the beginning of the model.
    Gradients,
}

/// The name of an activation or a gradient: its kind, the unit that uses the tensor, and the micro-batch.
pub type Key = (Carries, usize, usize);

/// A message between two stages. A channel carries the messages of one kind from one stage to another, and they arrive
/// in the order of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the lines above and below explain the fields")]
pub struct Message {
    pub from: usize,
    pub to: usize,
    pub key: Key,
    /// Whether the instruction sends the message, or receives it.
    pub sends: bool,
}

impl Message {
    /// Sender, receiver and kind.
    pub fn channel(&self) -> (usize, usize, Carries) {
        (self.from, self.to, self.key.0)
    }
}

/// The capacity of a channel that is never full, as in stage 2's `Communicator::send`.
///
/// A capacity is the largest number of messages that are sent and not yet received. With capacity 0 a send waits until
/// the receiver receives, as in `MPI_Ssend` and NCCL.
pub const UNBOUNDED: usize = usize::MAX;

impl Schedule {
    /// A schedule with one unit a stage, from the actions of each stage.
    pub fn of(stages: usize, micro_batches: usize, actions: impl Fn(usize) -> Vec<Action>) -> Self {
        let list = |stage| {
            let actions = actions(stage).into_iter();
            actions.map(|action| Instruction { unit: stage, action }).collect()
        };
        let (placement, lists) = ((0..stages).collect(), (0..stages).map(list).collect());
        Self { micro_batches, replicas: 1, placement, first_trained: 0, sharded: false, lists }
    }

    /// The number of stages. Each stage has a device.
    pub fn stages(&self) -> usize {
        self.lists.len()
    }

    /// The number of units of the model.
    pub fn units(&self) -> usize {
        self.placement.len()
    }

    /// The units of a stage, in the order of the model.
    pub fn units_of(&self, stage: usize) -> impl Iterator<Item = usize> {
        (0..self.units()).filter(move |&unit| self.placement[unit] == stage)
    }

    /// The units of a stage of which each replica updates its chunk alone.
    pub fn in_chunks(&self, stage: usize) -> BTreeSet<usize> {
        let list = self.lists[stage].iter();
        let scattered = list.filter(|it| it.action == Action::ReduceScatter);
        match self.sharded {
            true => self.units_of(stage).collect(),
            false => scattered.map(|it| it.unit).collect(),
        }
    }

    /// Whether a unit is the last one, which ends in the loss. Unit 0 begins with the data.
    pub fn is_last(&self, unit: usize) -> bool {
        unit + 1 == self.units()
    }

    /// The message that an instruction sends or receives. `None` for an instruction that does neither, and when there
    /// is no such message: the neighbouring unit is missing or on the same stage, or nobody needs the gradient.
    pub fn message(&self, Instruction { unit, action }: Instruction) -> Option<Message> {
        let (sends, carries, there) = match action {
            Action::RecvActivation(_) => (false, Carries::Activations, unit.checked_sub(1)?),
            Action::SendActivation(_) => (true, Carries::Activations, unit + 1),
            Action::RecvGradient(_) => (false, Carries::Gradients, unit + 1),
            Action::SendGradient(_) => (true, Carries::Gradients, unit.checked_sub(1)?),
            _ => return None,
        };
        let (sender, user) = if sends { (unit, there) } else { (there, unit) };
        let (from, to) = (*self.placement.get(sender)?, *self.placement.get(user)?);
        let is_needed = carries == Carries::Activations || user >= self.first_trained;
        let key = (carries, user, action.micro_batch()?);
        (from != to && is_needed).then_some(Message { from, to, key, sends })
    }

    /// The messages that a stage takes in for each message that it waits for, by the key of the latter.
    ///
    /// A stage receives the messages of another stage in the order of sending. Two stages with several units send each
    /// other activations and gradients, so other messages may arrive before the wanted one.
    pub fn arrivals(&self, stage: usize) -> BTreeMap<Key, Vec<Message>> {
        let mut coming = BTreeMap::new();
        let messages = |of: usize| self.lists[of].iter().filter_map(|&it| self.message(it));
        let arrivals = messages(stage).filter(|it| !it.sends).map(|wanted| {
            let sent = || messages(wanted.from).filter(|it| it.sends && it.to == stage);
            let sent = coming.entry(wanted.from).or_insert_with(|| sent().collect::<VecDeque<_>>());
            // A message that has arrived before another one does not come any more.
            let last = sent.iter().position(|it| it.key == wanted.key);
            (wanted.key, sent.drain(..last.map_or(0, |last| last + 1)).collect())
        });
        arrivals.collect()
    }
}
// ANCHOR_END: messages

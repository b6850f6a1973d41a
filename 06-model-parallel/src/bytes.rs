//! The costs of a unit in seconds and bytes, and the bytes that every stage holds during every instruction: as predicted,
//! and as a computation graph has them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use candle_core::{Storage, Tensor};
use concise_wrapper::weights::Weights;
use ops::size_in_bytes;
use serde::{Deserialize, Serialize};

use crate::instructions::{Action, Carries, Instruction, Message, Schedule};

// ANCHOR: bytes
/// Bytes that a stage holds, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// The parameters.
    pub parameters: usize,
    /// The sum of gradients over the micro-batches, and the gradients that are added to the sum.
    pub gradients: usize,
    /// The state of the optimizer.
    pub optimizer: usize,
    /// The tensors that forward passes have kept for backward passes.
    pub activations: usize,
    /// Activations and gradients that have arrived and are not used yet, or wait to be sent.
    pub messages: usize,
}

/// Formats bytes as megabytes.
pub fn megabytes(bytes: usize) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

impl Bytes {
    /// The sum of all kinds.
    pub fn total(&self) -> usize {
        self.kinds().into_iter().map(|(_, bytes)| bytes).sum()
    }

    /// The names of all kinds, and their bytes.
    pub fn kinds(&self) -> [(&'static str, usize); 5] {
        [
            ("parameters", self.parameters),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("messages", self.messages),
        ]
    }

    /// The largest error of these bytes as a prediction of `measured` bytes, over all kinds, as a share of the
    /// measured bytes.
    pub fn largest_error(self, measured: Self) -> f64 {
        let kinds = self.kinds().into_iter().zip(measured.kinds()).filter(|(a, b)| a != b);
        kinds.map(|((_, a), (_, b))| a.abs_diff(b) as f64 / b as f64).fold(0.0, f64::max)
    }

    /// Combines each kind with the same kind of other bytes.
    #[must_use]
    pub fn with(mut self, mut other: Self, combine: impl Fn(usize, usize) -> usize) -> Self {
        for (mine, other) in self.each().into_iter().zip(other.each()) {
            *mine = combine(*mine, *other);
        }
        self
    }

    fn each(&mut self) -> [&mut usize; 5] {
        let Self { parameters, gradients, optimizer, activations, messages } = self;
        [parameters, gradients, optimizer, activations, messages]
    }
}
// ANCHOR_END: bytes

// ANCHOR: cost
/// The cost of a unit: seconds for one micro-batch in each pass, and once a step for the sum over replicas and the
/// update; and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// The forward pass.
    pub forward: f64,
    /// The backward pass in one piece.
    pub backward: f64,
    /// The first half of the backward pass.
    pub backward_input: f64,
    /// The second half of the backward pass.
    pub backward_weight: f64,
    /// The sum over replicas.
    pub all_reduce: f64,
    /// Of this sum, the seconds in which the device itself adds and copies, and does not compute.
    pub handling: f64,
    /// The update.
    pub update: f64,
    /// Bytes of the parameters, and of their gradients.
    pub parameters: usize,
    /// Bytes of the optimizer's state.
    pub optimizer: usize,
    /// Bytes that a forward pass keeps of a micro-batch.
    pub activations: usize,
    /// Bytes that wait in addition between the two halves of a backward pass.
    pub halves: usize,
    /// Bytes of the activation that comes from the unit before, or of the data.
    pub input: usize,
    /// Bytes of the activation that goes to the next unit.
    pub output: usize,
}

impl Cost {
    /// In units of time instead of seconds: a forward pass takes one, and so does each half of a backward pass. In
    /// units of activations instead of bytes: the peak of a stage is the number of micro-batches that the stage keeps.
    pub const UNITS: Self = Self {
        forward: 1.0,
        backward: 2.0,
        backward_input: 1.0,
        backward_weight: 1.0,
        all_reduce: 0.0,
        handling: 0.0,
        update: 0.0,
        parameters: 0,
        optimizer: 0,
        activations: 1,
        halves: 0,
        input: 0,
        output: 0,
    };

    /// Both passes, each in one piece.
    pub fn total(&self) -> f64 {
        self.forward + self.backward
    }

    /// The same bytes, with times divided by a number.
    #[must_use]
    pub fn faster(self, by: f64) -> Self {
        self.with(&self, |seconds, _| seconds / by)
    }

    /// Combines each time with the same time of another cost. The bytes stay.
    #[must_use]
    pub fn with(mut self, other: &Self, combine: impl Fn(f64, f64) -> f64) -> Self {
        for (mine, other) in self.times().into_iter().zip(other.clone().times()) {
            *mine = combine(*mine, *other);
        }
        self
    }

    pub(crate) fn times(&mut self) -> [&mut f64; 7] {
        let Self { forward, backward, backward_input, backward_weight, .. } = self;
        let of_step = [&mut self.all_reduce, &mut self.handling, &mut self.update];
        let [all_reduce, handling, update] = of_step;
        [forward, backward, backward_input, backward_weight, all_reduce, handling, update]
    }

    /// The costs of the units of a cut, from those of all layers. Panics when a layer has no cost, or a unit no layer.
    pub fn of_parts(layers: &[Self], cut: &[Range<usize>]) -> Vec<Self> {
        let unit = |part: &Range<usize>| layers[part.clone()].iter().copied().reduce(Self::before);
        cut.iter().map(|part| unit(part).expect("a unit has a layer")).collect()
    }

    /// The cost of a layer and the next as one unit. The output of the first is the input of the next, and is in memory
    /// once.
    fn before(self, next: Self) -> Self {
        Self {
            parameters: self.parameters + next.parameters,
            optimizer: self.optimizer + next.optimizer,
            activations: (self.activations + next.activations).saturating_sub(next.input),
            halves: self.halves + next.halves,
            output: next.output,
            ..self.with(&next, |a, b| a + b)
        }
    }

    /// A gather and a reduce-scatter are the two halves of an all-reduce.
    pub(crate) fn seconds(&self, action: Action) -> f64 {
        match action {
            Action::Forward(_) | Action::ForwardOnly(_) | Action::Recompute(_) => self.forward,
            Action::Backward(_) => self.backward,
            Action::BackwardInput(_) => self.backward_input,
            Action::BackwardWeight(_) => self.backward_weight,
            Action::AllReduce => self.all_reduce,
            Action::Gather | Action::ReduceScatter => self.all_reduce / 2.0,
            Action::Update => self.update,
            _ => 0.0,
        }
    }

    /// Of a collective's seconds, those in which the device does not compute.
    pub(crate) fn handling(&self, action: Action) -> f64 {
        if action == Action::AllReduce { self.handling } else { self.handling / 2.0 }
    }
}
// ANCHOR_END: cost

// ANCHOR: weigh
/// The bytes that a stage holds during each of its instructions.
///
/// An instruction holds its results beside its operands, which it frees at its end. A collective holds its operands
/// until its `Wait` or `Update`.
pub(crate) fn weigh(schedule: &Schedule, stage: usize, costs: &[Cost]) -> Vec<Bytes> {
    let in_chunks = schedule.in_chunks(stage);
    let again = |it: &Instruction| match it.action {
        Action::Recompute(i) => Some((it.unit, i)),
        _ => None,
    };
    let recomputed: HashSet<_> = schedule.lists[stage].iter().filter_map(again).collect();
    let mut held = Bytes::default();
    for unit in schedule.units_of(stage) {
        let Cost { parameters, optimizer, .. } = costs[unit];
        let has_chunk = in_chunks.contains(&unit);
        let share = if has_chunk { schedule.replicas } else { 1 };
        held.optimizer += optimizer.div_ceil(share);
        held.parameters += if has_chunk { parameters.div_ceil(share) } else { 0 };
        held.parameters += if schedule.sharded { 0 } else { parameters };
    }
    let arrivals = schedule.arrivals(stage);
    let (mut summed, mut whole) =
        (vec![false; schedule.units()], vec![!schedule.sharded; schedule.units()]);
    let during = schedule.lists[stage].iter().map(|&instruction| {
        let Instruction { unit, action } = instruction;
        let cost = &costs[unit];
        let size = |Message { key: (carries, unit, _), .. }: &Message| match carries {
            Carries::Activations => costs[*unit].input,
            Carries::Gradients => costs[*unit].output,
        };
        let wanted = schedule.message(instruction);
        let taken = wanted.and_then(|wanted| arrivals.get(&wanted.key));
        let received = taken.into_iter().flatten().map(size).sum();
        // An activation that the graph of its own unit keeps is no message.
        let keeps =
            |unit: usize, i| unit >= schedule.first_trained && !recomputed.contains(&(unit, i));
        let input = |i| match unit.checked_sub(1) {
            None => 0,
            Some(it) if schedule.placement[it] == stage && keeps(it, i) => 0,
            Some(_) => cost.input,
        };
        let gradient = if unit > schedule.first_trained { cost.input } else { 0 };
        let output = if schedule.is_last(unit) { 0 } else { cost.output };
        let chunk = cost.parameters.div_ceil(schedule.replicas);
        let [mut makes, mut frees] = [Bytes::default(); 2];
        match action {
            Action::RecvActivation(_) | Action::RecvGradient(_) => makes.messages = received,
            Action::SendActivation(i) if keeps(unit, i) => {}
            Action::SendActivation(_) => frees.messages = output,
            Action::SendGradient(_) => frees.messages = gradient,
            Action::Forward(i) => {
                (makes.activations, frees.messages) = (cost.activations, input(i));
            }
            Action::ForwardOnly(i) if recomputed.contains(&(unit, i)) => {
                // The input is kept, and no message any more.
                held.messages = held.messages.saturating_sub(input(i));
                (makes.activations, makes.messages) = (cost.input, output);
            }
            Action::ForwardOnly(i) => (makes.messages, frees.messages) = (output, input(i)),
            Action::Recompute(_) => {
                (makes.activations, frees.activations) = (cost.activations, cost.input);
            }
            Action::Backward(_) => {
                (makes.gradients, makes.messages) = (cost.parameters, gradient);
                (frees.activations, frees.messages) = (cost.activations, output);
            }
            Action::BackwardInput(_) => {
                (makes.activations, makes.messages) = (cost.halves, gradient);
                frees.messages = output;
            }
            Action::BackwardWeight(_) => {
                makes.gradients = cost.parameters;
                frees.activations = cost.activations + cost.halves;
            }
            Action::Gather => makes.parameters = cost.parameters,
            // The layers take over the memory of the row that arrives. A row from before is freed.
            Action::Wait if std::mem::replace(&mut whole[unit], true) => {
                frees.parameters = cost.parameters;
            }
            Action::Free => {
                whole[unit] = false;
                frees.parameters = cost.parameters;
            }
            Action::Wait | Action::AllReduce => {}
            // The gradients of a unit are joined in a row.
            Action::ReduceScatter => {
                (makes.gradients, frees.gradients) = (cost.parameters, cost.parameters);
            }
            Action::Update if in_chunks.contains(&unit) => {
                held.gradients = held.gradients.saturating_sub(cost.parameters);
                (makes.gradients, frees.gradients) = (chunk, chunk);
            }
            Action::Update => frees.gradients = cost.parameters,
        }
        held = held.with(makes, usize::saturating_add);
        let now = held;
        held = held.with(frees, usize::saturating_sub);
        if action.adds_gradients() && std::mem::replace(&mut summed[unit], true) {
            held.gradients = held.gradients.saturating_sub(cost.parameters);
        }
        now
    });
    during.collect()
}
// ANCHOR_END: weigh

/// The bytes of all tensors that a result was computed from and that its backward pass keeps.
///
/// Tensors that share memory count once, and the weights do not count. Their rounded copies count when layers compute in
/// bf16. An operation may keep more than its operands and its result, which does not count either.
pub fn activations(result: &Tensor, input: &Tensor, weights: &Weights) -> usize {
    // Equal for tensors that share memory.
    let address = |tensor: &Tensor| -> *const Storage { &raw const *tensor.storage_and_layout().0 };
    let mut sizes = HashMap::new();
    // Apart from the input, variables are the anchors of parameters, a number each.
    let computed = result.sorted_nodes().into_iter().filter(|tensor| !tensor.is_variable());
    for tensor in computed.chain([input]) {
        let size = sizes.entry(address(tensor)).or_insert(0);
        *size = size_in_bytes(tensor).max(*size);
    }
    for parameter in &weights.parameters {
        sizes.remove(&address(&parameter.tensor));
    }
    sizes.values().sum()
}

//! The simulator: when every instruction runs, and the bytes that every stage holds.
//!
//! A stage has two streams. One computes, in the order of the list; a received message is waited for where it stands. The
//! other communicates: a collective starts where it stands in the list, after the collectives before it. An update waits for
//! its sum, and a `Wait` for its gather. A step with measured times and bytes is the same [`Timeline`].

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Refused;
use crate::instructions::{Action, Carries, Instruction, Message, Schedule};

// ANCHOR: timeline
/// One instruction of one stage: its times, in seconds, and the most bytes that the stage holds meanwhile. A message starts
/// when the stage begins to wait.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the lines above explain the fields")]
pub struct Span {
    pub stage: usize,
    #[serde(flatten)]
    pub instruction: Instruction,
    pub start: f64,
    pub end: f64,
    pub held: Bytes,
}

/// The spans of all stages. The spans of one stage are in the order of its list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the line above explains the fields")]
pub struct Timeline {
    pub stages: usize,
    pub spans: Vec<Span>,
}

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

    /// The largest error of these bytes as a prediction of `measured` bytes, over all kinds, as a share of the measured bytes.
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
// ANCHOR_END: timeline

// ANCHOR: metrics
impl Timeline {
    /// Joins the spans that each stage measured. The clocks of all stages must agree.
    pub fn joined(stages: impl IntoIterator<Item = Vec<Span>>) -> Self {
        let stages: Vec<Vec<Span>> = stages.into_iter().collect();
        Self { stages: stages.len(), spans: stages.concat() }
    }

    /// The spans of one stage, in order.
    pub fn of_stage(&self, stage: usize) -> impl Iterator<Item = &Span> {
        self.spans.iter().filter(move |span| span.stage == stage)
    }

    /// The start of the first span in seconds; 0 without spans.
    pub fn start(&self) -> f64 {
        self.spans.iter().map(|span| span.start).reduce(f64::min).unwrap_or(0.0)
    }

    /// Seconds from the start of the first span to the end of the last.
    pub fn makespan(&self) -> f64 {
        self.spans.iter().map(|span| span.end).reduce(f64::max).unwrap_or(0.0) - self.start()
    }

    /// Seconds in which a stage computes.
    pub fn busy(&self, stage: usize) -> f64 {
        let computing = self.of_stage(stage).filter(|span| span.instruction.action.computes());
        computing.map(|span| span.end - span.start).sum()
    }

    /// The part of all devices' time in which they do not compute, from 0 to 1.
    pub fn bubble(&self) -> f64 {
        let time = self.stages as f64 * self.makespan();
        let busy: f64 = (0..self.stages).map(|stage| self.busy(stage)).sum();
        if time > 0.0 { 1.0 - busy / time } else { 0.0 }
    }

    /// The most bytes of each kind that a stage holds at one time. The kinds may have their peaks at different times.
    pub fn peak(&self, stage: usize) -> Bytes {
        peaks(self.of_stage(stage)).0
    }

    /// The most bytes of all kinds together that a stage holds at one time.
    pub fn peak_total(&self, stage: usize) -> usize {
        peaks(self.of_stage(stage)).1
    }
}

/// The most bytes of each kind, and of all kinds together, during any of the spans.
pub(crate) fn peaks<'a>(spans: impl IntoIterator<Item = &'a Span>) -> (Bytes, usize) {
    spans.into_iter().fold(
        Default::default(),
        |(peak, total): (Bytes, usize), Span { held, .. }| {
            (peak.with(*held, usize::max), total.max(held.total()))
        },
    )
}
// ANCHOR_END: metrics

// ANCHOR: cost
/// The cost of a unit: seconds for one micro-batch in each pass, and once a step for the sum over replicas and the update;
/// and bytes.
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
    /// In units of time instead of seconds: a forward pass takes one, and so does each half of a backward pass. In units of
    /// activations instead of bytes: the peak of a stage is the number of micro-batches that the stage keeps.
    pub const UNITS: Self = Self {
        forward: 1.0,
        backward: 2.0,
        backward_input: 1.0,
        backward_weight: 1.0,
        all_reduce: 0.0,
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

    fn times(&mut self) -> [&mut f64; 6] {
        let Self { forward, backward, backward_input, backward_weight, all_reduce, update, .. } =
            self;
        [forward, backward, backward_input, backward_weight, all_reduce, update]
    }

    /// The times of the units of a cut, from those of all layers. Panics when the cut has a layer without a cost.
    pub fn of_parts(layers: &[Self], cut: &[std::ops::Range<usize>]) -> Vec<Self> {
        let add = |sum: Self, layer: &Self| sum.with(layer, |sum, seconds| sum + seconds);
        cut.iter().map(|part| layers[part.clone()].iter().fold(Self::default(), add)).collect()
    }

    /// A gather and a reduce-scatter are the two halves of an all-reduce.
    fn seconds(&self, action: Action) -> f64 {
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
}
// ANCHOR_END: cost

// ANCHOR: simulate
/// Simulates a step of a checked schedule: the spans of all stages, with channels of this capacity.
///
/// `costs` has a cost for each unit. A message between two stages takes `message` seconds. Fails when the number of costs is
/// another, or a time is negative or not finite.
pub(crate) fn simulate(
    schedule: &Schedule,
    capacity: usize,
    costs: &[Cost],
    message: f64,
) -> Result<Timeline, Refused> {
    let (units, found) = (schedule.units(), costs.len());
    if units != found {
        return Err(Refused(format!("costs of {found} units for a schedule of {units}")));
    }
    let mut times = costs.to_vec();
    let times = times.iter_mut().flat_map(Cost::times).map(|seconds| *seconds).chain([message]);
    if let Some(wrong) = times.into_iter().find(|seconds| !seconds.is_finite() || *seconds < 0.0) {
        return Err(Refused(format!("{wrong} s is no time that something takes")));
    }
    let work = |it: Instruction| costs[it.unit].seconds(it.action);
    let mut spans = run(schedule, capacity, message, work)
        .expect("a checked schedule has no deadlock, however long the passes take");
    weigh(schedule, costs, &mut spans);
    Ok(Timeline { stages: schedule.stages(), spans })
}

/// Fills in the bytes that each stage holds during its instructions.
///
/// An instruction holds its results beside its operands, which it frees at its end. A collective holds its operands until its
/// `Wait` or `Update`.
fn weigh(schedule: &Schedule, costs: &[Cost], spans: &mut [Span]) {
    let listed = |it: Instruction| schedule.lists[schedule.placement[it.unit]].contains(&it);
    let has_chunks = |&unit: &usize| {
        schedule.sharded || listed(Instruction { unit, action: Action::ReduceScatter })
    };
    let has_chunks: Vec<bool> = (0..schedule.units()).map(|unit| has_chunks(&unit)).collect();
    let recomputed: HashSet<_> = schedule.lists.iter().flatten().filter_map(recomputed).collect();
    let always = |stage| {
        schedule.units_of(stage).fold(Bytes::default(), |mut held, unit| {
            let share = if has_chunks[unit] { schedule.replicas } else { 1 };
            held.optimizer += costs[unit].optimizer.div_ceil(share);
            if has_chunks[unit] {
                held.parameters += costs[unit].parameters.div_ceil(share);
            }
            if !schedule.sharded {
                held.parameters += costs[unit].parameters;
            }
            held
        })
    };
    let mut held: Vec<Bytes> = (0..schedule.stages()).map(always).collect();
    let arrivals: Vec<_> = (0..schedule.stages()).map(|stage| schedule.arrivals(stage)).collect();
    let (mut summed, mut whole) =
        (vec![false; schedule.units()], vec![!schedule.sharded; schedule.units()]);
    for span in spans {
        let Instruction { unit, action } = span.instruction;
        let (cost, held) = (&costs[unit], &mut held[span.stage]);
        let size = |Message { key: (carries, unit, _), .. }: &Message| match carries {
            Carries::Activations => costs[*unit].input,
            Carries::Gradients => costs[*unit].output,
        };
        let wanted = schedule.message(span.instruction);
        let taken = wanted.and_then(|wanted| arrivals[span.stage].get(&wanted.key));
        let received = taken.into_iter().flatten().map(size).sum();
        // An activation that the graph of its own unit keeps is no message.
        let keeps =
            |unit: usize, i| unit >= schedule.first_trained && !recomputed.contains(&(unit, i));
        let input = |i| match unit.checked_sub(1) {
            None => 0,
            Some(it) if schedule.placement[it] == span.stage && keeps(it, i) => 0,
            Some(_) => cost.input,
        };
        let gradient = if unit > schedule.first_trained { cost.input } else { 0 };
        let output = if schedule.is_last(unit) { 0 } else { cost.output };
        let parameters = |parameters| Bytes { parameters, ..Bytes::default() };
        let gradients = |gradients, messages| Bytes { gradients, messages, ..Bytes::default() };
        let activations =
            |activations, messages| Bytes { activations, messages, ..Bytes::default() };
        let messages = |messages| Bytes { messages, ..Bytes::default() };
        let chunk = cost.parameters.div_ceil(schedule.replicas);
        let none = Bytes::default();
        let (makes, frees) = match action {
            Action::RecvActivation(_) | Action::RecvGradient(_) => (messages(received), none),
            Action::SendActivation(i) if keeps(unit, i) => (none, none),
            Action::SendActivation(_) => (none, messages(output)),
            Action::SendGradient(_) => (none, messages(gradient)),
            Action::Forward(i) => (activations(cost.activations, 0), messages(input(i))),
            Action::ForwardOnly(i) if recomputed.contains(&(unit, i)) => {
                // The input is kept, and no message any more.
                *held = held.with(messages(input(i)), usize::saturating_sub);
                (activations(cost.input, output), none)
            }
            Action::ForwardOnly(i) => (messages(output), messages(input(i))),
            Action::Recompute(_) => (activations(cost.activations, 0), activations(cost.input, 0)),
            Action::Backward(_) => {
                (gradients(cost.parameters, gradient), activations(cost.activations, output))
            }
            Action::BackwardInput(_) => (activations(cost.halves, gradient), messages(output)),
            Action::BackwardWeight(_) => {
                (gradients(cost.parameters, 0), activations(cost.activations + cost.halves, 0))
            }
            Action::Gather => (parameters(cost.parameters), none),
            // What arrives is copied to the layers.
            Action::Wait if !std::mem::replace(&mut whole[unit], true) => {
                (parameters(cost.parameters), parameters(cost.parameters))
            }
            Action::Wait => (none, parameters(cost.parameters)),
            Action::Free => {
                whole[unit] = false;
                (none, parameters(cost.parameters))
            }
            Action::AllReduce => (none, none),
            // The gradients of a unit are joined in a row.
            Action::ReduceScatter => (gradients(cost.parameters, 0), gradients(cost.parameters, 0)),
            Action::Update if has_chunks[unit] => {
                *held = held.with(gradients(cost.parameters, 0), usize::saturating_sub);
                (gradients(chunk, 0), gradients(chunk, 0))
            }
            Action::Update => (none, gradients(cost.parameters, 0)),
        };
        *held = held.with(makes, usize::saturating_add);
        span.held = *held;
        *held = held.with(frees, usize::saturating_sub);
        if action.adds_gradients() && std::mem::replace(&mut summed[unit], true) {
            held.gradients = held.gradients.saturating_sub(cost.parameters);
        }
    }
}

/// The unit and the micro-batch of a recomputation.
fn recomputed(it: &Instruction) -> Option<(usize, usize)> {
    match it.action {
        Action::Recompute(i) => Some((it.unit, i)),
        _ => None,
    }
}
// ANCHOR_END: simulate

// ANCHOR: run
/// The number of collectives of a rank that may wait for their turn on the second thread. With more, the rank waits.
pub const QUEUE: usize = 4;

/// One instruction of a schedule, and its index in the list of its stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the line above explains the fields")]
pub struct Step {
    pub stage: usize,
    pub position: usize,
    pub instruction: Instruction,
}

impl fmt::Display for Step {
    /// `stage 1, instruction 4, Forward(2)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, position, instruction } = self;
        write!(f, "stage {stage}, instruction {position}, {instruction}")
    }
}

/// An instruction that waits for another stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the line above explains the fields")]
pub struct Wait {
    pub step: Step,
    pub on: usize,
}

/// One channel. The n-th entry of each list belongs to the n-th message.
#[derive(Default)]
struct Traffic {
    /// With capacity 0, the times at which the sender offers a message. With another capacity, the times of arrival.
    arrives: Vec<f64>,
    /// The times at which the receiver has the message, and its place in the channel is free.
    taken: Vec<f64>,
    /// The number of messages that the sender is done with.
    sent: usize,
}

impl Traffic {
    /// The time at which a stage that is ready at `now` has sent its next message, or `None` if the stage has to wait.
    fn send(&mut self, now: f64, capacity: usize, seconds: f64) -> Option<f64> {
        let mut done = now;
        if capacity == 0 {
            if self.arrives.len() == self.sent {
                self.arrives.push(now);
            }
            done = *self.taken.get(self.sent)?;
        } else {
            if let Some(in_the_way) = self.sent.checked_sub(capacity) {
                done = now.max(*self.taken.get(in_the_way)?);
            }
            // A channel carries one message at a time.
            let leaves = self.arrives.last().map_or(done, |before| done.max(*before));
            self.arrives.push(leaves + seconds);
        }
        self.sent += 1;
        Some(done)
    }

    /// The time at which the stage has received its next message, or `None` if the stage has to wait.
    fn receive(&mut self, now: f64, capacity: usize, seconds: f64) -> Option<f64> {
        let there = now.max(*self.arrives.get(self.taken.len())?);
        self.taken.push(if capacity == 0 { there + seconds } else { there });
        self.taken.last().copied()
    }
}

/// Executes a schedule without a device: the spans of all stages in stage order, or the stages that wait when no stage
/// can go on. Time starts at 0. A message takes `message` seconds, and another instruction takes `work` seconds.
///
/// Each stage has a clock of its own, and goes on until it waits for another stage. The result does not depend on the order
/// of the stages' turns. All replicas do the same at the same time.
pub(crate) fn run(
    schedule: &Schedule,
    capacity: usize,
    message: f64,
    work: impl Fn(Instruction) -> f64,
) -> Result<Vec<Span>, Vec<Wait>> {
    let mut channels = BTreeMap::<_, Traffic>::new();
    let mut spans: Vec<Vec<Span>> = vec![Vec::new(); schedule.stages()];
    let mut clocks = vec![0.0f64; schedule.stages()];
    // The starts of the collectives of each stage, and the end of the last one; the ends of sums and gathers, by unit.
    let mut starts: Vec<Vec<f64>> = vec![Vec::new(); schedule.stages()];
    let mut streams = vec![0.0f64; schedule.stages()];
    let mut ends = BTreeMap::<(usize, bool), f64>::new();
    loop {
        let (mut progress, mut waiting) = (false, Vec::new());
        for (stage, (list, done)) in schedule.lists.iter().zip(&mut spans).enumerate() {
            while let Some(&instruction) = list.get(done.len()) {
                let (mut start, Instruction { unit, action }) = (clocks[stage], instruction);
                let end_of = |gathers| ends.get(&(unit, gathers)).copied().unwrap_or(0.0);
                let (end, on) = match (action, schedule.message(instruction)) {
                    (_, Some(it)) => {
                        let traffic = channels.entry(it.channel()).or_default();
                        match it.sends {
                            true => (traffic.send(start, capacity, message), it.to),
                            false => (traffic.receive(start, capacity, message), it.from),
                        }
                    }
                    _ if action.is_collective() => {
                        // The stage goes on meanwhile, unless too many collectives wait for their turn.
                        let waits_for = starts[stage].len().checked_sub(QUEUE);
                        let room = waits_for.map_or(start, |before| starts[stage][before]);
                        clocks[stage] = start.max(room);
                        start = clocks[stage].max(streams[stage]);
                        starts[stage].push(start);
                        streams[stage] = start + work(instruction);
                        ends.insert((unit, action == Action::Gather), streams[stage]);
                        (Some(streams[stage]), stage)
                    }
                    (Action::Wait, _) => (Some(start.max(end_of(true))), stage),
                    (Action::Update, _) => {
                        start = start.max(end_of(false));
                        (Some(start + work(instruction)), stage)
                    }
                    _ => (Some(start + work(instruction)), stage),
                };
                let Some(end) = end else {
                    let step = Step { stage, position: done.len(), instruction };
                    waiting.push(Wait { step, on });
                    break;
                };
                if !action.is_collective() {
                    clocks[stage] = end;
                }
                done.push(Span { stage, instruction, start, end, held: Bytes::default() });
                progress = true;
            }
        }
        if waiting.is_empty() {
            return Ok(spans.concat());
        }
        // A stage computes before it offers a message, so an offer never comes without progress.
        if !progress {
            return Err(waiting);
        }
    }
}
// ANCHOR_END: run

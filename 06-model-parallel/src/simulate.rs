//! The simulator: when every instruction runs. [`bytes`](super::bytes) adds the bytes that every stage holds.
//!
//! A stage has two streams. One computes, in the order of the list; a received message is waited for where it stands.
//! The other communicates: a collective starts where it stands in the list, after the collectives before it. An update
//! waits for its sum, and a `Wait` for its gather. A step with measured times and bytes is the same [`Timeline`].

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Refused;
use crate::bytes::{Bytes, Cost, weigh};
use crate::instructions::{Action, Instruction, Schedule};

// ANCHOR: timeline
/// One instruction of one stage: its times, in seconds, and the most bytes that the stage holds meanwhile. A message
/// starts when the stage begins to wait.
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
// ANCHOR_END: timeline

// ANCHOR: metrics
impl Timeline {
    /// Joins the spans that each stage measured. The clocks of all stages must agree.
    pub fn joined(stages: impl IntoIterator<Item = Vec<Span>>) -> Self {
        let stages: Vec<Vec<Span>> = stages.into_iter().collect();
        Self { stages: stages.len(), spans: stages.concat() }
    }

    /// The step in the middle by this number, without the first step if there are more. The first step uses memory
    /// that the system has not provided yet.
    pub fn median(steps: &[Self], by: impl Fn(&Self) -> f64) -> Option<&Self> {
        let mut steps: Vec<&Self> = steps.iter().skip((steps.len() > 1).into()).collect();
        steps.sort_by(|a, b| by(a).total_cmp(&by(b)));
        steps.get(steps.len() / 2).copied()
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

    /// The bytes that a stage holds, without those that it sends.
    pub fn held(&self, stage: usize) -> Held {
        Held::of(self.of_stage(stage))
    }
}

/// The bytes that a device holds in training, and those that it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The most bytes of each kind at one time. The kinds may have their peaks at different times. Activations are the
    /// tensors that the computation graph holds; operations may keep more.
    #[serde(flatten)]
    pub peak: Bytes,
    /// The most bytes of all kinds together at one time.
    pub total: usize,
    /// The bytes of activations and gradients that the device sends in a step.
    pub sent: usize,
}

impl Held {
    /// The most bytes during any of the spans.
    pub(crate) fn of<'a>(spans: impl IntoIterator<Item = &'a Span>) -> Self {
        spans.into_iter().fold(Self::default(), |most, Span { held, .. }| {
            most.max(Self { peak: *held, total: held.total(), sent: 0 })
        })
    }

    /// The larger of each number.
    pub(crate) fn max(self, other: Self) -> Self {
        let peak = self.peak.with(other.peak, usize::max);
        Self { peak, total: self.total.max(other.total), sent: self.sent.max(other.sent) }
    }
}
// ANCHOR_END: metrics

// ANCHOR: simulate
/// Simulates a step of a checked schedule: the spans of all stages, with channels of this capacity.
///
/// `costs` has a cost for each unit. A message between two stages takes `message` seconds. Fails when the number of
/// costs is another, or a time is negative or not finite.
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
    let mut spans = run(schedule, capacity, costs, message)
        .expect("a checked schedule has no deadlock, however long the passes take");
    let held = (0..schedule.stages()).flat_map(|stage| weigh(schedule, stage, costs));
    spans.iter_mut().zip(held).for_each(|(span, held)| span.held = held);
    Ok(Timeline { stages: schedule.stages(), spans })
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
/// can go on. Time starts at 0. A message takes `message` seconds.
///
/// Each stage has a clock of its own, and goes on until it waits for another stage. The result does not depend on the
/// order of the stages' turns. All replicas do the same at the same time.
pub(crate) fn run(
    schedule: &Schedule,
    capacity: usize,
    costs: &[Cost],
    message: f64,
) -> Result<Vec<Span>, Vec<Wait>> {
    let mut channels = BTreeMap::<_, Traffic>::new();
    let mut spans: Vec<Vec<Span>> = vec![Vec::new(); schedule.stages()];
    let mut clocks = vec![0.0f64; schedule.stages()];
    loop {
        let (mut progress, mut waiting) = (false, Vec::new());
        for (stage, (list, done)) in schedule.lists.iter().zip(&mut spans).enumerate() {
            while let Some(&instruction) = list.get(done.len()) {
                let (mut start, Instruction { unit, action }) = (clocks[stage], instruction);
                let seconds = costs[unit].seconds(action);
                let end_of = |collectives: &[Action]| {
                    let is_it =
                        |it: &Instruction| it.unit == unit && collectives.contains(&it.action);
                    done.iter().rfind(|it| is_it(&it.instruction)).map_or(0.0, |it| it.end)
                };
                let (end, on) = match (action, schedule.message(instruction)) {
                    (_, Some(it)) => {
                        let traffic = channels.entry(it.channel()).or_default();
                        match it.sends {
                            true => (traffic.send(start, capacity, message), it.to),
                            false => (traffic.receive(start, capacity, message), it.from),
                        }
                    }
                    _ if action.is_collective() => {
                        let is_earlier = |it: &&Span| it.instruction.action.is_collective();
                        let mut earlier = done.iter().rev().filter(is_earlier).peekable();
                        let stream = earlier.peek().map_or(0.0, |it| it.end);
                        // The stage goes on meanwhile, unless too many collectives wait for their turn.
                        let room = earlier.nth(QUEUE - 1).map_or(start, |it| it.start);
                        clocks[stage] = start.max(room);
                        start = clocks[stage].max(stream);
                        clocks[stage] += costs[unit].handling(action);
                        (Some(start + seconds), stage)
                    }
                    (Action::Wait, _) => (Some(start.max(end_of(&[Action::Gather]))), stage),
                    (Action::Update, _) => {
                        start = start.max(end_of(&[Action::AllReduce, Action::ReduceScatter]));
                        (Some(start + seconds), stage)
                    }
                    _ => (Some(start + seconds), stage),
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

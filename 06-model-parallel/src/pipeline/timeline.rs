//! The times of all instructions: predicted by [`predict`](super::predict()), or measured by a
//! [worker](super::worker). The *bubble* of a timeline is the part of all devices' time in which they do not compute.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::schedule::{Action, Instruction, Schedule};

// ANCHOR: timeline
/// One instruction of one stage with its times, in seconds. A message starts when the stage begins to wait.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the line above explains the fields")]
pub struct Span {
    pub stage: usize,
    #[serde(flatten)]
    pub instruction: Instruction,
    pub start: f64,
    pub end: f64,
}

/// The spans of all stages. The spans of one stage are in order and do not overlap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the line above explains the fields")]
pub struct Timeline {
    pub stages: usize,
    pub spans: Vec<Span>,
}
// ANCHOR_END: timeline

// ANCHOR: kept
/// The number of micro-batches that a stage keeps tensors of. With several chunks, each chunk counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Micro-batches after their forward and before their backward pass: the stage keeps their activations.
    pub activations: usize,
    /// These micro-batches, and those between the two halves of their backward pass.
    pub both: usize,
}

impl Kept {
    /// The micro-batches that a stage keeps after each of its actions. An activation is alive from the start of its
    /// forward pass to the end of its backward pass.
    pub fn after_each(actions: impl Iterator<Item = Action>) -> impl Iterator<Item = Self> {
        actions.scan(Self::default(), |kept, action| {
            let (activations, both) = match action {
                Action::Forward(_) => (1, 1),
                Action::Backward(_) => (-1, -1),
                Action::BackwardInput(_) => (-1, 0),
                Action::BackwardWeight(_) => (0, -1),
                _ => (0, 0),
            };
            // An unchecked list may go backward too often.
            kept.activations = kept.activations.saturating_add_signed(activations);
            kept.both = kept.both.saturating_add_signed(both);
            Some(*kept)
        })
    }

    pub(super) fn max(self, other: Self) -> Self {
        let activations = self.activations.max(other.activations);
        Self { activations, both: self.both.max(other.both) }
    }
}
// ANCHOR_END: kept

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
}
// ANCHOR_END: metrics

// ANCHOR: run
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
/// can go on. Time starts at 0. A message takes `message` seconds, and an instruction that computes takes `work` seconds.
///
/// Each stage has a clock of its own, and goes on until it waits for another stage. The result does not depend on the order
/// of the stages' turns.
pub(super) fn run(
    schedule: &Schedule,
    capacity: usize,
    message: f64,
    work: impl Fn(usize, Instruction) -> f64,
) -> Result<Vec<Span>, Vec<Wait>> {
    let mut channels = BTreeMap::<_, Traffic>::new();
    let mut spans: Vec<Vec<Span>> = vec![Vec::new(); schedule.stages()];
    loop {
        let (mut progress, mut waiting) = (false, Vec::new());
        for (stage, (list, done)) in schedule.instructions.iter().zip(&mut spans).enumerate() {
            while let Some(&instruction) = list.get(done.len()) {
                let start = done.last().map_or(0.0, |span| span.end);
                let (end, on) = match schedule.message(stage, instruction) {
                    None => (Some(start + work(stage, instruction)), stage),
                    Some(it) => {
                        let traffic = channels.entry(it.channel()).or_default();
                        match it.sends {
                            true => (traffic.send(start, capacity, message), it.to),
                            false => (traffic.receive(start, capacity, message), it.from),
                        }
                    }
                };
                let Some(end) = end else {
                    let step = Step { stage, position: done.len(), instruction };
                    waiting.push(Wait { step, on });
                    break;
                };
                done.push(Span { stage, instruction, start, end });
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

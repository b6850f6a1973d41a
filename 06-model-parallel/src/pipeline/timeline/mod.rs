//! What every stage did when: predicted by [`predict`](crate::pipeline::predict()), or measured.
//!
//! From it comes what a pipeline is judged by. The *bubble* is the part of the time in which devices that
//! could have worked did not:
//!
//! ```text
//! bubble = 1 − (time in which stages computed, added up) / (number of stages × time from start to end)
//! ```

mod drawing;
pub mod gantt;

use serde::{Deserialize, Serialize};

use super::memory::Kept;
use super::schedule::Instruction;

/// One instruction of one stage, and when. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// The stage that did it.
    pub stage: usize,
    /// What it did.
    #[serde(flatten)]
    pub instruction: Instruction,
    /// When it began; of a message: when the stage began to wait.
    pub start: f64,
    /// When it was done.
    pub end: f64,
}

/// What a stage keeps from some time on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Since when, in seconds.
    pub time: f64,
    /// What is kept.
    #[serde(flatten)]
    pub kept: Kept,
}

/// What every stage did when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// How many stages there are.
    pub stages: usize,
    /// What they did: of each stage, one thing after the other.
    pub spans: Vec<Span>,
}

impl Timeline {
    /// What several stages measured, each for itself, as one timeline. Their clocks have to agree.
    pub fn joined(parts: impl IntoIterator<Item = Self>) -> Self {
        let nothing = Self { stages: 0, spans: Vec::new() };
        parts.into_iter().fold(nothing, |mut all, part| {
            all.stages = all.stages.max(part.stages);
            all.spans.extend(part.spans);
            all
        })
    }

    /// The spans of one stage, in order.
    pub fn of_stage(&self, stage: usize) -> impl Iterator<Item = &Span> {
        self.spans.iter().filter(move |span| span.stage == stage)
    }

    /// When the first stage began, in seconds; 0 if nothing was done.
    pub fn start(&self) -> f64 {
        self.spans.iter().map(|span| span.start).reduce(f64::min).unwrap_or(0.0)
    }

    /// Seconds from the start of the first stage to the end of the last.
    pub fn makespan(&self) -> f64 {
        self.spans.iter().map(|span| span.end).reduce(f64::max).unwrap_or(0.0) - self.start()
    }

    /// Seconds in which a stage computed: without sending, receiving and waiting.
    pub fn busy(&self, stage: usize) -> f64 {
        computed(self.of_stage(stage)).sum()
    }

    /// The part of all devices' time in which they did not compute, from 0 to 1.
    pub fn bubble(&self) -> f64 {
        let time = self.stages as f64 * self.makespan();
        let busy: f64 = computed(&self.spans).sum();
        if time > 0.0 { 1.0 - busy / time } else { 0.0 }
    }

    /// What a stage keeps over time: one entry for each change, the last with nothing.
    pub fn kept(&self, stage: usize) -> Vec<Moment> {
        let mut kept = Kept::default();
        let mut moments = Vec::new();
        for span in self.of_stage(stage) {
            let after = kept.after(span.instruction.action);
            if after != kept {
                let grows = after.activations > kept.activations;
                moments
                    .push(Moment { time: if grows { span.start } else { span.end }, kept: after });
                kept = after;
            }
        }
        moments
    }
}

/// Seconds of each of these spans in which a device computed.
fn computed<'a>(spans: impl IntoIterator<Item = &'a Span>) -> impl Iterator<Item = f64> {
    let computing = spans.into_iter().filter(|span| span.instruction.action.computes());
    computing.map(|span| span.end - span.start)
}

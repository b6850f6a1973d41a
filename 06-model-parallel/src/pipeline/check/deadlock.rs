//! Nobody waits for ever.
//!
//! Every stage that waits does so for exactly one other. When all wait that are not done, following who
//! waits for whom must come back to where it has been: that circle is the deadlock.

use super::error::{Error, Step, Wait};
use crate::pipeline::run::{Clock, Waiting, run};
use crate::pipeline::schedule::{Instruction, Schedule};

/// Only the order counts.
struct NoTime;

impl Clock for NoTime {
    fn work(&self, _stage: usize, _instruction: Instruction) -> f64 {
        0.0
    }

    fn message(&self) -> f64 {
        0.0
    }
}

/// How many messages channels have to hold at least, which is at most `capacity`.
pub(super) fn smallest_capacity(schedule: &Schedule, capacity: usize) -> Result<usize, Error> {
    let stuck = |capacity| run(schedule, capacity, &NoTime).err();
    // No channel ever carries more.
    let most = schedule.chunks.saturating_mul(schedule.micro_batches);
    let suffices = match stuck(most) {
        Some(_) => None,
        None => (0..=most).find(|&capacity| stuck(capacity).is_none()),
    };
    match (suffices, stuck(capacity)) {
        (Some(suffices), None) => Ok(suffices),
        (_, waiting) => {
            let circle = circle(schedule, &waiting.unwrap_or_default());
            Err(Error::Deadlock { circle, capacity, suffices })
        }
    }
}

/// Each waits for the next, and the last for the first. The smallest comes first.
fn circle(schedule: &Schedule, waiting: &[Waiting]) -> Vec<Wait> {
    let mut path: Vec<Waiting> = Vec::new();
    let mut next = waiting.first();
    while let Some(&wait) = next {
        if let Some(start) = path.iter().position(|earlier| earlier.stage == wait.stage) {
            path.drain(..start);
            break;
        }
        path.push(wait);
        next = waiting.iter().find(|other| other.stage == wait.on);
    }
    let smallest = path.iter().enumerate().min_by_key(|(_, wait)| wait.stage).map_or(0, |(i, _)| i);
    path.rotate_left(smallest);
    let in_words = |Waiting { stage, position, on }: Waiting| {
        let instruction = schedule.instructions[stage][position];
        Wait { step: Step { stage, position, instruction }, on }
    };
    path.into_iter().map(in_words).collect()
}

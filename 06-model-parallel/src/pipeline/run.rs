//! Execution without a device: every stage does its list, and waits where it has to.
//!
//! Each stage has a clock of its own. A stage goes on for as long as it can; where it has to wait for
//! another, its turn ends. What it waits for settles when it goes on, so the result does not depend on who
//! has the first turn.

use std::collections::BTreeMap;

use super::channel::{Channel, Message};
use super::schedule::{Instruction, Schedule};
use super::timeline::Span;

/// A stage that cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub stage: usize,
    /// Which of its instructions, from 0.
    pub position: usize,
    /// The stage that would have to do something.
    pub on: usize,
}

/// How long things take, in seconds.
pub(super) trait Clock {
    /// A computation of this stage; 0 for anything else.
    fn work(&self, stage: usize, instruction: Instruction) -> f64;

    /// A message on its way.
    fn message(&self) -> f64;
}

/// One channel: the n-th entry of each list belongs to the n-th message.
#[derive(Default)]
struct Traffic {
    /// Since when the sender waits to hand it over (capacity 0).
    offered: Vec<f64>,
    /// When it arrives (other capacities).
    arrives: Vec<f64>,
    /// When the receiver has it: its place in the channel is free.
    taken: Vec<f64>,
    /// How many the sender is done with.
    sent: usize,
}

impl Traffic {
    /// When a stage that comes here at `now` has sent its next message; `None` if it has to wait.
    fn send(&mut self, now: f64, capacity: usize, seconds: f64) -> Option<f64> {
        if capacity == 0 {
            if self.offered.len() == self.sent {
                self.offered.push(now);
            }
            let done = *self.taken.get(self.sent)?;
            self.sent += 1;
            return Some(done);
        }
        let go = match self.sent.checked_sub(capacity) {
            Some(in_the_way) => now.max(*self.taken.get(in_the_way)?),
            None => now,
        };
        // One message after the other is on its way.
        let leaves = self.arrives.last().copied().unwrap_or(go).max(go);
        self.arrives.push(leaves + seconds);
        self.sent += 1;
        Some(go)
    }

    /// When a stage that comes here at `now` has received its next message; `None` if it has to wait.
    fn receive(&mut self, now: f64, capacity: usize, seconds: f64) -> Option<f64> {
        let next = self.taken.len();
        let done = if capacity == 0 {
            now.max(*self.offered.get(next)?) + seconds
        } else {
            now.max(*self.arrives.get(next)?)
        };
        self.taken.push(done);
        Some(done)
    }
}

/// All channels.
struct Channels<'a, C> {
    schedule: &'a Schedule,
    capacity: usize,
    clock: &'a C,
    traffic: BTreeMap<Channel, Traffic>,
}

impl<C: Clock> Channels<'_, C> {
    /// When a message is sent or received by a stage that comes there at `now`; the stage at the other end
    /// if that has to act first.
    fn pass(&mut self, message: Message, now: f64) -> Result<f64, usize> {
        let Self { capacity, clock, .. } = *self;
        let traffic = self.traffic.entry(message.channel).or_default();
        let done = if message.sends {
            traffic.send(now, capacity, clock.message())
        } else {
            traffic.receive(now, capacity, clock.message())
        };
        let on = if message.sends { message.channel.to } else { message.channel.from };
        done.ok_or(on)
    }

    /// When a stage that comes to an instruction at `now` has done it; or for whom it waits.
    fn pass_or_work(
        &mut self,
        stage: usize,
        instruction: Instruction,
        now: f64,
    ) -> Result<f64, usize> {
        match self.schedule.message(stage, instruction) {
            Some(message) => self.pass(message, now),
            None => Ok(now + self.clock.work(stage, instruction)),
        }
    }
}

/// What every stage does when, in stage order; or who waits for whom, when nobody can go on.
///
/// Time starts at 0. Of a schedule that is not known to be sound, messages to nobody are passed over.
pub(super) fn run(
    schedule: &Schedule,
    capacity: usize,
    clock: &impl Clock,
) -> Result<Vec<Span>, Vec<Waiting>> {
    let mut channels = Channels { schedule, capacity, clock, traffic: BTreeMap::new() };
    let mut spans: Vec<Vec<Span>> = vec![Vec::new(); schedule.stages()];
    loop {
        let mut progress = false;
        let mut waiting = Vec::new();
        for (stage, (list, done)) in schedule.instructions.iter().zip(&mut spans).enumerate() {
            while let Some(&instruction) = list.get(done.len()) {
                let start = done.last().map_or(0.0, |span| span.end);
                match channels.pass_or_work(stage, instruction, start) {
                    Ok(end) => {
                        done.push(Span { stage, instruction, start, end });
                        progress = true;
                    }
                    Err(on) => {
                        waiting.push(Waiting { stage, position: done.len(), on });
                        break;
                    }
                }
            }
        }
        if waiting.is_empty() {
            return Ok(spans.concat());
        }
        // What a stage offers to another it has computed before, so an offer never comes without progress.
        if !progress {
            return Err(waiting);
        }
    }
}

//! The laws that every schedule keeps: each stage computes a result before its use, two stages have their messages in one
//! order, and no stage waits for ever.
//!
//! The third law depends on the capacity of the channels. A schedule may be sound with channels that hold one message,
//! and have a deadlock when every send waits for its receiver.

use std::collections::BTreeMap;
use std::iter::successors;

use harness::report::counted;
use itertools::Itertools as _;

use super::schedule::Action::{
    Backward, BackwardInput, BackwardWeight, Forward, RecvActivation, RecvGradient, SendActivation,
    SendGradient, Update,
};
use super::schedule::{Instruction, Message, Schedule, UNBOUNDED};
use super::timeline::{Kept, Step, Wait, run};

// ANCHOR: check
/// A schedule that keeps the laws, with channels of a known capacity. Only [`check`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    schedule: Schedule,
    pub(super) capacity: usize,
    smallest_capacity: usize,
}

impl Checked {
    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The smallest number of messages that a channel must hold.
    pub fn smallest_capacity(&self) -> usize {
        self.smallest_capacity
    }

    /// The largest numbers of micro-batches that each stage keeps at one time, in stage order.
    pub fn peaks(&self) -> Vec<Kept> {
        let peak = |list: &Vec<Instruction>| {
            let actions = list.iter().map(|instruction| instruction.action);
            Kept::after_each(actions).fold(Kept::default(), Kept::max)
        };
        self.schedule.instructions.iter().map(peak).collect()
    }
}

/// Checks a schedule for channels that hold `capacity` messages. Fails with the first law that the schedule breaks, and
/// where: see [`Error`].
pub fn check(schedule: Schedule, capacity: usize) -> Result<Checked, Error> {
    let (stages, chunks) = (schedule.stages(), schedule.chunks);
    let micro_batches = schedule.micro_batches;
    if stages == 0 || chunks == 0 || micro_batches == 0 {
        return Err(Error::Empty { stages, chunks, micro_batches });
    }
    for stage in 0..stages {
        check_stage(&schedule, stage)?;
    }
    check_order_of_messages(&schedule)?;
    let smallest_capacity = smallest_capacity(&schedule, capacity)?;
    Ok(Checked { schedule, capacity, smallest_capacity })
}
// ANCHOR_END: check

// ANCHOR: one_stage
/// Checks that a stage does each of its tasks once, and in order.
fn check_stage(schedule: &Schedule, stage: usize) -> Result<(), Error> {
    let list = &schedule.instructions[stage];
    let step = |position: usize| Step { stage, position, instruction: list[position] };
    // The position at which each task is done.
    let mut done = BTreeMap::new();
    for (position, &instruction) in list.iter().enumerate() {
        if let Some(text) = impossible(schedule, stage, instruction) {
            return Err(Error::NoSuch { step: step(position), text });
        }
        for task in tasks(instruction) {
            if let Some(first) = done.insert(task, position) {
                return Err(Error::Twice { step: step(position), first: step(first) });
            }
        }
    }
    let (chunks, micro_batches) = (0..schedule.chunks, 0..schedule.micro_batches);
    let each = chunks.flat_map(|chunk| micro_batches.clone().map(move |i| (chunk, i)));
    for (first, then, law) in each.flat_map(|(chunk, i)| order(chunk, i)) {
        for missing in [first, then] {
            if !done.contains_key(&missing) && impossible(schedule, stage, missing).is_none() {
                let text = never_done(schedule, stage, missing);
                return Err(Error::Missing { stage, missing, text });
            }
        }
        if let (Some(&needs), Some(&early)) = (done.get(&first), done.get(&then))
            && needs > early
        {
            return Err(Error::TooEarly { step: step(early), needs: step(needs), law });
        }
    }
    Ok(())
}

/// The tasks of an instruction. The task `Backward` is the gradient of the input, and `BackwardWeight` the rest.
fn tasks(Instruction { chunk, action }: Instruction) -> Vec<Instruction> {
    let actions = match action {
        Backward(i) => vec![action, BackwardWeight(i)],
        BackwardInput(i) => vec![Backward(i)],
        _ => vec![action],
    };
    actions.into_iter().map(|action| Instruction { chunk, action }).collect()
}

/// The order of the tasks of a micro-batch: a task, a task that needs the first one, and the law.
fn order(chunk: usize, i: usize) -> [(Instruction, Instruction, &'static str); 10] {
    let here = |action| Instruction { chunk, action };
    let next = |action| Instruction { chunk: chunk + 1, action };
    let sent = "What is sent has to be computed first";
    let arrived = "A stage goes forward with the activation that it has received";
    let kept = "The backward pass uses what the forward pass has kept";
    let gradient = "The backward pass starts from the gradient that the next stage sends";
    let rest = "The weights' gradient uses what the gradient of the input has left";
    let update = "The update comes after the gradients of all micro-batches";
    let last = "The update comes last: the stage before waits for the gradient, and nothing waits for the update";
    let forward = "A chunk goes forward with what the chunk before it has computed";
    let backward = "A chunk's gradient comes from the chunk after it";
    [
        (here(RecvActivation(i)), here(Forward(i)), arrived),
        (here(Forward(i)), here(SendActivation(i)), sent),
        (here(Forward(i)), here(Backward(i)), kept),
        (here(RecvGradient(i)), here(Backward(i)), gradient),
        (here(Backward(i)), here(SendGradient(i)), sent),
        (here(Backward(i)), here(BackwardWeight(i)), rest),
        (here(BackwardWeight(i)), Update.into(), update),
        (here(SendGradient(i)), Update.into(), last),
        (here(Forward(i)), next(Forward(i)), forward),
        (next(Backward(i)), here(Backward(i)), backward),
    ]
}

/// The reason why a stage has no such instruction, or `None` if it has.
fn impossible(schedule: &Schedule, stage: usize, instruction: Instruction) -> Option<String> {
    let Instruction { chunk, action } = instruction;
    let beyond = |what, number, of: usize| {
        (number >= of)
            .then(|| format!("there is no {what} {number}; the last one is {what} {}", of - 1))
    };
    let limit = beyond("chunk", chunk, schedule.chunks).or_else(|| match action.micro_batch() {
        Some(i) => beyond("micro-batch", i, schedule.micro_batches),
        // An update is of all chunks and has chunk 0. A second update is then the same instruction, and is found.
        None => beyond("update of chunk", chunk, 1),
    });
    if limit.is_some() || action.computes() || schedule.message(stage, instruction).is_some() {
        return limit;
    }
    let part = schedule.part(stage, chunk);
    let text = match action {
        SendActivation(_) | RecvGradient(_) if schedule.is_last(part) => {
            "this is the end of the model: its activation goes into the loss, and its gradient begins at the loss"
        }
        RecvActivation(_) | SendGradient(_) if part == 0 => {
            "this is the beginning of the model: its input is the data, which no other stage sends, and which needs \
             no gradient"
        }
        _ => "the neighbouring chunk is on the same stage, without a message",
    };
    Some(text.to_owned())
}

/// The consequence of a task that is never done.
fn never_done(schedule: &Schedule, stage: usize, task: Instruction) -> String {
    match schedule.message(stage, task) {
        Some(Message { sends: true, to, .. }) => format!(", and stage {to} waits for it"),
        Some(Message { from, .. }) => format!(", and stage {from} sends it"),
        None => ". On every stage, every micro-batch goes forward once and backward once, in one piece or in both \
                 halves, and a step ends with the update"
            .to_owned(),
    }
}
// ANCHOR_END: one_stage

// ANCHOR: all_stages
/// Checks that both ends of every channel have the same messages in the same order. Each stage does everything once, so
/// both ends have the same number of messages.
fn check_order_of_messages(schedule: &Schedule) -> Result<(), Error> {
    let mut channels = BTreeMap::<_, [Vec<(Message, Step)>; 2]>::new();
    for (stage, list) in schedule.instructions.iter().enumerate() {
        for (position, &instruction) in list.iter().enumerate() {
            let Some(message) = schedule.message(stage, instruction) else { continue };
            let ends = channels.entry(message.channel()).or_default();
            let step = Step { stage, position, instruction };
            ends[usize::from(!message.sends)].push((message, step));
        }
    }
    for [sends, receives] in channels.into_values() {
        for ((sent, sending), (expected, receiving)) in sends.into_iter().zip(receives) {
            if sent.key != expected.key {
                return Err(Error::Order { sending, receiving });
            }
        }
    }
    Ok(())
}

/// The smallest number of messages that channels must hold, which is at most `capacity`.
fn smallest_capacity(schedule: &Schedule, capacity: usize) -> Result<usize, Error> {
    // The order counts, and the times do not.
    let stuck = |capacity| run(schedule, capacity, 0.0, |_, _| 0.0).err();
    let enough = |&capacity: &usize| stuck(capacity).is_none();
    // No channel ever carries more messages.
    let most = schedule.chunks * schedule.micro_batches;
    let suffices = if enough(&most) { (0..=most).find(enough) } else { None };
    let Some(waiting) = stuck(capacity) else { return Ok(suffices.unwrap_or(capacity)) };
    let messages = |capacity| match capacity {
        UNBOUNDED => "any number of messages".to_owned(),
        _ => counted(capacity, "message"),
    };
    let circle = circle(&waiting);
    let wait = |Wait { step: Step { stage, position, instruction }, on }: &Wait| {
        let does = if instruction.action.sends() { "receive" } else { "send" };
        format!(
            "stage {stage} (instruction {position}, {instruction}) waits for stage {on} to {does}"
        )
    };
    let waits = circle.iter().map(wait).join(", ");
    let remedy = match suffices {
        Some(suffices) => format!("Channels that hold {} would do", messages(suffices)),
        None => "No channel helps, however much it holds: each needs what another has yet to send"
            .to_owned(),
    };
    let text = format!("{}: {waits}. {remedy}", messages(capacity));
    Err(Error::Deadlock { circle, text })
}

/// The circle of a deadlock, from its first stage: each stage waits for the next one, and the last for the first.
fn circle(waiting: &[Wait]) -> Vec<Wait> {
    let next = |wait: &Wait| waiting.iter().find(|other| other.step.stage == wait.on).copied();
    // Every stage that is not done waits for exactly one stage, so after so many steps a path is in the circle.
    let path = successors(waiting.first().copied(), next).skip(waiting.len());
    let first = path.take(waiting.len()).min_by_key(|wait| wait.step.stage);
    let others = successors(first, next).skip(1).take_while(|wait| Some(*wait) != first);
    first.into_iter().chain(others).collect()
}
// ANCHOR_END: all_stages

// ANCHOR: errors
/// The law that a schedule breaks. `text` completes the message. Stages, instructions, micro-batches and chunks are
/// counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages explain the variants")]
pub enum Error {
    #[error(
        "stages: {stages}, chunks on each: {chunks}, micro-batches: {micro_batches}; a schedule has at least \
         one of each"
    )]
    Empty { stages: usize, chunks: usize, micro_batches: usize },
    #[error("{step}: {text}")]
    NoSuch { step: Step, text: String },
    #[error(
        "{step}: instruction {}, {}, has done that already. Every micro-batch goes forward once and backward \
         once, every message is sent once, and there is one update", first.position, first.instruction
    )]
    Twice { step: Step, first: Step },
    #[error("stage {stage} never does {missing}{text}")]
    Missing { stage: usize, missing: Instruction, text: String },
    #[error(
        "{step}: it needs {} first, and that comes later, as instruction {}. {law}", needs.instruction, needs.position
    )]
    TooEarly { step: Step, needs: Step, law: &'static str },
    #[error(
        "{receiving}: what arrives is {}, instruction {} of stage {}. What is sent first arrives first",
        sending.instruction, sending.position, sending.stage
    )]
    Order { sending: Step, receiving: Step },
    #[error("deadlock with channels that hold {text}")]
    Deadlock { circle: Vec<Wait>, text: String },
}
// ANCHOR_END: errors

//! The laws that every schedule keeps.
//!
//! | law | found in |
//! | --- | --- |
//! | of one stage: a result is computed before its use, every pass happens once, and the update comes last | its list |
//! | of two stages: messages arrive in the order in which the receiver expects them | both ends of a channel |
//! | of all stages: no stage waits for ever | an execution without a device |
//!
//! The third law depends on the capacity of the channels. A schedule may be sound with channels that hold one message,
//! and have a deadlock when every send waits for its receiver.

use std::collections::BTreeMap;

use harness::report::counted;

use super::schedule::{Action, Channel, Instruction, Message, Place, Schedule, UNBOUNDED};
use super::timeline::{Peak, Step, Wait, run};

// ANCHOR: check
/// A schedule that keeps the laws, with channels of a known capacity. Only [`check`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    schedule: Schedule,
    capacity: usize,
    smallest_capacity: usize,
}

impl Checked {
    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The number of messages that a channel holds.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The smallest number of messages that a channel must hold.
    pub fn smallest_capacity(&self) -> usize {
        self.smallest_capacity
    }

    /// The largest numbers of micro-batches that each stage keeps, in stage order.
    pub fn peaks(&self) -> Vec<Peak> {
        self.schedule.instructions.iter().map(|list| Peak::of(list)).collect()
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
/// Checks the laws of one stage: each instruction in order, and then that none is missing.
fn check_stage(schedule: &Schedule, stage: usize) -> Result<(), Error> {
    let list = &schedule.instructions[stage];
    let mut done = BTreeMap::new();
    for (position, &instruction) in list.iter().enumerate() {
        let step = Step { stage, position, instruction };
        exists(schedule, step)?;
        for same in [Some(instruction), other_form(instruction)].into_iter().flatten() {
            if let Some(&first) = done.get(&same) {
                return Err(Error::Twice { step, first, done: same });
            }
        }
        for (needs, law) in needs(schedule, stage, instruction) {
            if !needs.iter().any(|needed| done.contains_key(needed)) {
                let later = needs.iter().find_map(|needed| {
                    Some((*needed, list.iter().position(|other| other == needed)?))
                });
                let (needs, text) = match later {
                    Some((needed, at)) => {
                        (needed, format!("comes later, as instruction {at}. {law}"))
                    }
                    None => (needs[0], format!("is never done. {law}")),
                };
                return Err(Error::TooEarly { step, needs, text });
            }
        }
        let update = Instruction::from(Action::Update);
        if let (Action::Backward(_) | Action::BackwardWeight(_), Some(&position)) =
            (instruction.action, done.get(&update))
        {
            let update = Step { stage, position, instruction: update };
            return Err(Error::EarlyUpdate { update, late: step });
        }
        done.insert(instruction, position);
    }
    nothing_missing(schedule, stage, &done)
}

/// Checks that the micro-batch and the chunk of an instruction exist, and the other stage of a message.
fn exists(schedule: &Schedule, step: Step) -> Result<(), Error> {
    let Step { stage, instruction: Instruction { chunk, action }, .. } = step;
    let of_chunk = ("chunk", chunk, schedule.chunks);
    let limits = match action.micro_batch() {
        Some(i) => [("micro-batch", i, schedule.micro_batches), of_chunk],
        // An update is of all chunks and has chunk 0. A second update is then the same instruction, and is found.
        None => [of_chunk, ("update of chunk", chunk, 1)],
    };
    if let Some((what, number, of)) = limits.into_iter().find(|(_, number, of)| number >= of) {
        return Err(Error::NoSuch { step, what, number, of });
    }
    if action.computes() || schedule.message(stage, step.instruction).is_some() {
        return Ok(());
    }
    let (before, after) =
        (schedule.before(Place { stage, chunk }), schedule.after(Place { stage, chunk }));
    let text = match action {
        Action::SendActivation(_) if after.is_none() => {
            "this is the end of the model: its activation goes into the loss, and to no other stage"
        }
        Action::RecvGradient(_) if after.is_none() => {
            "this is the end of the model: its gradient begins at the loss"
        }
        Action::SendGradient(_) if before.is_none() => {
            "this is the beginning of the model: nobody needs the gradient of the data"
        }
        Action::RecvActivation(_) if before.is_none() => {
            "this is the beginning of the model: its input is the data, which no other stage sends"
        }
        _ => "the neighbouring chunk is on the same stage, without a message",
    };
    Err(Error::NobodyThere { step, text })
}

/// The other form of a backward pass: a micro-batch goes backward in one piece or in two halves.
fn other_form(Instruction { chunk, action }: Instruction) -> Option<Instruction> {
    let action = match action {
        Action::Backward(i) => Action::BackwardInput(i),
        Action::BackwardInput(i) => Action::Backward(i),
        _ => return None,
    };
    Some(Instruction { chunk, action })
}

/// The instructions that must come before an instruction: one of each list, with the law.
fn needs(
    schedule: &Schedule,
    stage: usize,
    Instruction { chunk, action }: Instruction,
) -> Vec<(Vec<Instruction>, &'static str)> {
    let place = Place { stage, chunk };
    let here = |action| vec![Instruction { chunk, action }];
    let backward = |chunk, i| {
        let forms = [Action::Backward(i), Action::BackwardInput(i)];
        forms.map(|action| Instruction { chunk, action }).to_vec()
    };
    match action {
        Action::Forward(i) => match schedule.before(place) {
            None => vec![],
            Some(before) if before.stage == stage => vec![(
                vec![Instruction { chunk: before.chunk, action }],
                "A chunk goes forward with what the chunk before it has computed",
            )],
            Some(_) => vec![(
                here(Action::RecvActivation(i)),
                "A stage goes forward with the activation that it has received",
            )],
        },
        Action::Backward(i) | Action::BackwardInput(i) => {
            let law = "The backward pass uses what the forward pass has kept";
            let forward = (here(Action::Forward(i)), law);
            match schedule.after(place) {
                None => vec![forward],
                Some(after) if after.stage == stage => {
                    let law = "A chunk's gradient comes from the chunk after it";
                    vec![forward, (backward(after.chunk, i), law)]
                }
                Some(_) => {
                    let law =
                        "The backward pass starts from the gradient that the next stage sends";
                    vec![forward, (here(Action::RecvGradient(i)), law)]
                }
            }
        }
        Action::BackwardWeight(i) => vec![(
            here(Action::BackwardInput(i)),
            "The weights' gradient uses what the gradient of the input has left",
        )],
        Action::SendActivation(i) => {
            vec![(here(Action::Forward(i)), "What is sent has to be computed first")]
        }
        Action::SendGradient(i) => {
            vec![(backward(chunk, i), "What is sent has to be computed first")]
        }
        Action::RecvActivation(_) | Action::RecvGradient(_) | Action::Update => vec![],
    }
}

/// Checks that every micro-batch passes every chunk forward and backward with its messages, and that there is an update.
fn nothing_missing(
    schedule: &Schedule,
    stage: usize,
    done: &BTreeMap<Instruction, usize>,
) -> Result<(), Error> {
    let once = "Every micro-batch goes forward once and backward once, on every stage";
    let halves = "Without it, the update would lack the gradient of a micro-batch";
    let update = "A step ends with the update of the weights, on every stage";
    let missing = |missing, text| Err(Error::Missing { stage, missing, text });
    for chunk in 0..schedule.chunks {
        for i in 0..schedule.micro_batches {
            let here = |action| Instruction { chunk, action };
            let has = |action| done.contains_key(&here(action));
            let whole = has(Action::Backward(i));
            for (there, action, text) in [
                (has(Action::Forward(i)), Action::Forward(i), once),
                (whole || has(Action::BackwardInput(i)), Action::Backward(i), once),
                (whole || has(Action::BackwardWeight(i)), Action::BackwardWeight(i), halves),
            ] {
                if !there {
                    return missing(here(action), text);
                }
            }
            for send in [Action::SendActivation(i), Action::SendGradient(i)] {
                let message = schedule.message(stage, here(send)).filter(|_| !has(send));
                if let Some(Message { channel, .. }) = message {
                    let (missing, waiting) = (here(send), channel.to);
                    return Err(Error::Unsent { stage, missing, waiting });
                }
            }
        }
    }
    let last = Instruction::from(Action::Update);
    if done.contains_key(&last) { Ok(()) } else { missing(last, update) }
}
// ANCHOR_END: one_stage

// ANCHOR: all_stages
/// Checks that both ends of every channel have the same messages in the same order. Each stage does everything once, so both
/// ends have the same number of messages.
fn check_order_of_messages(schedule: &Schedule) -> Result<(), Error> {
    let mut channels = BTreeMap::<Channel, [Vec<(Message, Step)>; 2]>::new();
    for (stage, list) in schedule.instructions.iter().enumerate() {
        for (position, &instruction) in list.iter().enumerate() {
            let Some(message) = schedule.message(stage, instruction) else { continue };
            let ends = channels.entry(message.channel).or_default();
            let step = Step { stage, position, instruction };
            ends[usize::from(!message.sends)].push((message, step));
        }
    }
    for [sends, receives] in channels.into_values() {
        for ((sent, sending), (expected, receiving)) in sends.into_iter().zip(receives) {
            if sent.key() != expected.key() {
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
    // No channel ever carries more messages.
    let most = schedule.chunks.saturating_mul(schedule.micro_batches);
    let suffices = match stuck(most) {
        Some(_) => None,
        None => (0..=most).find(|&capacity| stuck(capacity).is_none()),
    };
    let waiting = match (suffices, stuck(capacity)) {
        (Some(suffices), None) => return Ok(suffices),
        (_, waiting) => waiting.unwrap_or_default(),
    };
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
    let waits: Vec<String> = circle.iter().map(wait).collect();
    let remedy = match suffices {
        Some(suffices) => format!("Channels that hold {} would do", messages(suffices)),
        None => "No channel helps, however much it holds: each needs what another has yet to send"
            .to_owned(),
    };
    let text = format!("{}: {}. {remedy}", messages(capacity), waits.join(", "));
    Err(Error::Deadlock { circle, text })
}

/// The circle of a deadlock: each stage waits for the next one, and the last for the first.
///
/// Every stage that waits does so for exactly one stage. If all stages that are not done wait, the path from stage to
/// stage must return to an earlier stage.
fn circle(waiting: &[Wait]) -> Vec<Wait> {
    let mut path: Vec<Wait> = Vec::new();
    let mut next = waiting.first();
    while let Some(&wait) = next {
        if let Some(start) = path.iter().position(|it| it.step.stage == wait.step.stage) {
            path.drain(..start);
            break;
        }
        path.push(wait);
        next = waiting.iter().find(|other| other.step.stage == wait.on);
    }
    let first = (0..path.len()).min_by_key(|&i| path[i].step.stage).unwrap_or(0);
    path.rotate_left(first);
    path
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
    #[error("{step}: there is no {what} {number}; the last one is {what} {}", of - 1)]
    NoSuch { step: Step, what: &'static str, number: usize, of: usize },
    #[error("{step}: {text}")]
    NobodyThere { step: Step, text: &'static str },
    #[error("{step}: it needs {needs} first, and that {text}")]
    TooEarly { step: Step, needs: Instruction, text: String },
    #[error(
        "{step}: instruction {first}, {done}, has done that already. Every micro-batch goes forward once and \
         backward once, every message is sent once, and there is one update"
    )]
    Twice { step: Step, first: usize, done: Instruction },
    #[error("stage {stage} never does {missing}. {text}")]
    Missing { stage: usize, missing: Instruction, text: &'static str },
    #[error("stage {stage} never does {missing}, and stage {waiting} waits for it")]
    Unsent { stage: usize, missing: Instruction, waiting: usize },
    #[error(
        "{update}: it lacks the gradient of {}, which comes only as instruction {}. The update comes after the \
         gradients of all micro-batches", late.instruction, late.position
    )]
    EarlyUpdate { update: Step, late: Step },
    #[error(
        "{receiving}: what arrives is {}, instruction {} of stage {}. What is sent first arrives first",
        sending.instruction, sending.position, sending.stage
    )]
    Order { sending: Step, receiving: Step },
    #[error("deadlock with channels that hold {text}")]
    Deadlock { circle: Vec<Wait>, text: String },
}
// ANCHOR_END: errors

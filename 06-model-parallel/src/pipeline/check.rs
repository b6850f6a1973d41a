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
use std::fmt;

use harness::report::counted;

use super::schedule::{Action, Channel, Instruction, Message, Place, Schedule, UNBOUNDED};
use super::timeline::{Peak, Waiting, run};

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

// ANCHOR: check
/// Checks a schedule for channels that hold `capacity` messages.
///
/// # Errors
///
/// The first law that the schedule breaks, and where: see [`Error`].
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

/// The index of each instruction of a stage in its list: the first, if there are several.
type Positions = BTreeMap<Instruction, usize>;

/// Checks the laws of one stage: each instruction in order, and then that none is missing.
fn check_stage(schedule: &Schedule, stage: usize) -> Result<(), Error> {
    let list = &schedule.instructions[stage];
    let mut everywhere = Positions::new();
    for (position, &instruction) in list.iter().enumerate() {
        everywhere.entry(instruction).or_insert(position);
    }
    let mut done = Positions::new();
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
                let find =
                    |needed| everywhere.get(needed).map(|&position| (*needed, Some(position)));
                let (needs, later) = needs.iter().find_map(find).unwrap_or((needs[0], None));
                let text = match later {
                    Some(position) => format!("comes later, as instruction {position}. {law}"),
                    None => format!("is never done. {law}"),
                };
                return Err(Error::TooEarly { step, needs, text });
            }
        }
        let update = Instruction::from(Action::Update);
        if let (Action::Backward(_) | Action::BackwardWeight(_), Some(&at)) =
            (instruction.action, done.get(&update))
        {
            let update = Step { stage, position: at, instruction: update };
            return Err(Error::EarlyUpdate { update, late: step });
        }
        done.insert(instruction, position);
    }
    nothing_missing(schedule, stage, &done)
}

/// Checks that the micro-batch and the chunk of an instruction exist, and the other stage of a message.
fn exists(schedule: &Schedule, step: Step) -> Result<(), Error> {
    let Instruction { chunk, action } = step.instruction;
    let no_such = |what, number, of| Err(Error::NoSuch { step, what, number, of });
    match action.micro_batch() {
        Some(i) if i >= schedule.micro_batches => {
            return no_such("micro-batch", i, schedule.micro_batches);
        }
        _ if chunk >= schedule.chunks => return no_such("chunk", chunk, schedule.chunks),
        // An update is of all chunks and has chunk 0. A second update is then the same instruction, and is found.
        None if chunk > 0 => return no_such("update of chunk", chunk, 1),
        _ => {}
    }
    if action.computes() || schedule.message(step.stage, step.instruction).is_some() {
        return Ok(());
    }
    let place = Place { stage: step.stage, chunk };
    let neighbour = match action {
        Action::SendActivation(_) | Action::RecvGradient(_) => schedule.after(place),
        _ => schedule.before(place),
    };
    let text = match action {
        _ if neighbour.is_some() => {
            "the neighbouring chunk is on the same stage, without a message"
        }
        Action::SendActivation(_) => {
            "this is the end of the model: its activation goes into the loss, and to no other stage"
        }
        Action::RecvGradient(_) => "this is the end of the model: its gradient begins at the loss",
        Action::SendGradient(_) => {
            "this is the beginning of the model: nobody needs the gradient of the data"
        }
        _ => {
            "this is the beginning of the model: its input is the data, which no other stage sends"
        }
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
    let here = |action| Instruction { chunk, action };
    let either = |chunk, i| {
        let backward = [Action::Backward(i), Action::BackwardInput(i)];
        backward.map(|action| Instruction { chunk, action }).to_vec()
    };
    match action {
        Action::Forward(i) => match schedule.before(place) {
            None => vec![],
            Some(before) if before.stage == stage => vec![(
                vec![Instruction { chunk: before.chunk, action }],
                "A chunk goes forward with what the chunk before it has computed",
            )],
            Some(_) => vec![(
                vec![here(Action::RecvActivation(i))],
                "A stage goes forward with the activation that it has received",
            )],
        },
        Action::Backward(i) | Action::BackwardInput(i) => {
            let forward = vec![here(Action::Forward(i))];
            let mut needs =
                vec![(forward, "The backward pass uses what the forward pass has kept")];
            needs.extend(schedule.after(place).map(|after| {
                if after.stage == stage {
                    (either(after.chunk, i), "A chunk's gradient comes from the chunk after it")
                } else {
                    let gradient = vec![here(Action::RecvGradient(i))];
                    (
                        gradient,
                        "The backward pass starts from the gradient that the next stage sends",
                    )
                }
            }));
            needs
        }
        Action::BackwardWeight(i) => vec![(
            vec![here(Action::BackwardInput(i))],
            "The weights' gradient uses what the gradient of the input has left",
        )],
        Action::SendActivation(i) => {
            vec![(vec![here(Action::Forward(i))], "What is sent has to be computed first")]
        }
        Action::SendGradient(i) => {
            vec![(either(chunk, i), "What is sent has to be computed first")]
        }
        Action::RecvActivation(_) | Action::RecvGradient(_) | Action::Update => vec![],
    }
}

/// Checks that every micro-batch passes every chunk forward and backward with its messages, and that there is an update.
fn nothing_missing(schedule: &Schedule, stage: usize, done: &Positions) -> Result<(), Error> {
    let once = "Every micro-batch goes forward once and backward once, on every stage";
    let halves = "Without it, the update would lack the gradient of a micro-batch";
    let update = "A step ends with the update of the weights, on every stage";
    let missing = |missing, text| Err(Error::Missing { stage, missing, text });
    for chunk in 0..schedule.chunks {
        for i in 0..schedule.micro_batches {
            let here = |action| Instruction { chunk, action };
            let has = |action| done.contains_key(&here(action));
            if !has(Action::Forward(i)) {
                return missing(here(Action::Forward(i)), once);
            }
            if !has(Action::Backward(i)) && !has(Action::BackwardInput(i)) {
                return missing(here(Action::Backward(i)), once);
            }
            if has(Action::BackwardInput(i)) && !has(Action::BackwardWeight(i)) {
                return missing(here(Action::BackwardWeight(i)), halves);
            }
            for send in [Action::SendActivation(i), Action::SendGradient(i)].map(here) {
                let message = schedule.message(stage, send);
                if let Some(message) = message.filter(|_| !done.contains_key(&send)) {
                    let waiting = message.channel.to;
                    return Err(Error::Unsent { stage, missing: send, waiting });
                }
            }
        }
    }
    let last = Instruction::from(Action::Update);
    if done.contains_key(&last) { Ok(()) } else { missing(last, update) }
}

/// Checks that both ends of every channel have the same messages in the same order.
fn check_order_of_messages(schedule: &Schedule) -> Result<(), Error> {
    type End = Vec<(Message, Step)>;
    let mut channels = BTreeMap::<Channel, (End, End)>::new();
    for (stage, list) in schedule.instructions.iter().enumerate() {
        for (position, &instruction) in list.iter().enumerate() {
            let Some(message) = schedule.message(stage, instruction) else { continue };
            let (sends, receives) = channels.entry(message.channel).or_default();
            let end = if message.sends { sends } else { receives };
            end.push((message, Step { stage, position, instruction }));
        }
    }
    for (sends, receives) in channels.into_values() {
        // Each stage does everything once, so both ends have the same number of messages.
        for ((sent, sending), (expected, receiving)) in sends.into_iter().zip(receives) {
            if (sent.micro_batch, sent.chunk) != (expected.micro_batch, expected.chunk) {
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
    let circle = circle(schedule, &waiting);
    let messages = |capacity| match capacity {
        UNBOUNDED => "any number of messages".to_owned(),
        _ => counted(capacity, "message"),
    };
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
    let wait = |Waiting { stage, position, on }: Waiting| {
        let instruction = schedule.instructions[stage][position];
        Wait { step: Step { stage, position, instruction }, on }
    };
    path.into_iter().map(wait).collect()
}

/// One instruction of a schedule, and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The stage.
    pub stage: usize,
    /// The index in the stage's list.
    pub position: usize,
    /// The instruction.
    pub instruction: Instruction,
}

impl fmt::Display for Step {
    /// `stage 1, instruction 4, Forward(2)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, position, instruction } = self;
        write!(f, "stage {stage}, instruction {position}, {instruction}")
    }
}

/// A stage that waits for another stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The instruction that waits.
    pub step: Step,
    /// The stage that it waits for.
    pub on: usize,
}

/// The law that a schedule breaks. `text` completes the message. Stages, instructions, micro-batches and chunks are
/// counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages explain the fields")]
pub enum Error {
    /// The schedule has no stages, no chunks or no micro-batches.
    #[error(
        "stages: {stages}, chunks on each: {chunks}, micro-batches: {micro_batches}; a schedule has at least \
         one of each"
    )]
    Empty { stages: usize, chunks: usize, micro_batches: usize },
    /// A micro-batch or a chunk does not exist.
    #[error("{step}: there is no {what} {number}; the last one is {what} {}", of - 1)]
    NoSuch { step: Step, what: &'static str, number: usize, of: usize },
    /// A message has no other stage.
    #[error("{step}: {text}")]
    NobodyThere { step: Step, text: &'static str },
    /// An instruction uses a result that is not there.
    #[error("{step}: it needs {needs} first, and that {text}")]
    TooEarly { step: Step, needs: Instruction, text: String },
    /// An instruction repeats an earlier one.
    #[error(
        "{step}: instruction {first}, {done}, has done that already. Every micro-batch goes forward once and \
         backward once, every message is sent once, and there is one update"
    )]
    Twice { step: Step, first: usize, done: Instruction },
    /// A pass or an update is missing.
    #[error("stage {stage} never does {missing}. {text}")]
    Missing { stage: usize, missing: Instruction, text: &'static str },
    /// A send is missing.
    #[error("stage {stage} never does {missing}, and stage {waiting} waits for it")]
    Unsent { stage: usize, missing: Instruction, waiting: usize },
    /// The update comes before a gradient.
    #[error(
        "{update}: it lacks the gradient of {}, which comes only as instruction {}. The update comes after the \
         gradients of all micro-batches", late.instruction, late.position
    )]
    EarlyUpdate { update: Step, late: Step },
    /// The message that arrives differs from the message that the stage expects.
    #[error(
        "{receiving}: what arrives is {}, instruction {} of stage {}. What is sent first arrives first",
        sending.instruction, sending.position, sending.stage
    )]
    Order { sending: Step, receiving: Step },
    /// Stages wait for each other in a circle. Each waits for the next one, and the last for the first; the smallest
    /// stage comes first.
    #[error("deadlock with channels that hold {text}")]
    Deadlock { circle: Vec<Wait>, text: String },
}

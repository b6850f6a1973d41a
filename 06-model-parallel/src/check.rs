//! The laws that every schedule keeps.
//!
//! 1. Every unit does each of its tasks once, and everything that a task needs comes before it.
//! 2. The gradients of a unit are summed over the micro-batches in ascending order. So the bits are those of one device.
//! 3. Two stages have their messages in one order, and replicas start their collectives in one order.
//! 4. No stage waits for ever. This law depends on the capacity of the channels: a schedule may be sound with channels that
//!    hold one message, and have a deadlock when every send waits for its receiver. Replicas add no deadlock: a collective
//!    waits for the same place of the same order.
//! 5. The layers of a unit run while all its parameters are there, and a unit ends a step in the state in which it began.

use std::collections::BTreeMap;
use std::fmt;
use std::iter::successors;

use harness::report::counted;
use itertools::{EitherOrBoth, Itertools as _};

use crate::Refused;
use crate::bytes::Cost;
use crate::instructions::Action::{
    AllReduce, Backward, BackwardInput, BackwardWeight, Forward, ForwardOnly, Free, Gather,
    Recompute, RecvActivation, RecvGradient, ReduceScatter, SendActivation, SendGradient, Update,
    Wait as Await,
};
use crate::instructions::{Instruction, Message, Schedule, UNBOUNDED};
use crate::simulate::{Step, Timeline, Wait, run, simulate};

// ANCHOR: check
/// A schedule that keeps the laws, with channels of a known capacity. Only [`check`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    schedule: Schedule,
    capacity: usize,
    smallest_capacity: usize,
}

/// A law that a schedule breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    /// The law.
    pub law: Law,
    /// The stages and positions of the instructions that the sentence names, in its order.
    pub places: Vec<(usize, usize)>,
    text: String,
}

/// The laws, by what goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// A schedule has stages, units, micro-batches and replicas, and each stage has a unit.
    Size,
    /// A step has no such instruction.
    Exists,
    /// A task is done once.
    Once,
    /// A task is never done. The place is the end of the list.
    Missing,
    /// What a task needs comes before it. The places are the task and what it needs.
    InOrder,
    /// Parameters are there when layers run, and end a step as they began.
    Parameters,
    /// Messages arrive in the order of sending, and collectives start in one order.
    Messages,
    /// No stage waits for ever. The places are those of the circle.
    Deadlock,
}

fn broken<T>(law: Law, places: &[Step], text: impl Into<String>) -> Result<T, Error> {
    let places = places.iter().map(|it| (it.stage, it.position)).collect();
    Err(Error { law, places, text: text.into() })
}

/// Refuses a single instruction.
fn refused<T>(law: Law, it: Step, text: impl fmt::Display) -> Result<T, Error> {
    broken(law, &[it], format!("{it}: {text}"))
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

    /// [Simulates](crate::simulate) the step. `costs` has a cost for each unit, and a message between two stages takes
    /// `message` seconds. Fails when the number of costs is another, or a time is negative or not finite.
    pub fn simulate(&self, costs: &[Cost], message: f64) -> Result<Timeline, Refused> {
        simulate(&self.schedule, self.capacity, costs, message)
    }

    /// The largest number of micro-batches that each stage keeps activations of at one time, in stage order. With
    /// several units on a stage, each unit counts.
    pub fn kept(&self) -> Vec<usize> {
        let units = vec![Cost::UNITS; self.schedule.units()];
        let timeline = self.simulate(&units, 0.0).expect("a cost for each unit");
        (0..timeline.stages).map(|stage| timeline.held(stage).peak.activations).collect()
    }
}

/// Checks a schedule for channels that hold `capacity` messages. Fails with the first law that the schedule breaks,
/// and where: see [`Error`].
pub fn check(schedule: Schedule, capacity: usize) -> Result<Checked, Error> {
    let Schedule { micro_batches, replicas, ref placement, sharded, .. } = schedule;
    let (stages, units) = (schedule.stages(), schedule.units());
    if [stages, units, micro_batches, replicas].contains(&0) {
        let text = format!(
            "stages: {stages}, units: {units}, micro-batches: {micro_batches}, replicas: {replicas}; a schedule has at \
             least one of each"
        );
        return broken(Law::Size, &[], text);
    }
    if !placement.iter().copied().sorted().dedup().eq(0..stages) {
        let text = format!(
            "the units are on stages {placement:?}; there are {stages} stages, and each has a unit"
        );
        return broken(Law::Size, &[], text);
    }
    if sharded && stages > 1 {
        let text = format!("{stages} stages in chunks: {WHOLE_IN_PIPELINES}");
        return broken(Law::Parameters, &[], text);
    }
    for stage in 0..stages {
        check_tasks(&schedule, stage)?;
        check_parameters(&schedule, stage)?;
    }
    check_order_of_messages(&schedule)?;
    let smallest_capacity = smallest_capacity(&schedule, capacity)?;
    Ok(Checked { schedule, capacity, smallest_capacity })
}
// ANCHOR_END: check

// ANCHOR: one_stage
/// The law about tasks that are never done, or twice.
const ONCE: &str = "Every micro-batch passes a unit forward once and backward once, its activations are kept once, every \
                    message is sent once, and every unit is summed and updated once";

/// The law about chunks in a pipeline.
const WHOLE_IN_PIPELINES: &str =
    "the units of a pipeline are whole; only a model on one stage is sharded";

/// The instructions of a stage, each with its position in the list.
fn steps(schedule: &Schedule, stage: usize) -> impl DoubleEndedIterator<Item = Step> {
    let list = schedule.lists[stage].iter().enumerate();
    list.map(move |(position, &instruction)| Step { stage, position, instruction })
}

/// Checks that a stage does each task of its units once, and in order.
fn check_tasks(schedule: &Schedule, stage: usize) -> Result<(), Error> {
    let mut done = BTreeMap::<Instruction, Step>::new();
    for it in steps(schedule, stage) {
        let unit = it.instruction.unit;
        let elsewhere = schedule.placement.get(unit).filter(|&&other| other != stage);
        let elsewhere = elsewhere.map(|other| format!("unit {unit} is on stage {other}"));
        if let Some(text) = elsewhere.or_else(|| schedule.no_such(it.instruction)) {
            return refused(Law::Exists, it, text);
        }
        for task in tasks(it.instruction) {
            if let Some(Step { position, instruction, .. }) = done.insert(task, it) {
                let text = format!("instruction {position}, {instruction}, has done that already");
                return refused(Law::Once, it, format!("{text}. {ONCE}"));
            }
        }
    }
    let of_unit = |unit| (0..schedule.micro_batches).flat_map(move |i| order(unit, i));
    for (first, then, law) in schedule.units_of(stage).flat_map(of_unit) {
        let is_done = |task: Instruction| done.contains_key(&task);
        let is_missing = |&task: &Instruction| !is_done(task) && demands(schedule, stage, task);
        if let Some(task) = [first, then].into_iter().find(is_missing) {
            let action = match task.action {
                BackwardInput(i) if !is_done(Instruction { action: BackwardWeight(i), ..task }) => {
                    Backward(i)
                }
                AllReduce if schedule.sharded => ReduceScatter,
                Forward(i) if task.unit < schedule.first_trained => ForwardOnly(i),
                action => action,
            };
            let missing = Instruction { action, ..task };
            let end = Step { stage, position: schedule.lists[stage].len(), instruction: missing };
            let other = match schedule.message(missing) {
                Some(Message { sends: true, to, .. }) => format!(", and stage {to} waits for it"),
                Some(Message { from, .. }) => format!(", and stage {from} sends it"),
                None => String::new(),
            };
            let text = format!("stage {stage} never does {missing}{other}. {ONCE}");
            return broken(Law::Missing, &[end], text);
        }
        if let (Some(&needs), Some(&early)) = (done.get(&first), done.get(&then))
            && needs.position > early.position
        {
            let text = format!(
                "{early}: it needs {} first, and that comes later, as instruction {}. {law}",
                needs.instruction, needs.position
            );
            return broken(Law::InOrder, &[early, needs], text);
        }
    }
    Ok(())
}

// ANCHOR: kept
/// The tasks of an instruction: a backward pass in one piece is both halves, and there are two ways to sum. A unit may
/// be gathered and freed many times, which is no task.
fn tasks(Instruction { unit, action }: Instruction) -> Vec<Instruction> {
    let actions = match action {
        // A recomputation keeps the activations that the forward pass has not kept.
        Forward(i) => vec![Forward(i), Recompute(i)],
        ForwardOnly(i) => vec![Forward(i)],
        Backward(i) => vec![BackwardInput(i), BackwardWeight(i)],
        ReduceScatter => vec![AllReduce],
        Gather | Await | Free => vec![],
        _ => vec![action],
    };
    actions.into_iter().map(|action| Instruction { unit, action }).collect()
}
// ANCHOR_END: kept

/// Whether a stage must do a task, and not only may.
fn demands(schedule: &Schedule, stage: usize, task: Instruction) -> bool {
    let is_here = schedule.placement.get(task.unit) == Some(&stage);
    is_here
        && match task.action {
            Forward(_) => true,
            AllReduce if schedule.sharded => task.unit >= schedule.first_trained,
            _ => schedule.has(task),
        }
}

/// The order of the tasks of a micro-batch: a task, a task that needs the first one, and the law. A step may lack some
/// of these tasks.
fn order(unit: usize, i: usize) -> Vec<(Instruction, Instruction, &'static str)> {
    let of = |unit| move |action| Instruction { unit, action };
    let (here, next) = (of(unit), of(unit + 1));
    let sent = "What is sent has to be computed first";
    let received = "A forward pass starts from the activation that was received";
    let of_unit = [
        (RecvActivation(i), Forward(i), received),
        (Forward(i), SendActivation(i), sent),
        (Forward(i), Recompute(i), "A recomputation starts from the input that was kept"),
        (Recompute(i), BackwardInput(i), "The backward pass uses what the forward pass has kept"),
        (RecvGradient(i), BackwardInput(i), "A backward pass starts from the received gradient"),
        (BackwardInput(i), SendGradient(i), sent),
        (BackwardInput(i), BackwardWeight(i), "The second half uses what the first half has left"),
        (BackwardWeight(i), AllReduce, "The sum over replicas comes after all micro-batches"),
        (AllReduce, Update, "The update uses the gradients that are summed over all replicas"),
        (BackwardWeight(i), Update, "The update comes after the gradients of all micro-batches"),
    ];
    let mut order = of_unit.map(|(first, then, law)| (here(first), here(then), law)).to_vec();
    let law = "A unit goes forward with what the unit before it has computed";
    order.push((here(Forward(i)), next(Forward(i)), law));
    let law = "A unit goes backward with the gradient that the unit after it has computed";
    order.push((next(BackwardInput(i)), here(BackwardInput(i)), law));
    if let Some(before) = i.checked_sub(1) {
        let law = "Gradients are summed over the micro-batches in ascending order: another order has other bits";
        order.push((here(BackwardWeight(before)), here(BackwardWeight(i)), law));
    }
    order
}
// ANCHOR_END: one_stage

// ANCHOR: parameters
/// The parameters of a unit on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parameters {
    Whole,
    /// Whole, but from before the update of the chunks.
    Old,
    OnTheirWay,
    /// The rank has its chunk alone.
    Freed,
}

/// Checks that the layers of a unit run while its parameters are there, and that a unit ends a step in the state in
/// which it began.
fn check_parameters(schedule: &Schedule, stage: usize) -> Result<(), Error> {
    use Parameters::{Freed, Old, OnTheirWay, Whole};
    let begin = if schedule.sharded { Freed } else { Whole };
    let in_chunks = schedule.in_chunks(stage);
    let mut states = vec![begin; schedule.units()];
    for it in steps(schedule, stage) {
        let Instruction { unit, action } = it.instruction;
        let (has_chunks, runs) = (in_chunks.contains(&unit), action.runs_layers());
        let next = match (action, states[unit]) {
            (Gather | Await | Free, _) if !has_chunks => Err(
                "each replica updates the whole unit, and no replica has a chunk of it to gather",
            ),
            (_, Freed) if runs => Err("the layers of a unit run after its Gather and its Wait"),
            (_, OnTheirWay) if runs => {
                Err("the parameters are on their way, and the layers of a unit run after its Wait")
            }
            (_, Old) if runs => Err(
                "the update has changed the chunks, and the unit is gathered again before its layers run",
            ),
            (Gather, Whole) => Err("the parameters are there already"),
            (Gather, OnTheirWay) => Err("the parameters are on their way already"),
            (Gather, _) => Ok(OnTheirWay),
            (Await, OnTheirWay) => Ok(Whole),
            (Await, _) => Err("no Gather is on its way, and a Wait needs one before it"),
            (Free, OnTheirWay) => Err("a unit is not freed while its parameters are on their way"),
            (Free, Freed) => Err("the unit is freed already"),
            (Free, _) => Ok(Freed),
            (Update, OnTheirWay) => {
                Err("a unit is not updated while its parameters are on their way")
            }
            (Update, Whole) if has_chunks => Ok(Old),
            (_, now) => Ok(now),
        };
        states[unit] = next.or_else(|law| refused(Law::Parameters, it, law))?;
    }
    let Some(unit) = states.iter().position(|end| *end != begin) else { return Ok(()) };
    let state = match states[unit] {
        Whole => "whole, without its Free",
        Old => "with parameters from before the update, without a Gather and a Wait",
        OnTheirWay => "with its parameters on their way, without its Wait",
        Freed => "freed",
    };
    let last = steps(schedule, stage).rfind(|it| it.instruction.unit == unit);
    let text = format!(
        "unit {unit} ends the step {state}. A unit ends a step in the state in which it began"
    );
    refused(Law::Parameters, last.expect("an instruction has changed the state"), text)
}
// ANCHOR_END: parameters

// ANCHOR: missing
impl Schedule {
    /// Whether a step may have such an instruction. Many are demanded, too: [`check`] says which.
    pub fn has(&self, it: Instruction) -> bool {
        self.no_such(it).is_none()
    }

    /// The reason why a step has no such instruction, or `None` if it may have it.
    fn no_such(&self, it: Instruction) -> Option<String> {
        let (units, micro_batches) = (self.units(), self.micro_batches);
        let no = |what, number, all| {
            Some(format!("there is no {what} {number}; the last one is {what} {}", all - 1))
        };
        let is_trained = it.unit >= self.first_trained;
        let text = match it.action {
            _ if it.unit >= units => return no("unit", it.unit, units),
            _ if it.action.micro_batch() >= Some(micro_batches) => {
                return no("micro-batch", it.action.micro_batch()?, micro_batches);
            }
            ForwardOnly(_) => return None,
            Forward(_) if !is_trained => {
                "no backward pass uses what this pass keeps: this is ForwardOnly"
            }
            Gather | Await | Free | ReduceScatter if self.stages() > 1 => WHOLE_IN_PIPELINES,
            Gather | Await | Free if self.sharded => return None,
            AllReduce if self.sharded => {
                "the replicas hold chunks, and each needs its chunk of the sum: this is ReduceScatter"
            }
            AllReduce if self.replicas == 1 => "there is one replica, and nothing to sum over",
            Await | Free if !is_trained => "this unit has nothing to train, and stays whole",
            _ if self.message(it).is_some() => return None,
            RecvActivation(_) | SendActivation(_) | RecvGradient(_) | SendGradient(_) => {
                "there is no such message: the neighbouring unit is missing or on the same stage, or nobody needs the gradient"
            }
            _ if !is_trained => "this unit has nothing to train",
            _ => return None,
        };
        Some(text.to_owned())
    }
}
// ANCHOR_END: missing

// ANCHOR: all_stages
/// Checks that both ends of every channel have the same messages in the same order. Each stage does everything once,
/// so both ends have the same number of messages.
fn check_order_of_messages(schedule: &Schedule) -> Result<(), Error> {
    let mut channels = BTreeMap::<_, [Vec<(Message, Step)>; 2]>::new();
    for it in (0..schedule.stages()).flat_map(|stage| steps(schedule, stage)) {
        if let Some(message) = schedule.message(it.instruction) {
            let ends = channels.entry(message.channel()).or_default();
            ends[usize::from(!message.sends)].push((message, it));
        }
    }
    for [sends, receives] in channels.into_values() {
        for ((sent, sending), (expected, receiving)) in sends.into_iter().zip(receives) {
            if sent.key != expected.key {
                let text = format!(
                    "{receiving}: what arrives is {}, instruction {} of stage {}. What is sent first arrives first",
                    sending.instruction, sending.position, sending.stage
                );
                return broken(Law::Messages, &[sending, receiving], text);
            }
        }
    }
    Ok(())
}

/// Checks that all replicas, each with its own list, start their collectives in one order. Otherwise a sum of one unit
/// would meet a gather of another.
pub fn in_one_order(replicas: &[Vec<Instruction>]) -> Result<(), Error> {
    for (replica, list) in replicas.iter().enumerate().skip(1) {
        let [first, other] = [&replicas[0], list]
            .map(|list| list.iter().filter(|it: &&Instruction| it.action.is_collective()));
        let pairs = first.zip_longest(other).map(EitherOrBoth::left_and_right);
        if let Some((number, (first, other))) = pairs.enumerate().find(|(_, (a, b))| a != b) {
            let [first, other] =
                [first, other].map(|it| it.map_or("none".to_owned(), Instruction::to_string));
            let text = format!(
                "collective {number}: replica 0 starts {first}, replica {replica} {other}. All replicas start their \
                 collectives in one order"
            );
            return broken(Law::Messages, &[], text);
        }
    }
    Ok(())
}

/// The smallest number of messages that channels must hold, which is at most `capacity`.
fn smallest_capacity(schedule: &Schedule, capacity: usize) -> Result<usize, Error> {
    // The order counts, and the times do not.
    let costs = vec![Cost::default(); schedule.units()];
    let stuck = |capacity| run(schedule, capacity, &costs, 0.0).err();
    let enough = |&capacity: &usize| stuck(capacity).is_none();
    // No channel ever carries more messages.
    let most = schedule.units() * schedule.micro_batches;
    let suffices = if enough(&most) { (0..=most).find(enough) } else { None };
    let Some(waiting) = stuck(capacity) else { return Ok(suffices.unwrap_or(capacity)) };
    let held = match capacity {
        UNBOUNDED => "any number of messages".to_owned(),
        _ => counted(capacity, "message"),
    };
    let circle = circle(&waiting);
    let waits = circle.iter().map(|it| format!("{} waits for stage {}", it.step, it.on)).join("; ");
    let remedy = match suffices {
        Some(suffices) => format!("Channels that hold {} would do", counted(suffices, "message")),
        None => "No channel helps, however much it holds: each needs what another has yet to send"
            .to_owned(),
    };
    let places: Vec<Step> = circle.iter().map(|wait| wait.step).collect();
    let text = format!("deadlock with channels that hold {held}: {waits}. {remedy}");
    broken(Law::Deadlock, &places, text)
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

//! The laws that every schedule keeps.
//!
//! 1. Every unit does each of its tasks once, and everything that a task needs comes before it.
//! 2. The gradients of a unit are summed over the micro-batches in ascending order. So the bits are those of one device.
//! 3. Two stages have their messages in one order, and replicas start their collectives in one order.
//! 4. No stage waits for ever. This law depends on the capacity of the channels: a schedule may be sound with channels that
//!    hold one message, and have a deadlock when every send waits for its receiver. Replicas add no deadlock: a collective
//!    waits for the same place of the same order.
//! 5. The layers of a unit run while all its parameters are there, and a unit ends a step in the state in which it began.

use std::collections::{BTreeMap, BTreeSet};
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
        (0..timeline.stages).map(|stage| timeline.peak(stage).activations).collect()
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
    let in_chunks = schedule.in_chunks();
    for stage in 0..stages {
        let done = check_tasks(&schedule, stage)?;
        check_kept(&schedule, stage, &done)?;
        check_parameters(&schedule, stage, &in_chunks)?;
    }
    check_order_of_messages(&schedule)?;
    let smallest_capacity = smallest_capacity(&schedule, capacity)?;
    Ok(Checked { schedule, capacity, smallest_capacity })
}
// ANCHOR_END: check

// ANCHOR: one_stage
/// The position in a list at which each task is done.
type Done = BTreeMap<Instruction, usize>;

/// The law about chunks in a pipeline.
const WHOLE_IN_PIPELINES: &str =
    "the units of a pipeline are whole; only a model on one stage is sharded";

fn step(schedule: &Schedule, stage: usize, position: usize) -> Step {
    Step { stage, position, instruction: schedule.lists[stage][position] }
}

/// Checks that a stage does each task of its units once, and in order.
fn check_tasks(schedule: &Schedule, stage: usize) -> Result<Done, Error> {
    let step = |position| step(schedule, stage, position);
    let mut done = Done::new();
    for (position, &instruction) in schedule.lists[stage].iter().enumerate() {
        if let Some(text) = no_such(schedule, stage, instruction) {
            let it = step(position);
            return broken(Law::Exists, &[it], format!("{it}: {text}"));
        }
        for task in tasks(instruction) {
            if let Some(first) = done.insert(task, position) {
                let (it, Step { position: first, instruction, .. }) = (step(position), step(first));
                let text = format!(
                    "{it}: instruction {first}, {instruction}, has done that already. Every micro-batch passes a unit \
                     forward once and backward once, every message is sent once, and every unit is summed and updated \
                     once"
                );
                return broken(Law::Once, &[it], text);
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
            let text = never_done(schedule, missing);
            return broken(
                Law::Missing,
                &[end],
                format!("stage {stage} never does {missing}{text}"),
            );
        }
        if let (Some(&needs), Some(&early)) = (done.get(&first), done.get(&then))
            && needs > early
        {
            let (early, needs) = (step(early), step(needs));
            let text = format!(
                "{early}: it needs {} first, and that comes later, as instruction {}. {law}",
                needs.instruction, needs.position
            );
            return broken(Law::InOrder, &[early, needs], text);
        }
    }
    Ok(done)
}

/// The tasks of an instruction: a backward pass in one piece is both halves, and there are two ways to go forward and
/// two ways to sum. A unit may be gathered and freed many times, which is no task.
fn tasks(Instruction { unit, action }: Instruction) -> Vec<Instruction> {
    let actions = match action {
        Backward(i) => vec![BackwardInput(i), BackwardWeight(i)],
        ForwardOnly(i) => vec![Forward(i)],
        ReduceScatter => vec![AllReduce],
        Gather | Await | Free => vec![],
        _ => vec![action],
    };
    actions.into_iter().map(|action| Instruction { unit, action }).collect()
}

/// Whether a stage must do a task, and not only may.
fn demands(schedule: &Schedule, stage: usize, task: Instruction) -> bool {
    let is_here = schedule.placement.get(task.unit) == Some(&stage);
    is_here
        && match task.action {
            Forward(_) => true,
            AllReduce if schedule.sharded => task.unit >= schedule.first_trained,
            Recompute(_) => false,
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
        (Recompute(i), BackwardInput(i), "The backward pass uses what the recomputation has kept"),
        (Forward(i), BackwardInput(i), "The backward pass uses what the forward pass has kept"),
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

// ANCHOR: kept
/// Checks that either the forward pass or a recomputation keeps the activations for a backward pass.
fn check_kept(schedule: &Schedule, stage: usize, done: &Done) -> Result<(), Error> {
    let list = &schedule.lists[stage];
    for (position, &it) in list.iter().enumerate() {
        let at =
            |action| done.get(&Instruction { action, ..it }).map(|&position| list[position].action);
        let law = match it.action {
            ForwardOnly(i) if it.unit >= schedule.first_trained && at(Recompute(i)).is_none() => {
                "a unit that is trained keeps its activations for the backward pass: this is Forward, or a Recompute comes \
                 later"
            }
            Recompute(i) if at(Forward(i)) != Some(ForwardOnly(i)) => {
                "the forward pass has kept the activations: it is ForwardOnly, or this is left out"
            }
            _ => continue,
        };
        let it = step(schedule, stage, position);
        return broken(Law::Exists, &[it], format!("{it}: {law}"));
    }
    Ok(())
}
// ANCHOR_END: kept

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
fn check_parameters(
    schedule: &Schedule,
    stage: usize,
    in_chunks: &BTreeSet<usize>,
) -> Result<(), Error> {
    use Parameters::{Freed, Old, OnTheirWay, Whole};
    let list = &schedule.lists[stage];
    let begin = if schedule.sharded { Freed } else { Whole };
    let mut units = vec![(begin, 0); schedule.units()];
    for (position, Instruction { unit, action }) in list.iter().enumerate() {
        let (now, last) = &mut units[*unit];
        let has_chunks = in_chunks.contains(unit);
        let (moves, runs) = (matches!(action, Gather | Await | Free), action.runs_layers());
        let next = match (action, *now) {
            _ if moves && !has_chunks => Err(
                "each replica updates the whole unit, and no replica has a chunk of it to gather",
            ),
            _ if runs && *now == Freed => {
                Err("the layers of a unit run after its Gather and its Wait")
            }
            _ if runs && *now == OnTheirWay => {
                Err("the parameters are on their way, and the layers of a unit run after its Wait")
            }
            _ if runs && *now == Old => Err(
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
        let it = step(schedule, stage, position);
        (*now, *last) = match next {
            Ok(next) => (next, position),
            Err(law) => return broken(Law::Parameters, &[it], format!("{it}: {law}")),
        };
    }
    let law = "A unit ends a step in the state in which it began";
    let wrong = units.into_iter().enumerate().find(|(_, (end, _))| *end != begin);
    wrong.map_or(Ok(()), |(unit, (end, last))| {
        let state = match end {
            Whole => "whole, without its Free",
            Old => "with parameters from before the update, without a Gather and a Wait",
            OnTheirWay => "with its parameters on their way, without its Wait",
            Freed => "freed",
        };
        let last = step(schedule, stage, last);
        broken(
            Law::Parameters,
            &[last],
            format!("{last}: unit {unit} ends the step {state}. {law}"),
        )
    })
}
// ANCHOR_END: parameters

// ANCHOR: missing
/// The reason why a stage has no such instruction, or `None` if it has.
fn no_such(schedule: &Schedule, stage: usize, it: Instruction) -> Option<String> {
    let Instruction { unit, action } = it;
    let last = schedule.micro_batches - 1;
    if unit >= schedule.units() {
        let last = schedule.units() - 1;
        return Some(format!("there is no unit {unit}; the last one is unit {last}"));
    }
    if schedule.placement[unit] != stage {
        return Some(format!("unit {unit} is on stage {}", schedule.placement[unit]));
    }
    if let Some(i) = action.micro_batch().filter(|&i| i > last) {
        return Some(format!("there is no micro-batch {i}; the last one is micro-batch {last}"));
    }
    if schedule.has(it) {
        return None;
    }
    let text = match action {
        Forward(_) => "no backward pass uses what this pass keeps: this is ForwardOnly",
        Gather | Await | Free | ReduceScatter if schedule.stages() > 1 => WHOLE_IN_PIPELINES,
        AllReduce if schedule.sharded => {
            "the replicas hold chunks, and each needs its chunk of the sum: this is ReduceScatter"
        }
        AllReduce if schedule.replicas == 1 => "there is one replica, and nothing to sum over",
        Await | Free => "this unit has nothing to train, and stays whole",
        action if action.computes() || action.is_collective() => "this unit has nothing to train",
        SendActivation(_) | RecvGradient(_) if schedule.is_last(unit) => {
            "this is the end of the model: its activation goes into the loss, and its gradient begins at the loss"
        }
        RecvActivation(_) | SendGradient(_) if unit == 0 => {
            "this is the beginning of the model: its input is the data, which no other stage sends, and which needs \
             no gradient"
        }
        RecvGradient(_) | SendGradient(_) if unit <= schedule.first_trained => {
            "nobody needs this gradient: there is nothing to train before"
        }
        _ => "the neighbouring unit is on the same stage, without a message",
    };
    Some(text.to_owned())
}

/// The consequence of a task that is never done, and the law.
fn never_done(schedule: &Schedule, task: Instruction) -> String {
    let law = match (task.action, schedule.message(task)) {
        (_, Some(Message { sends, from, to, .. })) => {
            let (other, does) = if sends { (to, "waits for") } else { (from, "sends") };
            return format!(
                ", and stage {other} {does} it. A message is sent once and received once"
            );
        }
        (Forward(_) | ForwardOnly(_), _) => "Every micro-batch passes every unit forward once",
        (AllReduce | ReduceScatter, _) => {
            "Every replica has gradients, and the update needs the sum of all"
        }
        (Update, _) => "Every unit with something to train is updated once",
        _ => {
            "Every micro-batch passes every unit with something to train backward once, in one piece or in both halves"
        }
    };
    format!(". {law}")
}
// ANCHOR_END: missing

// ANCHOR: all_stages
/// Checks that both ends of every channel have the same messages in the same order. Each stage does everything once,
/// so both ends have the same number of messages.
fn check_order_of_messages(schedule: &Schedule) -> Result<(), Error> {
    let mut channels = BTreeMap::<_, [Vec<(Message, Step)>; 2]>::new();
    for (stage, list) in schedule.lists.iter().enumerate() {
        for (position, &instruction) in list.iter().enumerate() {
            let Some(message) = schedule.message(instruction) else { continue };
            let ends = channels.entry(message.channel()).or_default();
            let step = Step { stage, position, instruction };
            ends[usize::from(!message.sends)].push((message, step));
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
    let collectives =
        |of: usize| replicas[of].iter().filter(|it: &&Instruction| it.action.is_collective());
    let named = |it: Option<&Instruction>| it.map_or("none".to_owned(), Instruction::to_string);
    for replica in 1..replicas.len() {
        let pairs = collectives(0).zip_longest(collectives(replica));
        let mut pairs = pairs.map(EitherOrBoth::left_and_right).enumerate();
        if let Some((number, (first, other))) = pairs.find(|(_, (first, other))| first != other) {
            let (first, other) = (named(first), named(other));
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
    let stuck = |capacity| run(schedule, capacity, 0.0, |_| 0.0, |_| 0.0).err();
    let enough = |&capacity: &usize| stuck(capacity).is_none();
    // No channel ever carries more messages.
    let most = schedule.units() * schedule.micro_batches;
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
    let places: Vec<Step> = circle.iter().map(|wait| wait.step).collect();
    let text =
        format!("deadlock with channels that hold {}: {waits}. {remedy}", messages(capacity));
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

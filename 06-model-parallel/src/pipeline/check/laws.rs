//! What one stage has to keep to, by itself.

use std::collections::BTreeMap;

use super::error::{Error, Step};
use crate::pipeline::schedule::{Action, Instruction, Place, Schedule};

/// Where each instruction of a stage stands first.
type Positions = BTreeMap<Instruction, usize>;

/// There is something to do, and somebody to do it.
pub(super) fn shape(schedule: &Schedule) -> Result<(), Error> {
    let (stages, chunks) = (schedule.stages(), schedule.chunks);
    let micro_batches = schedule.micro_batches;
    if stages == 0 || chunks == 0 || micro_batches == 0 {
        return Err(Error::Empty { stages, chunks, micro_batches });
    }
    Ok(())
}

/// The laws of one stage: from its first instruction to its last, and then what is missing.
pub(super) fn keep(schedule: &Schedule, stage: usize) -> Result<(), Error> {
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
                return Err(Error::TooEarly { step, needs, later, law });
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

/// The micro-batch, the chunk, and for a message the other stage.
fn exists(schedule: &Schedule, step: Step) -> Result<(), Error> {
    let Instruction { chunk, action } = step.instruction;
    let no_such = |what, number, of| Err(Error::NoSuch { step, what, number, of });
    match action.micro_batch() {
        Some(i) if i >= schedule.micro_batches => {
            return no_such("micro-batch", i, schedule.micro_batches);
        }
        _ if chunk >= schedule.chunks => return no_such("chunk", chunk, schedule.chunks),
        // An update is of all chunks, and written as chunk 0's: so a second one is the same instruction, and is found.
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
    let why = match action {
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
    Err(Error::NobodyThere { step, why })
}

/// The two ways to go backward: only one of them is used for a micro-batch.
fn other_form(Instruction { chunk, action }: Instruction) -> Option<Instruction> {
    let action = match action {
        Action::Backward(i) => Action::BackwardInput(i),
        Action::BackwardInput(i) => Action::Backward(i),
        _ => return None,
    };
    Some(Instruction { chunk, action })
}

/// What has to come before an instruction: of each list, one; and the law that says so.
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

/// Every micro-batch through every chunk, forward and backward, with its messages; and one update.
fn nothing_missing(schedule: &Schedule, stage: usize, done: &Positions) -> Result<(), Error> {
    let once = "Every micro-batch goes forward once and backward once, on every stage";
    let halves = "Without it, the update would lack the gradient of a micro-batch";
    let update = "A step ends with the update of the weights, on every stage";
    let missing = |missing, law| Err(Error::Missing { stage, missing, law });
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

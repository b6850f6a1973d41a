//! What a stage can do, as a letter: large for its first chunk, small for its second.

use model_parallel::partition::Cost;
use model_parallel::pipeline::schedule::Action;
use model_parallel::pipeline::{Instruction, Kind};
use serde::Serialize;

use super::Units;

/// Something that stages do with a micro-batch, and how long it takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pass {
    /// What it is called in a [`Row`](super::Row).
    pub letter: char,
    pub name: &'static str,
    pub chunk: usize,
    pub units: Units,
}

/// What the stages of a kind of schedule do.
pub fn passes(kind: Kind) -> Vec<Pass> {
    let chunks = kind.chunks();
    let Cost { forward, backward, backward_input, backward_weight, .. } = Cost::UNITS;
    let actions = match kind {
        Kind::ZbH1 => vec![
            (Action::Forward(0), "forward", forward),
            (Action::BackwardInput(0), "backward B (input)", backward_input),
            (Action::BackwardWeight(0), "backward W (weights)", backward_weight),
        ],
        _ => vec![
            (Action::Forward(0), "forward", forward),
            (Action::Backward(0), "backward", backward),
        ],
    };
    let of_chunk = |chunk| {
        actions.iter().filter_map(move |&(action, name, units)| {
            let letter = letter(Instruction { chunk, action })?;
            Some(Pass { letter, name, chunk, units: Units(units / chunks as f64) })
        })
    };
    (0..chunks).flat_map(of_chunk).collect()
}

/// The letter of an instruction; `None` if it is no pass, or for a third chunk.
pub(super) fn letter(Instruction { chunk, action }: Instruction) -> Option<char> {
    let letter = match action {
        Action::Forward(_) => 'F',
        Action::Backward(_) | Action::BackwardInput(_) => 'B',
        Action::BackwardWeight(_) => 'W',
        _ => return None,
    };
    match chunk {
        0 => Some(letter),
        1 => Some(letter.to_ascii_lowercase()),
        _ => None,
    }
}

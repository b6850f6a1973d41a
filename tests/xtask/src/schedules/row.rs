//! The work of one stage over time, as lists of numbers: an object for every pass would be five times as long.

use anyhow::{Context as _, ensure};
use itertools::Itertools as _;
use model_parallel::simulate::Span;
use model_parallel::{Action, Cost, Kind, Timeline};
use serde::{Serialize, Serializer};

use crate::number::Rounded;

/// A kind of work on a micro-batch, and the time of this work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pass {
    /// The letter in a [`Row`]: F, B or W, or a small letter for the second chunk.
    pub letter: char,
    pub name: &'static str,
    pub chunk: usize,
    pub units: Rounded,
}

/// The passes of a stage, in order. Every list has an entry for each pass.
///
/// In JSON it is an array of the lists, in this order. The last stage of GPipe with two micro-batches is
/// `["FFBB",[0,1,1,0],[1,2,3,5],[1,2,1,0]]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The letter of the [`Pass`].
    pub passes: String,
    pub micro_batches: Vec<usize>,
    /// The start of the pass. The pass takes the [`Pass::units`] of the letter.
    pub starts: Vec<Rounded>,
    /// The number of micro-batches whose activations the stage keeps: after the start of a forward pass, or after the end of
    /// another pass.
    pub activations: Vec<usize>,
}

/// The passes of a kind of schedule.
pub fn passes(kind: Kind) -> Vec<Pass> {
    let Cost { forward, backward, backward_input, backward_weight, .. } = Cost::UNITS;
    let actions = match kind {
        Kind::ZbH1 => vec![
            ('F', "forward", forward),
            ('B', "backward B (input)", backward_input),
            ('W', "backward W (weights)", backward_weight),
        ],
        _ => vec![('F', "forward", forward), ('B', "backward", backward)],
    };
    let pass = |(chunk, (letter, name, units)): (usize, (char, _, f64))| Pass {
        letter: if chunk == 0 { letter } else { letter.to_ascii_lowercase() },
        name,
        chunk,
        units: Rounded::of(units / kind.chunks() as f64),
    };
    (0..kind.chunks()).cartesian_product(actions).map(pass).collect()
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { passes, micro_batches, starts, activations } = self;
        (passes, micro_batches, starts, activations).serialize(serializer)
    }
}

impl Row {
    /// The row of a stage.
    /// Fails when a span of the stage is no pass, or takes another time than the pass.
    pub(super) fn of(kind: Kind, timeline: &Timeline, stage: usize) -> anyhow::Result<Self> {
        let letter = |action| match action {
            Action::Forward(_) => Some('F'),
            Action::Backward(_) | Action::BackwardInput(_) => Some('B'),
            Action::BackwardWeight(_) => Some('W'),
            _ => None,
        };
        let passes = passes(kind);
        let mut row = Self::default();
        let is_pass = |span: &&Span| letter(span.instruction.action).is_some();
        for span in timeline.of_stage(stage).filter(is_pass) {
            let what = span.instruction;
            let is = |pass: &&Pass| {
                pass.chunk == what.unit / timeline.stages
                    && Some(pass.letter.to_ascii_uppercase()) == letter(what.action)
            };
            let pass = passes.iter().find(is).with_context(|| format!("{what} is no pass"))?;
            ensure!(Rounded::of(span.end - span.start) == pass.units, "{what} takes another time");
            row.passes.push(pass.letter);
            row.micro_batches.extend(what.action.micro_batch());
            row.starts.push(Rounded::of(span.start));
            row.activations.push(span.held.activations - usize::from(what.action.adds_gradients()));
        }
        Ok(row)
    }
}

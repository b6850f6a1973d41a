//! What one stage does when: lists of numbers, because an object for every pass would be five times as long.

use anyhow::{Context as _, ensure};
use model_parallel::partition::Cost;
use model_parallel::pipeline::schedule::Action;
use model_parallel::pipeline::timeline::Kept;
use model_parallel::pipeline::{Kind, Timeline};
use serde::{Serialize, Serializer};

use crate::number::without_point;

/// A time. Whole numbers are written without a point.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
pub struct Units(#[serde(serialize_with = "without_point")] pub f64);

/// Something that stages do with a micro-batch, and how long it takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pass {
    /// Its name in a [`Row`]: F, B or W; a small letter for the second chunk.
    pub letter: char,
    pub name: &'static str,
    pub chunk: usize,
    pub units: Units,
}

/// What a stage does, one pass after the other: every list has an entry for each pass.
///
/// In JSON it is an array of the lists, in this order. The last stage of GPipe with two micro-batches is
/// `["FFBB",[0,1,1,0],[1,2,3,5],[1,2,1,0]]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The letter of the [`Pass`].
    pub passes: String,
    pub micro_batches: Vec<usize>,
    /// When it begins. It ends after the [`Pass::units`] of its letter.
    pub starts: Vec<Units>,
    /// How many activations are alive from its beginning on if it goes forward, otherwise from its end on.
    pub activations: Vec<usize>,
    /// Likewise, how many wait for their weights' gradient. Left out where backward passes are whole.
    pub for_weights: Vec<usize>,
}

/// What the stages of a kind of schedule do.
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
    let of_chunk = |chunk| {
        let pass = move |&(letter, name, units): &(char, _, f64)| Pass {
            letter: if chunk == 0 { letter } else { letter.to_ascii_lowercase() },
            name,
            chunk,
            units: Units(units / kind.chunks() as f64),
        };
        actions.iter().map(pass)
    };
    (0..kind.chunks()).flat_map(of_chunk).collect()
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { passes, micro_batches, starts, activations, for_weights } = self;
        if for_weights.is_empty() {
            (passes, micro_batches, starts, activations).serialize(serializer)
        } else {
            (passes, micro_batches, starts, activations, for_weights).serialize(serializer)
        }
    }
}

impl Row {
    /// The row of a stage.
    /// Fails when the stage does something that is none of the passes, or that takes another time than its pass.
    pub(super) fn of(kind: Kind, timeline: &Timeline, stage: usize) -> anyhow::Result<Self> {
        let letter = |action| match action {
            Action::Forward(_) => Some('F'),
            Action::Backward(_) | Action::BackwardInput(_) => Some('B'),
            Action::BackwardWeight(_) => Some('W'),
            _ => None,
        };
        let passes = passes(kind);
        let spans = timeline.of_stage(stage);
        let spans: Vec<_> =
            spans.filter(|span| letter(span.instruction.action).is_some()).collect();
        let kept = Kept::after_each(spans.iter().map(|span| span.instruction.action));
        let mut row = Self::default();
        for (span, kept) in spans.iter().zip(kept) {
            let what = span.instruction;
            let is = |pass: &&Pass| {
                pass.chunk == what.chunk
                    && Some(pass.letter.to_ascii_uppercase()) == letter(what.action)
            };
            let pass = passes.iter().find(is).with_context(|| format!("{what} is no pass"))?;
            ensure!(Units(span.end - span.start) == pass.units, "{what} takes another time");
            row.passes.push(pass.letter);
            row.micro_batches.extend(what.action.micro_batch());
            row.starts.push(Units(span.start));
            row.activations.push(kept.activations);
            row.for_weights.extend((kind == Kind::ZbH1).then_some(kept.both - kept.activations));
        }
        Ok(row)
    }
}

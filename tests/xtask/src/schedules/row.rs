//! What one stage does when: lists of numbers, because an object for every pass would be five times as long.

use anyhow::{Context as _, ensure};
use model_parallel::pipeline::Timeline;
use model_parallel::pipeline::schedule::Action;
use model_parallel::pipeline::timeline::Kept;
use serde::{Serialize, Serializer};

use super::Pass;
use super::pass::letter;
use crate::number::without_point;

/// A time. Whole numbers are written without a point.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
pub struct Units(#[serde(serialize_with = "without_point")] pub f64);

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
    /// Fails when the stage does something that has no letter, or that takes another time than its letter says.
    pub(super) fn of(
        timeline: &Timeline,
        stage: usize,
        passes: &[Pass],
        halves: bool,
    ) -> anyhow::Result<Self> {
        let computes = |action: Action| action.computes() && action != Action::Update;
        let spans = timeline.of_stage(stage).filter(|span| computes(span.instruction.action));
        let spans: Vec<_> = spans.collect();
        let kept = Kept::after_each(spans.iter().map(|span| span.instruction.action));
        let mut row = Self::default();
        for (span, kept) in spans.iter().zip(kept) {
            let what = span.instruction;
            let letter = letter(what).with_context(|| format!("{what} has no letter"))?;
            let pass = passes.iter().find(|pass| pass.letter == letter);
            let pass = pass.with_context(|| format!("{letter} is none of the passes"))?;
            ensure!(Units(span.end - span.start) == pass.units, "{what} takes another time");
            row.passes.push(letter);
            row.micro_batches.extend(what.action.micro_batch());
            row.starts.push(Units(span.start));
            row.activations.push(kept.activations);
            row.for_weights.extend(halves.then_some(kept.both - kept.activations));
        }
        Ok(row)
    }
}

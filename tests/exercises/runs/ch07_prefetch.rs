//! The learner's early gathers: predicted, and under stage 7's training over a slow link.

use sharded_state::strategies::{passes, prefetched, zero3};

use super::prelude::*;
use super::sharded::{UNITS, compare, list_of};
pub use crate::checks::ch07_prefetch::Answer;
use crate::sharded::{costs, hidden, step};

/// Predicts the hidden share of the communication, and trains. Fails when the answer panics.
pub fn run(answer: Answer) -> Run {
    let list = zero3(passes(UNITS, 1));
    let yours = match list_of(&answer(list.clone())) {
        Err(refusal) => return Ok(paragraph(refusal)?),
        Ok(yours) => yours,
    };
    let (late, ours) = (list_of(&list)?, list_of(&prefetched(list))?);
    let lists = [("yours", &yours), ("without prefetch", &late), ("ours", &ours)];
    // Computing takes 3 s for each unit, and communication 0.6 of that.
    let costs = costs(&[100; UNITS], 0.6 * 3.0 * UNITS as f64 / ((3 * UNITS - 1) as f64 / 2.0));
    let shares =
        lists.map(|(name, list)| format!("{name} {:.0} %", 100.0 * hidden(&step(list, &costs))));
    paragraph(format_args!(
        "Communication that takes 0.6 of the computing time is hidden, as the simulator says: {}.\n",
        shares.join(", ")
    ))?;
    compare(&lists, Some(200.0))
}

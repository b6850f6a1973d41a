//! The learner's lists under stage 7's training in chunks.

use sharded_state::strategies::{passes, updated, zero3};

use super::prelude::*;
use super::sharded::{UNITS, compare, list_of};
pub use crate::checks::ch07_fsdp::Answer;

/// Trains by the learner's list and by ours. Fails when the answer panics.
pub fn run(answer: Answer) -> Run {
    let list = updated((answer.reduced)((answer.gathered)(passes(UNITS, 1))));
    match list_of(&list) {
        Err(refusal) => Ok(paragraph(refusal)?),
        Ok(yours) => {
            compare(&[("yours", &yours), ("ours", &list_of(&zero3(passes(UNITS, 1)))?)], None)
        }
    }
}

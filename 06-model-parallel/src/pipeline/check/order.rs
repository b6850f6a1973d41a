//! What is received is what is sent, in the same order: a channel keeps the order of sending.

use std::collections::BTreeMap;

use super::error::{Error, Step};
use crate::pipeline::channel::{Channel, Message};
use crate::pipeline::schedule::Schedule;

/// Everything that one stage does on a channel, in order.
type End = Vec<(Message, Step)>;

/// Compares both ends of every channel.
pub(super) fn same_at_both_ends(schedule: &Schedule) -> Result<(), Error> {
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
        // Each stage does everything once, so there are as many here as there.
        for ((sent, sending), (expected, receiving)) in sends.into_iter().zip(receives) {
            if (sent.micro_batch, sent.chunk) != (expected.micro_batch, expected.chunk) {
                return Err(Error::Order { sending, receiving });
            }
        }
    }
    Ok(())
}

//! Channels: what a stage sends to another arrives there, in the order of sending.
//!
//! Between two stages, activations and gradients travel on channels of their own. A channel holds a number
//! of messages that were sent and not yet taken: its capacity.
//!
//! | capacity | a send | as in |
//! | --- | --- | --- |
//! | 0 | waits until the other stage receives: a rendezvous | `MPI_Ssend`, NCCL |
//! | n | waits while n messages lie there | a bounded queue |
//! | [`UNBOUNDED`] | never waits | stage 2's `Communicator::send`, `MPI_Bsend` |

use super::schedule::{Action, Instruction, Place, Schedule};

/// The capacity of a channel that is never full.
pub const UNBOUNDED: usize = usize::MAX;

/// What a channel carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Carries {
    /// Activations, towards the end of the model.
    Activations,
    /// Gradients, towards its beginning.
    Gradients,
}

/// A connection from one stage to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel {
    /// The stage that sends.
    pub from: usize,
    /// The stage that receives.
    pub to: usize,
    /// What is sent.
    pub carries: Carries,
}

/// A message: its channel, what it carries as the receiver calls it, and which end the stage has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub channel: Channel,
    pub micro_batch: usize,
    /// The chunk that it is for.
    pub chunk: usize,
    pub sends: bool,
}

impl Schedule {
    /// The message that an instruction of this stage sends or receives.
    ///
    /// `None` if it computes, or when there is nobody on another stage to send to or receive from.
    pub(super) fn message(&self, stage: usize, instruction: Instruction) -> Option<Message> {
        let here = Place { stage, chunk: instruction.chunk };
        let (sends, carries, there) = match instruction.action {
            Action::RecvActivation(_) => (false, Carries::Activations, self.before(here)),
            Action::SendActivation(_) => (true, Carries::Activations, self.after(here)),
            Action::RecvGradient(_) => (false, Carries::Gradients, self.after(here)),
            Action::SendGradient(_) => (true, Carries::Gradients, self.before(here)),
            _ => return None,
        };
        let there = there.filter(|there| there.stage != stage)?;
        let (from, to) = if sends { (here, there) } else { (there, here) };
        Some(Message {
            channel: Channel { from: from.stage, to: to.stage, carries },
            micro_batch: instruction.action.micro_batch()?,
            chunk: to.chunk,
            sends,
        })
    }
}

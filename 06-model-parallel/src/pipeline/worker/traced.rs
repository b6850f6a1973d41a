//! An instruction in a trace: on the track of what a device computes, or of what it sends and waits for.

use harness::report::trace::{COMMUNICATION, COMPUTE};
use tracing::{Span, info_span};

use crate::pipeline::schedule::Action;

/// What a trace calls an instruction; its number is the micro-batch's.
pub(super) fn span(action: Action) -> Span {
    match action {
        Action::Forward(i) => info_span!(target: COMPUTE, "forward", micro_batch = i),
        Action::Backward(i) | Action::BackwardInput(i) | Action::BackwardWeight(i) => {
            info_span!(target: COMPUTE, "backward", micro_batch = i)
        }
        Action::Update => info_span!(target: COMPUTE, "update"),
        Action::RecvActivation(i) => {
            info_span!(target: COMMUNICATION, "receive activation", micro_batch = i)
        }
        Action::SendActivation(i) => {
            info_span!(target: COMMUNICATION, "send activation", micro_batch = i)
        }
        Action::RecvGradient(i) => {
            info_span!(target: COMMUNICATION, "receive gradient", micro_batch = i)
        }
        Action::SendGradient(i) => {
            info_span!(target: COMMUNICATION, "send gradient", micro_batch = i)
        }
    }
}

//! What is computed settles what is sent.
//!
//! A result is sent as soon as it is there; what is needed is received right before. Then both ends of
//! every channel have the same order, as long as both compute in the same order.

use super::{Action, Instruction, Place, Schedule};

/// The schedule whose stages compute in the given orders, with messages and an update at the end.
pub(super) fn with_messages(
    stages: usize,
    chunks: usize,
    micro_batches: usize,
    order: impl Fn(usize) -> Vec<Instruction>,
) -> Schedule {
    let list = |stage| {
        let mut list = Vec::new();
        for Instruction { chunk, action } in order(stage) {
            let place = Place { stage, chunk };
            let elsewhere = |neighbour: Option<Place>| neighbour.is_some_and(|p| p.stage != stage);
            let before = elsewhere(place.before(stages));
            let after = elsewhere(place.after(stages, chunks));
            let (receive, send) = match action {
                Action::Forward(i) => (
                    before.then_some(Action::RecvActivation(i)),
                    after.then_some(Action::SendActivation(i)),
                ),
                Action::Backward(i) | Action::BackwardInput(i) => (
                    after.then_some(Action::RecvGradient(i)),
                    before.then_some(Action::SendGradient(i)),
                ),
                _ => (None, None),
            };
            let both = [receive, Some(action), send].into_iter().flatten();
            list.extend(both.map(|action| Instruction { chunk, action }));
        }
        list.push(Action::Update.into());
        list
    };
    Schedule { micro_batches, chunks, instructions: (0..stages).map(list).collect() }
}

//! What a stage has to keep: the price of a full pipeline.
//!
//! A forward pass keeps activations, and the backward pass lets go of them. Where the backward pass comes in
//! two halves, the first one still leaves something for the second.

use serde::{Deserialize, Serialize};

use super::schedule::Action;

/// What a stage keeps at one time, counted in micro-batches (of a chunk, where a stage has several).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Gone forward, and not yet backward: their activations are alive.
    pub activations: usize,
    /// Their input's gradient is computed and their weights' is not.
    pub for_weights: usize,
}

impl Kept {
    /// What a stage keeps after it has done this.
    ///
    /// An activation is alive from the start of its forward pass to the end of its backward pass.
    #[must_use]
    pub fn after(self, action: Action) -> Self {
        let Self { activations, for_weights } = self;
        // A schedule may be checked that goes backward too often.
        let fewer = |count: usize| count.saturating_sub(1);
        match action {
            Action::Forward(_) => Self { activations: activations + 1, for_weights },
            Action::Backward(_) => Self { activations: fewer(activations), for_weights },
            Action::BackwardInput(_) => {
                Self { activations: fewer(activations), for_weights: for_weights + 1 }
            }
            Action::BackwardWeight(_) => Self { activations, for_weights: fewer(for_weights) },
            _ => self,
        }
    }
}

/// The most that a stage ever keeps, counted as in [`Kept`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peak {
    /// The most activations that are alive at one time.
    pub activations: usize,
    /// The most that wait for their weights' gradient at one time.
    pub for_weights: usize,
    /// The most of both together at one time.
    pub both: usize,
}

impl Peak {
    /// The peak of a stage that does this, in this order.
    pub fn of(actions: impl IntoIterator<Item = Action>) -> Self {
        let mut kept = Kept::default();
        actions.into_iter().fold(Self::default(), |peak, action| {
            kept = kept.after(action);
            Self {
                activations: peak.activations.max(kept.activations),
                for_weights: peak.for_weights.max(kept.for_weights),
                both: peak.both.max(kept.activations + kept.for_weights),
            }
        })
    }
}

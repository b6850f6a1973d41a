//! The result of a stage's forward pass.

use candle_core::{Tensor, Var};

/// The result of a stage's forward pass, which the stage keeps for the backward pass.
#[derive(Clone, Debug)]
pub struct Passed {
    /// The activation that arrived, as a variable. The first stage has none: its input is the images.
    pub input: Option<Var>,
    /// The activation that the stage has sent. On the last stage, the loss, summed over the batch.
    pub result: Tensor,
}

//! The gradient accumulator of one tensor.
//!
//! The gradient of a tensor is the sum of the gradients from all operations that used the tensor.
//! If a relu computed the tensor, the relu's backward pass would read this sum once more to mask
//! it. The accumulator therefore keeps the last two terms apart. An operation that takes two
//! gradients adds and masks them in one pass.

use candle_core::{Result, Tensor};

use crate::sum;

/// One gradient, or two gradients that are not added yet. All are contiguous and have the tensor's
/// shape and type.
#[derive(Debug)]
pub(super) enum Arrived {
    One(Tensor),
    Two([Tensor; 2]),
}

impl Arrived {
    /// Adds another gradient.
    pub(super) fn and(self, gradient: Tensor) -> Result<Self> {
        Ok(Self::Two([self.sum()?, gradient]))
    }

    /// Returns the sum of all gradients, added in the order of their arrival.
    pub(super) fn sum(self) -> Result<Tensor> {
        match self {
            Self::One(gradient) => Ok(gradient),
            Self::Two([a, b]) => sum(&a, &b),
        }
    }
}

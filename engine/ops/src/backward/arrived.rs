//! Gradients of a tensor that have arrived, from the operations that used it.
//!
//! Its own is their sum. But where it is what a relu left, an operation is made of it that goes through that sum once more.
//! So the last two wait side by side, for an operation that takes both in one pass.

use candle_core::{Result, Tensor};

use crate::sum;

/// One gradient, or two that are yet to be added up; contiguous, and of the tensor's shape and type.
#[derive(Debug)]
pub(super) enum Arrived {
    One(Tensor),
    Two([Tensor; 2]),
}

impl Arrived {
    /// These and another.
    pub(super) fn and(self, gradient: Tensor) -> Result<Self> {
        Ok(Self::Two([self.sum()?, gradient]))
    }

    /// All of them, in the order in which they came.
    pub(super) fn sum(self) -> Result<Tensor> {
        match self {
            Self::One(gradient) => Ok(gradient),
            Self::Two([a, b]) => sum(&a, &b),
        }
    }
}

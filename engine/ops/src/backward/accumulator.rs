//! The gradient accumulators of a backward pass.
//!
//! The gradient of a tensor is the sum of the gradients from all operations that used the tensor.
//! If a relu computed the tensor, the relu's backward pass would read this sum once more to mask
//! it. An accumulator therefore keeps the last two terms apart. An operation that takes two
//! gradients adds and masks them in one pass.

use std::collections::HashMap;

use candle_core::{Result, Tensor, TensorId, bail};

use crate::sum;

/// One gradient, or two gradients that are not added yet. All are contiguous and have the tensor's
/// shape and type.
#[derive(Debug)]
pub(super) enum Accumulator {
    One(Tensor),
    Two([Tensor; 2]),
}

impl Accumulator {
    /// Adds another gradient.
    fn and(self, gradient: Tensor) -> Result<Self> {
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

/// The accumulators of all tensors that the backward pass has not reached yet.
#[derive(Default)]
pub(super) struct Accumulators(HashMap<TensorId, Accumulator>);

impl Accumulators {
    /// Adds a gradient from the operation `by` to a tensor's accumulator.
    ///
    /// # Errors
    ///
    /// When the gradient's shape or type differs from the tensor's.
    pub(super) fn add(&mut self, by: &str, tensor: &Tensor, gradient: Tensor) -> Result<()> {
        if gradient.shape() != tensor.shape() || gradient.dtype() != tensor.dtype() {
            bail!(
                "{by}: a tensor {:?} {:?} got a gradient {:?} {:?}",
                tensor.dtype(),
                tensor.dims(),
                gradient.dtype(),
                gradient.dims()
            );
        }
        // A gradient is a constant: this module does not differentiate twice.
        let gradient = gradient.detach().contiguous()?;
        let all = match self.remove(tensor) {
            Some(earlier) => earlier.and(gradient)?,
            None => Accumulator::One(gradient),
        };
        self.0.insert(tensor.id(), all);
        Ok(())
    }

    /// Removes the accumulator of a tensor, if any gradient has arrived.
    pub(super) fn remove(&mut self, tensor: &Tensor) -> Option<Accumulator> {
        self.0.remove(&tensor.id())
    }

    /// Returns the sums of all accumulators that remain.
    pub(super) fn sums(self) -> Result<HashMap<TensorId, Tensor>> {
        self.0.into_iter().map(|(id, accumulator)| Ok((id, accumulator.sum()?))).collect()
    }
}

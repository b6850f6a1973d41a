//! What a device holds of a model.

use std::iter::Sum;
use std::ops::Add;

/// Bytes of parameters on one device.
///
/// Gradients take as much again, and so does an optimiser's momentum. Activations that are cut take a k-th
/// part too; those that all ranks have, such as the input of a layer by columns, do not get smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Parts of tensors that are split: about a k-th of them.
    pub split: usize,
    /// Tensors that every rank has.
    pub replicated: usize,
}

impl Memory {
    /// All of it, in bytes.
    pub fn total(&self) -> usize {
        self.split + self.replicated
    }
}

impl Add for Memory {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { split: self.split + other.split, replicated: self.replicated + other.replicated }
    }
}

impl Sum for Memory {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), Add::add)
    }
}

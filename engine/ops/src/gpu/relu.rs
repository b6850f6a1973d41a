//! The rectifier.

use candle_core::Result;

use super::by_element::by_element;
use super::kernel::Source;
use super::launch::Operand;
use super::machine::Machine;

/// max(x, 0).
pub(crate) fn relu<M: Machine>(machine: &M, x: Operand<'_, M::Storage>) -> Result<M::Storage> {
    by_element(machine, Source::Relu, "relu", [x])
}

/// max(x + y, 0).
pub(crate) fn add_relu<M: Machine>(
    machine: &M,
    operands: [Operand<'_, M::Storage>; 2],
) -> Result<M::Storage> {
    by_element(machine, Source::Relu, "add_relu", operands)
}

/// What of a gradient passes a relu whose output was `y`.
pub(crate) fn gradient<M: Machine>(
    machine: &M,
    y: Operand<'_, M::Storage>,
    grad: Operand<'_, M::Storage>,
) -> Result<M::Storage> {
    by_element(machine, Source::Relu, "relu_gradient", [y, grad])
}

/// The same of a gradient that is the sum of two: the output, then those two.
pub(crate) fn gradient_of_sum<M: Machine>(
    machine: &M,
    operands: [Operand<'_, M::Storage>; 3],
) -> Result<M::Storage> {
    by_element(machine, Source::Relu, "relu_gradient_of_sum", operands)
}

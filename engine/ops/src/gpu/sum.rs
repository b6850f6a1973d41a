//! The sum of two tensors.

use candle_core::Result;

use super::by_element::by_element;
use super::kernel::Source;
use super::launch::Operand;
use super::machine::Machine;

/// a + b.
pub(crate) fn sum<M: Machine>(
    machine: &M,
    operands: [Operand<'_, M::Storage>; 2],
) -> Result<M::Storage> {
    by_element(machine, Source::Sum, "sum", operands)
}

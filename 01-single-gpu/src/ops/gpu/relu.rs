//! The rectifier.

use candle_core::Result;

use super::blocks::blocks_of;
use super::kernel::Source;
use super::launch::{Launch, Operand};
use super::machine::Machine;

/// max(x, 0).
pub(crate) fn relu<M: Machine>(machine: &M, x: Operand<'_, M::Storage>) -> Result<M::Storage> {
    by_element(machine, "relu", [x])
}

/// max(x + y, 0).
pub(crate) fn add_relu<M: Machine>(
    machine: &M,
    operands: [Operand<'_, M::Storage>; 2],
) -> Result<M::Storage> {
    by_element(machine, "add_relu", operands)
}

/// What of a gradient passes a relu whose output was `y`.
pub(crate) fn gradient<M: Machine>(
    machine: &M,
    y: Operand<'_, M::Storage>,
    grad: Operand<'_, M::Storage>,
) -> Result<M::Storage> {
    by_element(machine, "relu_gradient", [y, grad])
}

/// A result that has an element for each of every operand's.
fn by_element<M: Machine, const N: usize>(
    machine: &M,
    name: &'static str,
    operands: [Operand<'_, M::Storage>; N],
) -> Result<M::Storage> {
    let Operand { elements, .. } = operands[0];
    let vector = operands.iter().map(Operand::vector).min().unwrap_or(1);
    let vectors = elements / vector;
    let mut result = machine.room(elements, operands[0].dtype())?;
    let launch = Launch::new(Source::Relu, name, operands[0].dtype()).by_vectors(vector);
    let launch = operands
        .into_iter()
        .fold(launch.count(vectors), |launch, operand| launch.read_vectors(operand, elements));
    machine.run(launch.write(&mut result), blocks_of(vectors))?;
    Ok(result)
}

//! Kernels that make each element of a result of those at its place, in vectors where all begin and end with one.

use candle_core::Result;

use super::blocks::blocks_of;
use super::kernel::Source;
use super::launch::{Launch, Operand};
use super::machine::Machine;

/// A result that has an element for each of every operand's.
pub(super) fn by_element<M: Machine, const N: usize>(
    machine: &M,
    source: Source,
    name: &'static str,
    operands: [Operand<'_, M::Storage>; N],
) -> Result<M::Storage> {
    let Operand { elements, .. } = operands[0];
    let vector = operands.iter().map(Operand::vector).min().unwrap_or(1);
    let vectors = elements / vector;
    let mut result = machine.room(elements, operands[0].dtype())?;
    let launch = Launch::new(source, name, operands[0].dtype()).by_vectors(vector);
    let launch = operands
        .into_iter()
        .fold(launch.count(vectors), |launch, operand| launch.read_vectors(operand, elements));
    machine.run(launch.write(&mut result), blocks_of(vectors))?;
    Ok(result)
}

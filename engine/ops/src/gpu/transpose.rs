//! Rows and columns exchanged.

use candle_core::Result;

use super::blocks::blocks_of;
use super::kernel::Source;
use super::launch::{Launch, Operand};
use super::machine::Machine;

/// `[rows, columns]` → `[columns, rows]`, contiguous both.
///
/// candle's copy of a strided tensor sends shape and strides to the GPU first, from memory that may keep the processor
/// waiting until the GPU is as far.
pub(crate) fn transpose<M: Machine>(
    machine: &M,
    (rows, columns): (usize, usize),
    x: Operand<'_, M::Storage>,
) -> Result<M::Storage> {
    let elements = rows * columns;
    let mut y = machine.room(elements, x.dtype())?;
    let launch = Launch::new(Source::Transpose, "transpose", x.dtype()).count(rows).count(columns);
    machine.run(launch.read(x, elements).write(&mut y), blocks_of(elements))?;
    Ok(y)
}

//! The rectifier.

use candle_core::Result;

use super::blocks::blocks_of;
use super::kernel::Source;
use super::launch::{Launch, Operand};
use super::machine::Machine;

/// max(x, 0).
pub(crate) fn relu<M: Machine>(machine: &M, x: Operand<'_, M::Storage>) -> Result<M::Storage> {
    let n = x.elements;
    let mut y = machine.room(n, x.dtype())?;
    let launch = Launch::new(Source::Relu, "relu", x.dtype()).count(n).read(x, n).write(&mut y);
    machine.run(launch, blocks_of(n))?;
    Ok(y)
}

/// max(x + y, 0).
pub(crate) fn add_relu<M: Machine>(
    machine: &M,
    [x, y]: [Operand<'_, M::Storage>; 2],
) -> Result<M::Storage> {
    let n = x.elements;
    let mut sum = machine.room(n, x.dtype())?;
    let launch = Launch::new(Source::Relu, "add_relu", x.dtype());
    machine.run(launch.count(n).read(x, n).read(y, n).write(&mut sum), blocks_of(n))?;
    Ok(sum)
}

/// What of a gradient passes a relu whose output was `y`.
pub(crate) fn gradient<M: Machine>(
    machine: &M,
    y: Operand<'_, M::Storage>,
    grad: Operand<'_, M::Storage>,
) -> Result<M::Storage> {
    let n = y.elements;
    let mut dx = machine.room(n, y.dtype())?;
    let launch = Launch::new(Source::Relu, "relu_gradient", y.dtype());
    machine.run(launch.count(n).read(y, n).read(grad, n).write(&mut dx), blocks_of(n))?;
    Ok(dx)
}

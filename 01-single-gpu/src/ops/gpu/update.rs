//! What a step changes in place.

use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, Result, bail};

use super::blocks::blocks_of;
use super::kernel::Source;
use super::launch::{Launch, Operand};
use super::machine::Machine;

/// A kernel, and where the contiguous tensor that it changes begins.
fn in_place<'a, S>(
    name: &'static str,
    n: usize,
    (storage, layout): (&'a mut S, &Layout),
    arguments: impl FnOnce(Launch<'a, S>) -> Launch<'a, S>,
) -> Result<Launch<'a, S>>
where
    S: BackendStorage,
{
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("what is updated must be contiguous, got strides {:?}", layout.stride());
    };
    if end - start != n {
        bail!("{n} elements to update {} with", end - start);
    }
    let launch = Launch::new(Source::Update, name, storage.dtype()).count(n);
    Ok(arguments(launch).write_from(storage, start))
}

/// value −= gradient · step.
pub(crate) fn descend<M: Machine>(
    machine: &M,
    value: (&mut M::Storage, &Layout),
    gradient: Operand<'_, M::Storage>,
    step: f64,
) -> Result<()> {
    let n = gradient.elements;
    let launch = in_place("descend", n, value, |launch| launch.number(step).read(gradient, n))?;
    machine.run(launch, blocks_of(n))
}

/// velocity = velocity · momentum + (gradient · share + value · decay).
pub(crate) fn accelerate<M: Machine>(
    machine: &M,
    velocity: (&mut M::Storage, &Layout),
    gradient: Operand<'_, M::Storage>,
    value: Operand<'_, M::Storage>,
    [momentum, share, decay]: [f64; 3],
) -> Result<()> {
    let n = gradient.elements;
    let launch = in_place("accelerate", n, velocity, |launch| {
        launch.number(momentum).number(share).number(decay).read(gradient, n).read(value, n)
    })?;
    machine.run(launch, blocks_of(n))
}

/// running = (1 − momentum) · running + momentum · fresh; `fresh` is f64.
pub(crate) fn average_into<M: Machine>(
    machine: &M,
    running: (&mut M::Storage, &Layout),
    fresh: Operand<'_, M::Storage>,
    momentum: f64,
) -> Result<()> {
    let n = fresh.elements;
    let launch = in_place("average_into", n, running, |launch| {
        launch.number(momentum).read_as(DType::F64, fresh, n)
    })?;
    machine.run(launch, blocks_of(n))
}

//! What a step changes in place.

use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, Result, Tensor, bail};
use itertools::Itertools as _;

use super::blocks::blocks_of;
use super::change::{Change, Work, are_apart, change};
use super::kernel::Source;
use super::launch::Launch;
use super::machine::Machine;

/// Kernels that do the same for 8, 4, 2 or 1 of an optimiser's tensors.
type Kernels = [(&'static str, usize); 4];

const DESCEND: Kernels = [("descend_8", 8), ("descend_4", 4), ("descend_2", 2), ("descend", 1)];
const PUSH: Kernels = [("push_8", 8), ("push_4", 4), ("push_2", 2), ("push", 1)];

/// value −= direction · step, for all pairs of a value and its direction, in few launches.
///
/// # Errors
///
/// When the two differ in size or type, or do not lie contiguous on one GPU.
pub(crate) fn descend_all(pairs: &[[&Tensor; 2]], step: f64) -> Result<()> {
    in_groups(pairs, DESCEND, |&[value, direction]| [(value, direction)], &|gpu, changes| {
        descend(gpu, changes, step)
    })
}

/// velocity = velocity · momentum + (gradient · share + value · decay), then value −= velocity · rate, for all triples of
/// velocity, value and gradient, in few launches; `constants` in this order.
///
/// # Errors
///
/// When the three differ in size or type, or do not lie contiguous on one GPU.
pub(crate) fn push_all(slots: &[[&Tensor; 3]], constants: [f64; 4]) -> Result<()> {
    let changes = |&[velocity, value, gradient]: &[_; 3]| [(velocity, gradient), (value, gradient)];
    in_groups(slots, PUSH, changes, &|gpu, changes| push(gpu, changes, constants))
}

/// Changes the tensors of all `slots`, as many at once as there is a kernel for.
fn in_groups<'a, S, const N: usize>(
    slots: &[S],
    kernels: Kernels,
    changes_of: impl Fn(&S) -> [(&'a Tensor, &'a Tensor); N],
    work: &Work<'_>,
) -> Result<()> {
    let mut rest = slots;
    while !rest.is_empty() {
        let group = |count| rest.get(..count).map(|slots| slots.iter().flat_map(&changes_of));
        let possible = kernels.into_iter().find_map(|(_, count)| {
            let changes = group(count)?.collect_vec();
            (count == 1 || are_apart(&changes)).then_some((count, changes))
        });
        let Some((count, changes)) = possible else { break };
        change(&changes, work)?;
        rest = &rest[count..];
    }
    Ok(())
}

/// The kernel for so many tensors.
fn named(kernels: Kernels, count: usize) -> Result<&'static str> {
    match kernels.iter().find(|(_, of)| *of == count) {
        Some((name, _)) => Ok(name),
        None => bail!("there is no kernel that updates {count} tensors"),
    }
}

/// A tensor of `n` elements to change, from its first one on.
fn in_place<'a, S: BackendStorage>(
    launch: Launch<'a, S>,
    n: usize,
    (storage, layout): (&'a mut S, &Layout),
) -> Result<Launch<'a, S>> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("what is updated must be contiguous, got strides {:?}", layout.stride());
    };
    if end - start != n {
        bail!("{n} elements to update {} with", end - start);
    }
    Ok(launch.change(storage, start))
}

/// value −= direction · step.
pub(crate) fn descend<M: Machine>(
    machine: &M,
    changes: Vec<Change<'_, M::Storage>>,
    step: f64,
) -> Result<()> {
    let (name, most) = (named(DESCEND, changes.len())?, most_elements(&changes));
    let mut launch = Launch::new(Source::Update, name, dtype(&changes)?).number(step);
    for Change { changed, read } in changes {
        let n = read.elements;
        launch = in_place(launch.count(n).read(read, n), n, changed)?;
    }
    machine.run(launch, blocks_of(most))
}

/// velocity = velocity · momentum + (gradient · share + value · decay), then value −= velocity · rate, for changes that
/// are velocity and value in turn, each with the gradient.
pub(crate) fn push<M: Machine>(
    machine: &M,
    changes: Vec<Change<'_, M::Storage>>,
    constants: [f64; 4],
) -> Result<()> {
    let (name, most) = (named(PUSH, changes.len() / 2)?, most_elements(&changes));
    let launch = Launch::new(Source::Update, name, dtype(&changes)?);
    let mut launch = constants.into_iter().fold(launch, Launch::number);
    for (velocity, value) in changes.into_iter().tuples() {
        let n = velocity.read.elements;
        launch = in_place(launch.count(n).read(velocity.read, n), n, velocity.changed)?;
        launch = in_place(launch, n, value.changed)?;
    }
    machine.run(launch, blocks_of(most))
}

/// running = (1 − momentum) · running + momentum · scale · fresh, for one or two tensors of one size, each with a scale;
/// what is fresh is f64.
pub(crate) fn average_into<M: Machine>(
    machine: &M,
    changes: Vec<Change<'_, M::Storage>>,
    momentum: f64,
    scales: &[f64],
) -> Result<()> {
    let name = if changes.len() == 1 { "average" } else { "average_2" };
    let Some(dtype) = changes.first().map(|change| change.changed.0.dtype()) else {
        bail!("there is no running average to change");
    };
    let n = most_elements(&changes);
    let mut launch = Launch::new(Source::Update, name, dtype).count(n).number(momentum);
    for (Change { changed, read }, &scale) in changes.into_iter().zip(scales) {
        launch = in_place(launch.number(scale).read_as(DType::F64, read, n), n, changed)?;
    }
    machine.run(launch, blocks_of(n))
}

fn most_elements<S>(changes: &[Change<'_, S>]) -> usize {
    changes.iter().map(|change| change.read.elements).max().unwrap_or(0)
}

fn dtype<S: BackendStorage>(changes: &[Change<'_, S>]) -> Result<DType> {
    match changes.first() {
        Some(change) => Ok(change.read.dtype()),
        None => bail!("there is nothing to update"),
    }
}

//! What a step changes in place.

use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, Result, Tensor, bail};
use itertools::Itertools as _;

use super::blocks::blocks_of;
use super::change::{Change, in_groups};
use super::kernel::Source;
use super::launch::Launch;
use super::machine::Machine;

/// Kernels that do the same for several slots of an update, and for how many: the most first.
type Kernels = &'static [(&'static str, usize)];

const DESCEND: Kernels = &[("descend_8", 8), ("descend_4", 4), ("descend_2", 2), ("descend", 1)];
const PUSH: Kernels = &[("push_8", 8), ("push_4", 4), ("push_2", 2), ("push", 1)];
const ROUND_OFF: Kernels =
    &[("round_off_8", 8), ("round_off_4", 4), ("round_off_2", 2), ("round_off", 1)];
const AVERAGE: Kernels = &[("average_8", 8), ("average_4", 4), ("average_2", 2), ("average", 1)];

fn counts(kernels: Kernels) -> impl Iterator<Item = usize> + Clone {
    kernels.iter().map(|&(_, count)| count)
}

/// value −= direction · step, for all pairs of a value and its direction, in few launches.
///
/// # Errors
///
/// When the two differ in size or type, or do not lie on one GPU, the value contiguous.
pub(crate) fn descend_all(pairs: &[(&Tensor, &Tensor)], step: f64) -> Result<()> {
    in_groups(pairs, counts(DESCEND), |&pair| [pair], |gpu, changes, _| descend(gpu, changes, step))
}

/// velocity = velocity · momentum + (gradient · share + value · decay), then value −= velocity · rate, for all triples of
/// velocity, value and gradient, in few launches; `constants` in this order.
///
/// # Errors
///
/// When the three differ in size or type, or do not lie on one GPU, velocity and value contiguous.
pub(crate) fn push_all(slots: &[[&Tensor; 3]], constants: [f64; 4]) -> Result<()> {
    // Once, as both are changed by it.
    let gradients = slots.iter().map(|[.., gradient]| gradient.contiguous());
    let gradients: Vec<Tensor> = gradients.collect::<Result<_>>()?;
    let slots: Vec<_> = slots.iter().zip(&gradients).collect();
    let changes = |&(&[velocity, value, _], gradient): &(&[_; 3], _)| {
        [(velocity, gradient), (value, gradient)]
    };
    in_groups(&slots, counts(PUSH), changes, |gpu, changes, _| push(gpu, changes, constants))
}

/// used = kept, rounded to the type of `used`, for all pairs of the two, in few launches; what is kept is f32.
///
/// # Errors
///
/// When the two differ in size, or do not lie on one GPU, `used` contiguous.
pub(crate) fn round_off_all(pairs: &[(&Tensor, &Tensor)]) -> Result<()> {
    in_groups(pairs, counts(ROUND_OFF), |&pair| [pair], |gpu, changes, _| round_off(gpu, changes))
}

/// running = (1 − momentum) · running + momentum · scale · fresh, for all running averages, each with what is fresh, in
/// f64, and its scale, in few launches.
///
/// # Errors
///
/// When the two of one differ in size, or they do not lie on one GPU, what is running contiguous.
pub(crate) fn average_all(averages: &[(&Tensor, &Tensor, f64)], momentum: f64) -> Result<()> {
    let change = |&(running, fresh, _): &(_, _, _)| [(running, fresh)];
    in_groups(averages, counts(AVERAGE), change, |gpu, changes, averages| {
        let scales = averages.iter().map(|(.., scale)| *scale);
        average_into(gpu, changes, momentum, &scales.collect_vec())
    })
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

/// A launch for several tensors, each changed by blocks of its own.
struct Together<'a, S> {
    launch: Launch<'a, S>,
    blocks: usize,
}

impl<'a, S: BackendStorage> Together<'a, S> {
    /// The launch of the kernel for so many tensors of a type, with the numbers that they have in common.
    fn new(
        kernels: Kernels,
        count: usize,
        dtype: DType,
        numbers: impl IntoIterator<Item = f64>,
    ) -> Result<Self> {
        let Some((name, _)) = kernels.iter().find(|(_, of)| *of == count) else {
            bail!("there is no kernel that updates {count} tensors")
        };
        let launch = Launch::new(Source::Update, name, dtype);
        Ok(Self { launch: numbers.into_iter().fold(launch, Launch::number), blocks: 0 })
    }

    /// With one more tensor, of `n` elements.
    fn and(
        self,
        n: usize,
        arguments: impl FnOnce(Launch<'a, S>) -> Result<Launch<'a, S>>,
    ) -> Result<Self> {
        let blocks = blocks_of(n);
        let launch = arguments(self.launch.count(n).count(blocks))?;
        Ok(Self { launch, blocks: self.blocks + blocks })
    }

    fn run<M: Machine<Storage = S>>(self, machine: &M) -> Result<()> {
        machine.run(self.launch, self.blocks)
    }
}

/// value −= direction · step.
pub(crate) fn descend<M: Machine>(
    machine: &M,
    changes: Vec<Change<'_, M::Storage>>,
    step: f64,
) -> Result<()> {
    let dtype = dtype(&changes, |change| change.read.dtype())?;
    let mut together = Together::new(DESCEND, changes.len(), dtype, [step])?;
    for Change { changed, read } in changes {
        let n = read.elements;
        together = together.and(n, |launch| in_place(launch.read(read, n), n, changed))?;
    }
    together.run(machine)
}

/// velocity = velocity · momentum + (gradient · share + value · decay), then value −= velocity · rate, for changes that
/// are velocity and value in turn, each with the gradient.
pub(crate) fn push<M: Machine>(
    machine: &M,
    changes: Vec<Change<'_, M::Storage>>,
    constants: [f64; 4],
) -> Result<()> {
    let dtype = dtype(&changes, |change| change.read.dtype())?;
    let mut together = Together::new(PUSH, changes.len() / 2, dtype, constants)?;
    for (velocity, value) in changes.into_iter().tuples() {
        let n = velocity.read.elements;
        together = together.and(n, |launch| {
            let launch = in_place(launch.read(velocity.read, n), n, velocity.changed)?;
            in_place(launch, n, value.changed)
        })?;
    }
    together.run(machine)
}

/// used = kept, rounded; what is kept is f32.
pub(crate) fn round_off<M: Machine>(
    machine: &M,
    changes: Vec<Change<'_, M::Storage>>,
) -> Result<()> {
    let dtype = dtype(&changes, |change| change.changed.0.dtype())?;
    let mut together = Together::new(ROUND_OFF, changes.len(), dtype, [])?;
    for Change { changed, read } in changes {
        let n = read.elements;
        together =
            together.and(n, |launch| in_place(launch.read_as(DType::F32, read, n), n, changed))?;
    }
    together.run(machine)
}

/// running = (1 − momentum) · running + momentum · scale · fresh, with a scale for each change; what is fresh is f64.
pub(crate) fn average_into<M: Machine>(
    machine: &M,
    changes: Vec<Change<'_, M::Storage>>,
    momentum: f64,
    scales: &[f64],
) -> Result<()> {
    let dtype = dtype(&changes, |change| change.changed.0.dtype())?;
    let mut together = Together::new(AVERAGE, changes.len(), dtype, [momentum])?;
    for (Change { changed, read }, &scale) in changes.into_iter().zip(scales) {
        let n = read.elements;
        together = together.and(n, |launch| {
            in_place(launch.number(scale).read_as(DType::F64, read, n), n, changed)
        })?;
    }
    together.run(machine)
}

/// The type of what is read, or changed, by the first of the changes.
fn dtype<S>(changes: &[Change<'_, S>], of: impl FnOnce(&Change<'_, S>) -> DType) -> Result<DType> {
    match changes.first() {
        Some(change) => Ok(of(change)),
        None => bail!("there is nothing to update"),
    }
}

//! In-place updates of several tensors in one launch.
//!
//! A launch costs some microseconds, and most tensors are small. Fails unless the tensors of a slot have one size and lie on one
//! GPU, and those that change are contiguous.

use std::ptr;

use candle_core::{DType, Result, Tensor, bail};
use itertools::Itertools as _;

use super::kernel::Source;
use super::launch::{Launch, blocks_of};

/// The number of tensors that one launch changes at most.
const SLOTS: usize = 8;

/// One tensor that is read, the tensors of the same size that the update changes, and a number for this slot alone.
type Slot<'a, const N: usize> = (&'a Tensor, [&'a Tensor; N], Option<f64>);

/// Computes `value −= gradient · step` for pairs of a value and its gradient.
pub(crate) fn sgd_step(pairs: &[(&Tensor, &Tensor)], step: f64) -> Result<()> {
    let slots = pairs.iter().map(|&(value, gradient)| (gradient, [value], None));
    update("sgd_step", &[step], None, &slots.collect_vec())
}

/// Takes a momentum step for triples of velocity, value and gradient. The kernel computes `velocity = velocity · momentum +
/// (gradient · share + value · decay)`, then `value −= velocity · rate`. `constants` are momentum, share, decay and rate.
pub(crate) fn momentum_step(triples: &[[&Tensor; 3]], constants: [f64; 4]) -> Result<()> {
    let slots = triples.iter().map(|&[velocity, value, read]| (read, [velocity, value], None));
    update("momentum_step", &constants, None, &slots.collect_vec())
}

/// Computes `to = from`, rounded to the type of `to`, for pairs of the two. `from` is f32.
pub(crate) fn cast(pairs: &[(&Tensor, &Tensor)]) -> Result<()> {
    let slots = pairs.iter().map(|&(to, from)| (from, [to], None));
    update("cast", &[], Some(DType::F32), &slots.collect_vec())
}

/// Computes `running = (1 − momentum) · running + momentum · scale · fresh` for averages with fresh values, in f64, and a scale.
pub(crate) fn average(averages: &[(&Tensor, &Tensor, f64)], momentum: f64) -> Result<()> {
    let slots = averages.iter().map(|&(running, fresh, scale)| (fresh, [running], Some(scale)));
    update("average", &[momentum], Some(DType::F64), &slots.collect_vec())
}

/// Launches a kernel until all slots are updated. The tensors that are read have the type `read_as`, or that of the changed ones.
fn update<const N: usize>(
    kernel: &'static str,
    constants: &[f64],
    read_as: Option<DType>,
    mut slots: &[Slot<'_, N>],
) -> Result<()> {
    while let [(_, changed, _), ..] = slots {
        let of = changed[0];
        let mut counts = (1..=SLOTS.min(slots.len())).rev();
        let Some(count) = counts.find(|&count| are_apart(&slots[..count])) else {
            bail!("update: a tensor shares its memory with what is read for it")
        };
        let (group, rest) = slots.split_at(count);
        let reads = group.iter().map(|(read, ..)| read.contiguous()).collect::<Result<Vec<_>>>()?;
        let launch = Launch::new(Source::Update, kernel, of);
        let mut launch = constants.iter().copied().fold(launch, Launch::number);
        let mut all_blocks = 0;
        for nth in 0..SLOTS {
            // A slot that is left over has no blocks, so its kernel reads and changes nothing.
            let (place, is_used) = if nth < count { (nth, true) } else { (0, false) };
            let ((_, changed, scale), read) = (&group[place], &reads[place]);
            // Each tensor has blocks of its own, in the order of the tensors.
            let n = read.elem_count();
            let blocks = if is_used { blocks_of(n) } else { 0 };
            launch = launch.count(n).count(blocks);
            launch = scale.iter().copied().fold(launch, Launch::number);
            launch = launch.memory_as(read_as.unwrap_or(of.dtype()), [read], n).memory(*changed, n);
            all_blocks += blocks;
        }
        // SAFETY: all kernels of the file have their constants, then eight slots with a count, a number of blocks, and
        // tensors of this count, the tensor that is read first. `are_apart` has found no tensor twice.
        let [] = unsafe { launch.run(all_blocks, []) }?;
        slots = rest;
    }
    Ok(())
}

/// Whether one launch may update a group: its slots have the same types, and no changed tensor shares its memory.
fn are_apart<const N: usize>(group: &[Slot<'_, N>]) -> bool {
    let memory = |tensor: &Tensor| ptr::from_ref(&*tensor.storage_and_layout().0).addr();
    let changed = group.iter().flat_map(|(_, changed, _)| *changed).map(memory).collect_vec();
    let types = |(read, changed, _): &Slot<'_, N>| (changed.map(Tensor::dtype), read.dtype());
    changed.iter().all_unique()
        && group.iter().all(|(read, ..)| !changed.contains(&memory(read)))
        && group.iter().map(types).all_equal()
}

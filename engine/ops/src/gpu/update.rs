//! In-place updates of several tensors in one launch.
//!
//! A launch costs the processor some microseconds, whatever the work of the kernel. An update
//! changes a tensor for every layer's weights and another for its bias, and most of these tensors
//! are small. One launch therefore changes up to eight tensors.

use std::ptr;

use candle_core::{DType, Result, Tensor, bail};
use itertools::Itertools as _;

use super::kernels::Source;
use super::launch::{Launch, blocks_of};
use super::operand::on_gpu_all;

/// The number of tensors that one launch changes at most.
const SLOTS: usize = 8;

/// One tensor that is read, and the tensors of the same size that the update changes.
struct Slot<'a, const N: usize> {
    read: &'a Tensor,
    changed: [&'a Tensor; N],
    /// A number for this slot alone.
    scale: Option<f64>,
}

/// Computes `value −= gradient · step` for pairs of a value and its gradient. Fails when the two
/// tensors differ in size or type or are not on one GPU, or when the value is not contiguous.
pub(crate) fn sgd_step(pairs: &[(&Tensor, &Tensor)], step: f64) -> Result<()> {
    let slots = pairs.iter().map(|&(value, read)| Slot { read, changed: [value], scale: None });
    update("sgd_step", &[step], None, &slots.collect_vec())
}

/// Takes a momentum step for triples of velocity, value and gradient.
///
/// The kernel computes `velocity = velocity · momentum + (gradient · share + value · decay)`, then
/// `value −= velocity · rate`. `constants` are momentum, share, decay and rate. Fails when the
/// three tensors differ in size or type or are not on one GPU, or when velocity or value is not
/// contiguous.
pub(crate) fn momentum_step(triples: &[[&Tensor; 3]], constants: [f64; 4]) -> Result<()> {
    let slots = triples.iter().map(|&[velocity, value, read]| Slot {
        read,
        changed: [velocity, value],
        scale: None,
    });
    update("momentum_step", &constants, None, &slots.collect_vec())
}

/// Computes `to = from`, rounded to the type of `to`, for pairs of the two. `from` is f32. Fails
/// when the two tensors differ in size or are not on one GPU, or when `to` is not contiguous.
pub(crate) fn cast(pairs: &[(&Tensor, &Tensor)]) -> Result<()> {
    let slots = pairs.iter().map(|&(to, read)| Slot { read, changed: [to], scale: None });
    update("cast", &[], Some(DType::F32), &slots.collect_vec())
}

/// Computes `running = (1 − momentum) · running + momentum · scale · fresh` for running averages.
///
/// Each average has its fresh values, in f64, and their scale. Fails when a running average and its
/// fresh values differ in size or are not on one GPU, or when the running average is not
/// contiguous.
pub(crate) fn average(averages: &[(&Tensor, &Tensor, f64)], momentum: f64) -> Result<()> {
    let slots = averages.iter().map(|&(running, read, scale)| Slot {
        read,
        changed: [running],
        scale: Some(scale),
    });
    update("average", &[momentum], Some(DType::F64), &slots.collect_vec())
}

/// Launches a kernel until all slots are updated, each time with as many slots as one launch may
/// update. The tensors that are read have the type `read_as`, or the type of the changed tensors.
fn update<const N: usize>(
    kernel: &'static str,
    constants: &[f64],
    read_as: Option<DType>,
    slots: &[Slot<'_, N>],
) -> Result<()> {
    let mut rest = slots;
    while !rest.is_empty() {
        let mut counts = (1..=SLOTS.min(rest.len())).rev();
        let Some(count) = counts.find(|&count| are_apart(&rest[..count])) else {
            bail!("update: a tensor shares its memory with what is read for it")
        };
        launch(kernel, constants, read_as, &rest[..count])?;
        rest = &rest[count..];
    }
    Ok(())
}

/// Returns whether one launch may update a group: its slots have the same types, and no changed
/// tensor shares its memory with another tensor.
fn are_apart<const N: usize>(group: &[Slot<'_, N>]) -> bool {
    let memory = |tensor: &Tensor| ptr::from_ref(&*tensor.storage_and_layout().0).addr();
    let changed = group.iter().flat_map(|slot| slot.changed).map(memory).collect_vec();
    changed.iter().all_unique()
        && group.iter().all(|slot| !changed.contains(&memory(slot.read)))
        && group.iter().map(|slot| (slot.changed.map(Tensor::dtype), slot.read.dtype())).all_equal()
}

fn launch<const N: usize>(
    kernel: &'static str,
    constants: &[f64],
    read_as: Option<DType>,
    group: &[Slot<'_, N>],
) -> Result<()> {
    let reads: Vec<Tensor> =
        group.iter().map(|slot| slot.read.contiguous()).collect::<Result<_>>()?;
    let tensors =
        group.iter().zip(&reads).flat_map(|(slot, read)| [&[read], &slot.changed[..]].concat());
    on_gpu_all(&tensors.collect_vec(), |operands| {
        let [_, changed, ..] = operands.as_slice() else { bail!("there is nothing to update") };
        let (gpu, dtype) = (changed.gpu(), changed.dtype());
        let mut launch = Launch::new(gpu, Source::Update, kernel, dtype);
        launch = constants.iter().copied().fold(launch, Launch::number);
        let mut all_blocks = 0;
        let slots = operands.chunks(1 + N).zip(group).collect_vec();
        for nth in 0..SLOTS {
            // A slot that is left over has no blocks, so its kernel reads and changes nothing.
            let (operands, slot) = slots[nth.min(slots.len() - 1)];
            // Each tensor has blocks of its own, in the order of the tensors.
            let n = operands[0].elements;
            let blocks = if nth < slots.len() { blocks_of(n) } else { 0 };
            launch = launch.count(n).count(blocks);
            launch = slot.scale.into_iter().fold(launch, Launch::number);
            launch = launch.memory_as(read_as.unwrap_or(dtype), operands[0], n);
            launch =
                operands[1..].iter().fold(launch, |launch, &changed| launch.memory(changed, n));
            all_blocks += blocks;
        }
        launch.run(all_blocks)
    })
}

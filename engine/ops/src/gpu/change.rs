//! Tensors on a GPU that one launch changes in place.
//!
//! A launch costs the processor some microseconds whatever the kernel has to do, and an update has a tensor for every
//! layer's weights and another for its bias: most of them small. So several are changed by one launch. candle gives the
//! memory of one tensor at a time to change, for as long as an operation on it takes; so the operation on the first asks
//! for the second, and so on, and the last one has them all.

use std::cell::RefCell;
use std::ptr;

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, CudaDevice, CudaStorage, InplaceOp2, Layout, Result, Tensor, bail};
use itertools::Itertools as _;

use super::launch::Operand;

/// The memory of a tensor that is changed, and of one that is read for it.
pub(crate) struct Change<'a, S> {
    pub(super) changed: (&'a mut S, &'a Layout),
    pub(super) read: Operand<'a, S>,
}

/// What is done with the memory of several.
pub(super) type Work<'w> = dyn Fn(&CudaDevice, Vec<Change<'_, CudaStorage>>) -> Result<()> + 'w;

/// Whether one launch may change the first tensors of all `pairs`, and read the second: they are of one type each, and
/// nothing that is changed shares its memory with anything else.
fn are_apart(pairs: &[(&Tensor, &Tensor)]) -> bool {
    let memory = |tensor: &Tensor| ptr::from_ref(&*tensor.storage_and_layout().0).addr();
    let changed: Vec<usize> = pairs.iter().map(|(changed, _)| memory(changed)).collect();
    changed.iter().all_unique()
        && pairs.iter().all(|(_, read)| !changed.contains(&memory(read)))
        && pairs.iter().map(|(changed, read)| (changed.dtype(), read.dtype())).all_equal()
}

/// Calls `work` once, with the memory of the first tensor of each pair to change and of the second to read.
///
/// All lie on one GPU, and [apart](are_apart): for one pair candle makes sure of that, several would wait for each other.
/// What is read is made contiguous.
///
/// # Errors
///
/// When one does not lie on a GPU, or that of `work`.
fn change(pairs: &[(&Tensor, &Tensor)], work: &Work<'_>) -> Result<()> {
    ask(pairs, Vec::new(), work)
}

/// Asks for the memory of the first of `pairs`, where that of others is `held`.
fn ask<'a>(
    pairs: &'a [(&Tensor, &Tensor)],
    held: Vec<Change<'a, CudaStorage>>,
    work: &Work<'_>,
) -> Result<()> {
    let Some(((changed, read), rest)) = pairs.split_first() else { return Ok(()) };
    changed.inplace_op2(&read.contiguous()?, &Next { rest, held: RefCell::new(held), work })
}

/// Changes the tensors of all `slots`, those of several by one launch where there is a kernel for so many.
///
/// `counts` are of slots, the largest first, the last of them 1. A slot's tensors are `changes_of` it; `work` is given
/// the memory of a group's, and its slots.
///
/// # Errors
///
/// Those of [`change`].
pub(super) fn in_groups<'a, S, const N: usize>(
    slots: &[S],
    counts: impl IntoIterator<Item = usize> + Clone,
    changes_of: impl Fn(&S) -> [(&'a Tensor, &'a Tensor); N],
    work: impl Fn(&CudaDevice, Vec<Change<'_, CudaStorage>>, &[S]) -> Result<()>,
) -> Result<()> {
    let mut rest = slots;
    while !rest.is_empty() {
        let possible = counts.clone().into_iter().find_map(|count| {
            let group = rest.get(..count)?;
            let changes = group.iter().flat_map(&changes_of).collect_vec();
            (count == 1 || are_apart(&changes)).then_some((group, changes))
        });
        let Some((group, changes)) = possible else { bail!("update: no kernel for one tensor") };
        change(&changes, &|gpu, changes| work(gpu, changes, group))?;
        rest = &rest[group.len()..];
    }
    Ok(())
}

/// The operation on one of the tensors, that asks for the next.
struct Next<'a> {
    rest: &'a [(&'a Tensor, &'a Tensor)],
    /// The memory of those before.
    held: RefCell<Vec<Change<'a, CudaStorage>>>,
    work: &'a Work<'a>,
}

impl InplaceOp2 for Next<'_> {
    fn name(&self) -> &'static str {
        "update"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<()> {
        bail!("update: the CPU does without launches")
    }

    fn cuda_fwd(
        &self,
        changed: &mut CudaStorage,
        changed_layout: &Layout,
        read: &CudaStorage,
        read_layout: &Layout,
    ) -> Result<()> {
        let gpu = read.device();
        // For as long as this one is held, and no longer.
        let mut held: Vec<Change<'_, CudaStorage>> = self.held.take();
        held.push(Change {
            changed: (changed, changed_layout),
            read: Operand::new(read, read_layout)?,
        });
        match self.rest {
            [] => (self.work)(gpu, held),
            rest => ask(rest, held, self.work),
        }
    }
}

//! The bytes that a rank holds and sends under each strategy, in closed form.
//!
//! The parameters have P bytes, the optimizer's state has K times as many, and there are n ranks. Without tensors that
//! travel, the literature has:
//!
//! ```text
//!          parameters   gradients   optimizer's state   sent per rank and step
//! DDP          P            P             K·P               2(n − 1)/n · P
//! ZeRO 1       P            P             K·P/n             2(n − 1)/n · P
//! ZeRO 2       P            P/n           K·P/n             2(n − 1)/n · P
//! ZeRO 3       P/n          P/n           K·P/n             3(n − 1)/n · P
//! ```
//!
//! Source: Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, 2020, arXiv
//! 1910.02054, sections 5 and 7. The functions below add the tensors that are whole for a moment: units that compute,
//! and rows that travel.

use itertools::Itertools as _;
use model_parallel::{Bytes, Cost};

use crate::{Sharing, Strategy};

// ANCHOR: memory
/// The most bytes of parameters, gradients and optimizer's state that one of so many ranks holds at one time.
///
/// `units` has the bytes of each unit. With one micro-batch a backward pass finds no sum to add to. Recomputation
/// changes none of these kinds.
pub fn held(strategy: Strategy, units: &[Cost], micro_batches: usize, ranks: usize) -> Bytes {
    let sizes: Vec<usize> = units.iter().map(|unit| unit.parameters).collect();
    let whole: usize = sizes.iter().sum();
    let largest = |all: &mut dyn Iterator<Item = usize>| all.max().unwrap_or(0);
    let row = largest(&mut sizes.iter().copied());
    let pairs = || sizes.iter().copied().tuple_windows::<(_, _)>();
    let two = largest(&mut pairs().map(|(unit, next)| unit + next)).max(row);
    let chunks: usize = sizes.iter().map(|size| size.div_ceil(ranks)).sum();
    // A gradient beside the sum to which it is added.
    let added = |size| if micro_batches > 1 { size } else { 0 };
    // The gradients of a unit and of all later units.
    let so_far = |unit: usize| sizes.iter().skip(unit).sum::<usize>();
    let kept = largest(&mut (0..sizes.len()).map(|unit| so_far(unit) + added(sizes[unit])));
    // Sums that start after all passes, when the unit after the next one is updated already.
    let late = largest(&mut (0..sizes.len()).map(|unit| whole - so_far(unit + 2) + sizes[unit]));
    // The sum of the next unit, which still travels, the gradients of this unit, and the row that they are joined in.
    let last = sizes.last().copied().unwrap_or(0);
    let passing = largest(&mut pairs().map(|(unit, next)| 2 * unit + next)).max(2 * last);
    let (parameters, gradients, sharing) = match strategy.sharing {
        Sharing::Ddp => (whole, kept, 1),
        // One unit at a time is gathered again.
        Sharing::Zero1 => (whole + chunks + row, kept.max(late), ranks),
        Sharing::Zero2 => (whole + chunks + row, passing, ranks),
        // One unit at a time is whole. With prefetch, the next one is on its way.
        Sharing::Zero3 if strategy.prefetches => (chunks + two, passing, ranks),
        Sharing::Zero3 => (chunks + row, passing, ranks),
    };
    let optimizer = units.iter().map(|unit| unit.optimizer.div_ceil(sharing)).sum();
    Bytes { parameters, gradients, optimizer, ..Bytes::default() }
}

/// The bytes that each of so many ranks sends in a step, around a ring.
pub fn sent(sharing: Sharing, units: &[Cost], ranks: usize) -> usize {
    let whole: usize = units.iter().map(|unit| unit.parameters).sum();
    let rows = match (sharing, units.last()) {
        // The last unit goes forward and backward in one run, so it is gathered once.
        (Sharing::Zero3, Some(last)) => 3 * whole - last.parameters,
        _ => 2 * whole,
    };
    rows * (ranks - 1) / ranks
}
// ANCHOR_END: memory

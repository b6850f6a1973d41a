//! Chapter 7, `book/src/ch07-sharded-state.md`: lists that gather, free and sum, as ZeRO 3 and FSDP do.
//!
//! Check your answer: `cargo course check ch07_fsdp`

use model_parallel::Action::{Free, Gather, ReduceScatter, Wait};
use model_parallel::Instruction;

/// Gathers each unit before its passes, and frees it after them.
///
/// `list` has the passes of one device: all micro-batches pass a unit before the next unit. Two units, one micro-batch:
///
/// ```text
/// passes      F0          F1 B1          B0
/// gathered    G0 p0 F0 d0 G1 p1 F1 B1 d1 G0 p0 B0 d0
/// ```
///
/// G is `Gather`, p is `Wait`, d is `Free`, and the number is the unit, as in `Instruction { unit: 0, action: Gather }`. The last unit goes forward and backward in one run of passes, so it
/// is gathered once. A run may also have passes of other kinds, such as `ForwardOnly` and `Recompute`.
///
/// The result has the same passes in the same order. A unit is whole for its passes only: no other unit is gathered before it is freed. The
/// check compares gathers, bytes and seconds with those of stage 7's list.
///
/// Do not use stage 7's `gathered`.
pub fn gathered(list: Vec<Instruction>) -> Vec<Instruction> {
    // TODO: what stands before a run of passes of one unit, and what stands behind it?
    todo!("the passes, with gathers and frees")
}

/// Starts the sum of each unit's gradients: a `ReduceScatter` right after everything that the unit does in the list.
///
/// `list` is a result of [`gathered`], or the passes alone:
///
/// ```text
/// reduced     G0 p0 F0 d0 G1 p1 F1 B1 d1 C1 G0 p0 B0 d0 C0
/// ```
///
/// C is `ReduceScatter`. The sum of a unit then travels while the units before it in the model go backward. The check adds the updates itself.
pub fn reduced(list: Vec<Instruction>) -> Vec<Instruction> {
    // What is the last thing that a unit does?
    todo!("the list, with a sum for each unit")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch07_fsdp, Answer { gathered, reduced }, run);

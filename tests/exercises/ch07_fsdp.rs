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
/// gathered    G0 W0 F0 D0 G1 W1 F1 B1 D1 G0 W0 B0 D0
/// ```
///
/// G is `Gather`, W is `Wait`, D is `Free`, and the number is the unit. The last unit goes forward and backward in one run of passes, so it
/// is gathered once. A run may also have passes of other kinds, such as `ForwardOnly` and `Recompute`.
///
/// The result has the same passes in the same order. A unit is whole for its passes only.
pub fn gathered(list: Vec<Instruction>) -> Vec<Instruction> {
    // TODO: what stands before a run of passes of one unit, and what stands behind it?
    todo!("the passes, with gathers and frees")
}

/// Starts the sum of each unit's gradients: a `ReduceScatter` right after everything that the unit does in the list.
///
/// `list` is a result of [`gathered`], or the passes alone:
///
/// ```text
/// reduced     G0 W0 F0 D0 G1 W1 F1 B1 D1 C1 G0 W0 B0 D0 C0
/// ```
///
/// C is `ReduceScatter`. The sum of a unit then travels while earlier units go backward. The check adds the updates itself.
pub fn reduced(list: Vec<Instruction>) -> Vec<Instruction> {
    todo!("the list, with a sum for each unit")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch07_fsdp, Answer { gathered, reduced }, run);

//! Chapter 7, `book/src/ch07-sharded-state.md`: gathers that start early enough, and not too early.
//!
//! Check your answer: `cargo course check ch07_prefetch`

use model_parallel::Action::{Gather, Wait};
use model_parallel::Instruction;

/// Moves the gathers of a list of ZeRO 3, so that units travel while other units compute.
///
/// `list` gathers each unit right before its `Wait`, so nothing is hidden. Three units, forward:
///
/// ```text
/// G0 p0 F0 d0 G1 p1 F1 d1 G2 p2 F2 …
///
/// computing      ··  F0  ··  F1  ··  F2
/// communicating  G0  ··  G1  ··  G2  ··
/// ```
///
/// G is `Gather`, p is `Wait`, F is `Forward`, d is `Free`. The whole list also has backward passes, sums and updates, and it may have several
/// micro-batches, or recompute units. A `Gather` starts and the rank goes on; a `Wait` waits for the parameters, and
/// gives their memory to the layers. The parameters of a unit take memory from its `Gather` to its `Free`.
///
/// The result has the same instructions, and only gathers have other places. The gathers stay in their order. The check simulates the list:
///
/// - At least 80 % of the communication is hidden: the rank computes meanwhile. In the check, communication takes 0.3 or 0.6 of the time of
///   computing.
/// - The parameters take at most the bytes of the rank's own chunks, and of two units.
///
/// Do not use stage 7's `prefetched`.
pub fn prefetched(list: Vec<Instruction>) -> Vec<Instruction> {
    // TODO: after which instruction does the next gather start?
    todo!("the list, with earlier gathers")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch07_prefetch, prefetched, run);

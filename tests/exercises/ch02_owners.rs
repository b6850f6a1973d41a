//! Chapter 2, `book/src/ch02-all-reduce.md`: every tensor is summed on its own owner.
//!
//! Check your answer: `cargo course check ch02_owners`

use candle_core::Tensor;
use params_and_allreduce::communicator::{Communicator, Error};

/// Chooses the owner of each tensor, a rank. `bytes` has the sizes of the tensors.
///
/// With naive all-reduce, rank 0 receives and sends every byte. If each tensor has its own owner, the ranks share this
/// work. Of four tensors with 100, 20, 4000 and 80 bytes on two ranks, the owner of the largest should own nothing else.
///
/// - Each tensor has exactly one owner, smaller than `ranks`. There is at least one rank.
/// - The owners are balanced: if one tensor moves from its owner to any other rank, the larger of these two ranks' bytes
///   never becomes smaller.
/// - Every rank computes the owners by itself, from the same `bytes`, and gets the same owners.
pub fn owners(bytes: &[usize], ranks: usize) -> Vec<usize> {
    // TODO: balance the bytes; then, below, sum each tensor on its owner.
    todo!("the owner of each tensor")
}

/// Sums each tensor over all ranks, on the owner of the tensor. Returns the sums, in the order of the tensors.
///
/// All ranks call this together, with tensors of the same shapes and types, and with the same `owners`: one rank for each
/// tensor, in any distribution. Tensors may have different types, and no elements. Three ranks, two tensors of one number:
///
/// ```text
///                rank 0      rank 1      rank 2      owners
/// before         1    10     2    20     4    40     [2, 0]
/// at the owners  ·    70     ·    ·      7    ·
/// after          7    70     7    70     7    70
/// ```
///
/// - Each byte of a tensor goes from each other rank to the owner, and from the owner to each other rank, once, in one
///   message per tensor, also if the tensor has no elements. Ranks that own nothing of a tensor send each other nothing of it.
/// - Every rank gets the same bits, and the owners make no difference to them.
/// - A rank sends all its tensors to their owners before it waits for anything. Then all owners work at the same time. In a
///   *chain of messages*, the sender of each message has received the one before, even if it does not use it. No chain may be longer than 2:
///
/// ```text
/// all at once    rank 0 ─ tensor 0 → rank 2 ─ sum 0 → rank 1
///                rank 1 ─ tensor 1 → rank 0 ─ sum 1 → rank 2         two chains of 2
///
/// one by one     rank 0 ─ tensor 0 → rank 2 ─ sum 0 → rank 1
///                ↳ rank 1 ─ tensor 1 → rank 0 ─ sum 1 → rank 2       a chain of 4
/// ```
///
/// How fast is your all-reduce, beside naive? Count the bytes that the busiest rank sends and receives, for 2 ranks and for 4, and
/// predict. Then `cargo course run ch02_owners` measures: it cuts the tensors of the chapter's table into eight.
///
/// [`Communicator::send`] returns at once, and messages from one rank to another arrive in order.
///
/// Fails when a tensor operation fails, or another rank stops or stalls.
pub fn allreduce(
    rank: &impl Communicator,
    tensors: &[Tensor],
    owners: &[usize],
) -> Result<Vec<Tensor>, Error> {
    todo!("the sums, each made on its owner")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch02_owners, Answer { owners, allreduce }, run);

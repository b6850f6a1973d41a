//! Collectives: calls that all ranks make together, written with `send` and `recv`.
//!
//! All ranks call a collective together, in the same order. The results, for three ranks that hold a, b and c, and for
//! the sum s = a + b + c, cut into the chunks s₀ s₁ s₂:
//!
//! ```text
//!                  rank 0     rank 1     rank 2
//! before           a          b          c
//! broadcast from 1 b          b          b
//! reduce-scatter   s₀         s₁         s₂
//! all-gather       a b c      a b c      a b c
//! barrier          no rank goes on before all ranks have arrived
//! ```

use std::ops::Range;

use candle_core::{DType, Tensor};

use super::{Communicator, Error};

/// Returns the elements of one chunk when `len` elements are cut into `chunks`. This rule holds in the whole course.
///
/// Chunks are runs of elements in order, and their sizes differ by at most one. With `len` = 10 and `chunks` = 4 they are
/// 0..3, 3..6, 6..8 and 8..10. With fewer elements than chunks, the last chunks are empty.
///
/// Panics when `chunk` is not below `chunks`.
// ANCHOR: chunk_range
pub fn chunk_range(len: usize, chunks: usize, chunk: usize) -> Range<usize> {
    assert!(chunk < chunks, "chunk {chunk} of {chunks}");
    let (size, larger) = (len / chunks, len % chunks);
    // The first `larger` chunks have one element more.
    let start = chunk * size + chunk.min(larger);
    start..start + size + usize::from(chunk < larger)
}
// ANCHOR_END: chunk_range

/// Returns the ranks after and before this one when all ranks stand in a ring.
pub(crate) fn neighbours(comm: &(impl Communicator + ?Sized)) -> (usize, usize) {
    let (me, world_size) = (comm.rank(), comm.world_size());
    ((me + 1) % world_size, (me + world_size - 1) % world_size)
}

// ANCHOR: reduce_scatter
/// Implements [`Communicator::reduce_scatter`].
///
/// A chunk starts at the rank after its owner, and reaches the owner after n − 1 hops. Each rank on the way adds its own
/// numbers. Three ranks, with the tensors a, b and c in three chunks each; parentheses hold what has just arrived:
///
/// ```text
///          rank 0 has        rank 1 has        rank 2 has
/// step 1   a₁ + (c₁)         b₂ + (a₂)         c₀ + (b₀)
/// step 2   a₀ + (c₀ + b₀)    b₁ + (a₁ + c₁)    c₂ + (b₂ + a₂)
/// ```
///
/// In each step, every rank sends one chunk. In total, a rank sends (n − 1)/n of the tensor, on any number n of ranks.
///
/// Fails as [`Communicator::reduce_scatter`] does.
pub fn reduce_scatter(
    comm: &(impl Communicator + ?Sized),
    tensor: &Tensor,
) -> Result<Tensor, Error> {
    let flat = tensor.detach().flatten_all()?;
    let (me, world_size) = (comm.rank(), comm.world_size());
    if world_size == 1 {
        return Ok(flat.force_contiguous()?);
    }
    let (next, previous) = neighbours(comm);
    let chunk = |index: usize| {
        let range = chunk_range(flat.elem_count(), world_size, index % world_size);
        flat.narrow(0, range.start, range.len())
    };
    send_input(comm, next, &chunk(me + world_size - 1)?)?;
    let mut step = 1;
    let sum = loop {
        let mine = chunk(me + world_size - 1 - step)?;
        let received = comm.recv(previous, mine.shape(), mine.dtype())?;
        let sum = ops::sum(&mine, &received)?;
        if step == world_size - 1 {
            break sum;
        }
        // Only this rank has seen the sum, and this rank is done with it.
        comm.send_shared(next, &sum)?;
        step += 1;
    };
    wait_until_read(comm, &flat, [previous], [next])?;
    Ok(sum)
}
// ANCHOR_END: reduce_scatter

// ANCHOR: all_gather
/// Implements [`Communicator::all_gather`].
///
/// In each step, a rank passes on the chunk that it received in the step before. Three ranks:
///
/// ```text
///          rank 0       rank 1       rank 2
/// before   s₀ ·  ·      ·  s₁ ·      ·  ·  s₂
/// step 1   s₀ ·  s₂     s₀ s₁ ·      ·  s₁ s₂
/// step 2   s₀ s₁ s₂     s₀ s₁ s₂     s₀ s₁ s₂
/// ```
///
/// Fails as [`Communicator::all_gather`] does.
pub fn all_gather(
    comm: &(impl Communicator + ?Sized),
    chunk: &Tensor,
    len: usize,
) -> Result<Tensor, Error> {
    let (me, world_size) = (comm.rank(), comm.world_size());
    let expected = chunk_range(len, world_size, me).len();
    if chunk.dims() != [expected] {
        let (me, found) = (comm.world_rank(me), chunk.dims());
        return Err(Error::Other(format!(
            "rank {me} of {world_size} gathers {len} elements: its chunk must be [{expected}], not {found:?}"
        )));
    }
    let (next, previous) = neighbours(comm);
    // Every place holds this rank's chunk until another chunk arrives.
    let mut chunks = vec![chunk.detach().force_contiguous()?; world_size];
    for step in 0..world_size - 1 {
        let passed_on = (me + world_size - step) % world_size;
        let arriving = (me + world_size - step - 1) % world_size;
        comm.send_shared(next, &chunks[passed_on])?;
        let length = chunk_range(len, world_size, arriving).len();
        chunks[arriving] = comm.recv(previous, &length.into(), chunk.dtype())?;
    }
    // The result owns its memory: other ranks hold the chunks too.
    Ok(Tensor::cat(&chunks, 0)?)
}
// ANCHOR_END: all_gather

// ANCHOR: broadcast
/// Implements [`Communicator::broadcast`]. Fails as [`Communicator::broadcast`] does.
pub fn broadcast(
    comm: &(impl Communicator + ?Sized),
    tensor: &Tensor,
    root: usize,
) -> Result<Tensor, Error> {
    let tensor = tensor.detach();
    // The other ranks read the root's copy, and not its input.
    let shared = if comm.rank() == root { tensor.force_contiguous()? } else { tensor };
    let received = broadcast_shared(comm, &shared, root)?;
    Ok(received.force_contiguous()?)
}

/// Gives every rank the root's tensor, along a binomial tree. Nobody may write to it any more.
///
/// In each round, every rank that has the tensor sends it to the rank at the round's distance, if there is one. Seven
/// ranks, root 0:
///
/// ```text
/// round 1   0 → 4
/// round 2   0 → 2   4 → 6
/// round 3   0 → 1   2 → 3   4 → 5
/// ```
pub(crate) fn broadcast_shared(
    comm: &(impl Communicator + ?Sized),
    tensor: &Tensor,
    root: usize,
) -> Result<Tensor, Error> {
    let (me, world_size) = (comm.rank(), comm.world_size());
    if root >= world_size {
        return Err(Error::NoSuchRank { rank: me, other: root, world_size });
    }
    // Ranks are numbered from the root on; `number` returns the rank at a place.
    let place = (me + world_size - root) % world_size;
    let number = |place: usize| (place + root) % world_size;
    let mut tensor = tensor.clone();
    let mut distance = world_size.next_power_of_two();
    while distance > 1 {
        distance /= 2;
        if place % (2 * distance) == distance {
            tensor = comm.recv(number(place - distance), tensor.shape(), tensor.dtype())?;
        } else if place.is_multiple_of(2 * distance) && place + distance < world_size {
            comm.send_shared(number(place + distance), &tensor)?;
        }
    }
    Ok(tensor)
}
// ANCHOR_END: broadcast

// ANCHOR: barrier
/// Implements [`Communicator::barrier`].
///
/// In round 1, each rank sends an empty message to the next rank, in round 2 to the rank at distance 2, then at 4, 8 and so
/// on. A message proves that its sender has called `barrier`, and that all ranks known to the sender have. The number of known
/// ranks doubles in each round. Rank 0 of five ranks:
///
/// ```text
/// round 1   message from 4           have arrived: 4 0
/// round 2   message from 3           have arrived: 2 3 4 0    (3 had a message from 2)
/// round 3   message from 1           have arrived: all        (1 had messages from 0 and 4)
/// ```
///
/// Fails when a message fails.
pub fn barrier(comm: &(impl Communicator + ?Sized)) -> Result<(), Error> {
    let (me, world_size) = (comm.rank(), comm.world_size());
    let mut distance = 1;
    while distance < world_size {
        send_empty(comm, (me + distance) % world_size)?;
        recv_empty(comm, (me + world_size - distance) % world_size)?;
        distance *= 2;
    }
    Ok(())
}
// ANCHOR_END: barrier

// ANCHOR: input
/// A tensor of at most this many bytes is copied sooner than an answer arrives.
const SMALL: usize = 16 << 10;

/// Sends the input of a collective. A small input is copied, and a large input is shared. Before the collective returns, all
/// receivers must have read it: the collective calls [`wait_until_read`], or receives a sum that contains the input.
pub(crate) fn send_input(
    comm: &(impl Communicator + ?Sized),
    to: usize,
    tensor: &Tensor,
) -> Result<(), Error> {
    if is_copied(comm, tensor) { comm.send(to, tensor) } else { comm.send_shared(to, tensor) }
}

/// Tells each rank in `read` by an empty message that this rank has read its input. Then waits until each rank in `by` has read
/// the input of this rank. `tensor` is as large as every input, or larger, so all ranks decide alike.
pub(crate) fn wait_until_read(
    comm: &(impl Communicator + ?Sized),
    tensor: &Tensor,
    read: impl IntoIterator<Item = usize>,
    by: impl IntoIterator<Item = usize>,
) -> Result<(), Error> {
    if is_copied(comm, tensor) {
        return Ok(());
    }
    read.into_iter().try_for_each(|other| send_empty(comm, other))?;
    by.into_iter().try_for_each(|other| recv_empty(comm, other))
}

/// Whether the collective sends copies of an input of this size.
fn is_copied(comm: &(impl Communicator + ?Sized), tensor: &Tensor) -> bool {
    ops::size_in_bytes(tensor) <= SMALL || !comm.shares_memory()
}

fn send_empty(comm: &(impl Communicator + ?Sized), to: usize) -> Result<(), Error> {
    comm.send_shared(to, &Tensor::zeros(0, DType::U8, &candle_core::Device::Cpu)?)
}

fn recv_empty(comm: &(impl Communicator + ?Sized), from: usize) -> Result<(), Error> {
    comm.recv(from, &0.into(), DType::U8).map(drop)
}
// ANCHOR_END: input

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_hold_every_element_once_and_differ_by_at_most_one() {
        for len in 0..40 {
            for chunks in 1..9 {
                let ranges: Vec<_> = (0..chunks).map(|c| chunk_range(len, chunks, c)).collect();
                let joined: Vec<usize> = ranges.iter().cloned().flatten().collect();
                assert_eq!(joined, (0..len).collect::<Vec<_>>(), "{len} in {chunks}");
                let sizes = || ranges.iter().map(ExactSizeIterator::len);
                assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
            }
        }
    }
}

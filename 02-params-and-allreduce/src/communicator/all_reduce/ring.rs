//! Reduce-scatter, then all-gather, around a ring.
//!
//! Three ranks, three numbers each; a chunk is one number:
//!
//! ```text
//!                  rank 0       rank 1       rank 2
//! before           1  2  3      10 20 30     100 200 300
//! reduce-scatter   111  ·  ·     ·  222  ·     ·  ·  333     (2 steps)
//! all-gather       111 222 333  111 222 333  111 222 333    (2 steps)
//! ```
//!
//! Each half moves (n − 1)/n of the tensor, so a rank sends 2(n − 1)/n of it: less than two tensors, on any number of
//! ranks. No algorithm that adds in the ranks can send less. The price is 2(n − 1) steps, each of which waits for the step
//! before. A small tensor on many ranks feels this.

// ANCHOR: ring
use candle_core::Tensor;

use crate::communicator::collectives::{chunk_range, neighbours, send_input};
use crate::communicator::{Communicator, Error};

/// Adds up all tensors, each chunk in the order of the ring. Returns the chunks of the sum. Fails as
/// [`Communicator::all_reduce`] does.
pub fn ring(comm: &(impl Communicator + ?Sized), tensor: &Tensor) -> Result<Vec<Tensor>, Error> {
    let (me, world_size) = (comm.rank(), comm.world_size());
    let (next, previous) = neighbours(comm);
    let flat = tensor.flatten_all()?;
    let chunk = |index: usize| {
        let range = chunk_range(flat.elem_count(), world_size, index);
        flat.narrow(0, range.start, range.len())
    };
    let mut chunks = (0..world_size).map(chunk).collect::<candle_core::Result<Vec<_>>>()?;
    let steps = 2 * (world_size - 1);
    for step in 0..steps {
        // Modulo the world size, `steps` is −2. So these are `me − 1 − step` and `me − 2 − step`, without a negative number.
        let passed_on = (me + steps + 1 - step) % world_size;
        let arriving = (me + steps - step) % world_size;
        let outgoing = &chunks[passed_on];
        // Only the first chunk is a part of this rank's input.
        match step {
            0 => send_input(comm, next, outgoing)?,
            _ => comm.send_shared(next, outgoing)?,
        }
        let mine = &chunks[arriving];
        let received = comm.recv(previous, mine.shape(), mine.dtype())?;
        // The first half is a reduce-scatter, the second half an all-gather.
        let adds = step < world_size - 1;
        chunks[arriving] = if adds { ops::sum(mine, &received)? } else { received };
    }
    // The chunk that this rank sent first has come back as part of the sum, so the next rank has read it.
    Ok(chunks)
}
// ANCHOR_END: ring

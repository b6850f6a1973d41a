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
//! The steps themselves are drawn in [`reduce_scatter`](crate::collective::reduce_scatter()) and
//! [`all_gather`](crate::collective::all_gather()). Each half moves (n − 1)/n of the tensor, so a rank
//! sends 2(n − 1)/n of it: less than two tensors' worth, however many ranks there are, and no algorithm
//! that adds in the ranks can send less. The price is 2(n − 1) steps that wait for each other, which is
//! what a small tensor on many ranks feels.
//!
//! # Piece by piece
//!
//! A finished chunk is made once, as a sum, and written once more, into the tensor that is returned. Of a
//! large tensor it would have left the cache in between. So where ranks share memory, a tensor larger than
//! `PIECE` goes around the ring piece by piece, and each piece's chunks are put into the result while they
//! are in the cache:
//!
//! ```text
//!               piece 0    piece 1    piece 2
//! of rank r     ░▓░        ░▓░        ░▓░        ▓ the chunk that rank r adds up last
//! the result    ███        ███        ███
//! ```
//!
//! That takes 2(n − 1) messages for each piece, one more in which ranks tell each other how long their
//! tensors are, and as many bytes of numbers as before. Where messages take longer than bytes in a cache are
//! worth, the whole tensor is one piece.

use candle_core::{DType, Tensor, WithDType};
use half::{bf16, f16};

use super::row::Row;
use crate::collective::all_gather::gather_shared;
use crate::collective::neighbours;
use crate::collective::reduce_scatter::scatter_lent;
use crate::communicator::{Communicator, Error};

/// Bytes that go around the ring at a time: so few that they stay in a processor's caches, and so many
/// that messages don't count. (Between two cores of an AMD EPYC, 45 MB in pieces of 512 KB to 4 MB take
/// about three quarters of the time that they take in one piece; in pieces of 64 KB they take as long.)
const PIECE: usize = 2 << 20;

/// The sum of all ranks' tensors; each chunk is added in the order of the ring.
///
/// # Errors
///
/// As [`allreduce`](super::allreduce).
pub fn ring(communicator: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    if communicator.world_size() == 1 {
        return Ok(tensor.force_contiguous()?);
    }
    let flat = tensor.flatten_all()?;
    let sum = match (communicator.shares_memory(), flat.dtype()) {
        (true, DType::F32) => piece_by_piece::<f32>(communicator, &flat)?,
        (true, DType::F64) => piece_by_piece::<f64>(communicator, &flat)?,
        (true, DType::BF16) => piece_by_piece::<bf16>(communicator, &flat)?,
        (true, DType::F16) => piece_by_piece::<f16>(communicator, &flat)?,
        // Joined at the end, wherever it is.
        _ => Tensor::cat(&chunks_of_sum(communicator, &flat)?, 0)?,
    };
    // At once: what this rank lent is part of a sum that has come round to it.
    communicator.reclaim()?;
    Ok(sum.reshape(tensor.shape())?)
}

/// The sum of all ranks' tensors in CPU memory.
fn piece_by_piece<T: WithDType>(
    communicator: &impl Communicator,
    tensor: &Tensor,
) -> Result<Tensor, Error> {
    let len = tensor.elem_count();
    let piece = PIECE / T::DTYPE.size_in_bytes();
    if len > piece {
        same_length(communicator, len)?;
    }
    let mut sum = Row::<T>::with_capacity(len);
    // An empty tensor is a piece too: everyone waits for everyone.
    for start in (0..len.max(1)).step_by(piece) {
        let piece = tensor.narrow(0, start, piece.min(len - start))?;
        for chunk in chunks_of_sum(communicator, &piece)? {
            sum.append(&chunk)?;
        }
    }
    Ok(sum.into_tensor()?)
}

/// The sum as it comes from the ring: every rank has all its chunks, and some rank has added up each.
fn chunks_of_sum(communicator: &impl Communicator, tensor: &Tensor) -> Result<Vec<Tensor>, Error> {
    let chunk = scatter_lent(communicator, tensor)?;
    gather_shared(communicator, chunk, tensor.elem_count())
}

/// Makes sure that the rank before this one has as many numbers: with whole pieces more or fewer it would find out too
/// late, when others have returned.
fn same_length(communicator: &impl Communicator, len: usize) -> Result<(), Error> {
    let (next, previous) = neighbours(communicator);
    let mine = Tensor::new(&[len as i64], communicator.device())?;
    communicator.send(next, &mine)?;
    let theirs = communicator.recv(previous, mine.shape(), mine.dtype())?.to_vec1::<i64>()?;
    if theirs == [len as i64] {
        return Ok(());
    }
    Err(Error::Mismatch {
        rank: communicator.number_of(previous),
        found: format!("{} numbers", theirs[0]),
        expected: format!("{len} numbers"),
        waiting: communicator.number_of(communicator.rank()),
    })
}

//! All-reduce: every rank contributes a tensor, and every rank gets the sum.
//!
//! This chapter has four algorithms. NCCL and MPI have an all-reduce of their own: [`Algorithm::Native`]. All
//! algorithms add in an order that depends on the number of ranks.

pub mod naive;
pub mod one_shot;
pub mod ring;
pub mod tree;
pub mod two_levels;

use std::fmt;

use candle_core::{DType, Device, Shape, Storage, Tensor, WithDType, bail};
use clap::ValueEnum;
use half::{bf16, f16};
use harness::cli::name_of;
use harness::report::trace::COMMUNICATION;
use tracing::info_span;
use tracing::span::EnteredSpan;

pub use {naive::naive, one_shot::one_shot, ring::ring, tree::tree, two_levels::two_levels};

use crate::communicator::collectives::neighbours;
use crate::communicator::{Communicator, Error};

// ANCHOR: algorithm
/// The algorithm of an all-reduce. The default has the fewest messages in a row between few devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Algorithm {
    /// Everyone gets all tensors and adds them up
    #[default]
    OneShot,
    /// Gather to the first rank, add, broadcast back
    Naive,
    /// Add up along a binomial tree, broadcast down it
    Tree,
    /// Reduce-scatter, then all-gather, around a ring
    Ring,
    /// The all-reduce of the library that connects the ranks: NCCL's or MPI's
    Native,
}
// ANCHOR_END: algorithm

impl Algorithm {
    /// The algorithms of this chapter. They are made of `send` and `recv`, so they run everywhere.
    pub const OURS: [Self; 4] = [Self::OneShot, Self::Naive, Self::Tree, Self::Ring];
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name_of(self))
    }
}

// ANCHOR: all_reduce
/// An algorithm: it returns the chunks of the sum, in order.
type SumOf<C> = fn(&C, &Tensor) -> Result<Vec<Tensor>, Error>;

/// Implements [`Communicator::all_reduce`] with `send` and `recv`, which gives no native all-reduce. Fails as
/// [`Communicator::all_reduce`] does.
pub fn all_reduce<C: Communicator + ?Sized>(
    comm: &C,
    tensor: &Tensor,
    algorithm: Algorithm,
) -> Result<Tensor, Error> {
    let _span = span(ops::size_in_bytes(tensor), tensor.shape());
    let tensor = tensor.detach();
    if comm.world_size() == 1 {
        return Ok(tensor.force_contiguous()?);
    }
    let sum_of: SumOf<C> = match algorithm {
        Algorithm::OneShot => |comm, tensor| Ok(vec![one_shot(comm, tensor)?]),
        Algorithm::Naive => |comm, tensor| Ok(vec![naive(comm, tensor)?]),
        Algorithm::Tree => |comm, tensor| Ok(vec![tree(comm, tensor)?]),
        Algorithm::Ring => |comm, tensor| ring(comm, tensor),
        Algorithm::Native => return Err(no_native()),
    };
    // One-shot between two ranks reads each tensor once. Pieces would only add a copy.
    let once = algorithm == Algorithm::OneShot && comm.world_size() == 2;
    let pieces = comm.shares_memory() && ops::size_in_bytes(&tensor) > PIECE && !once;
    match tensor.dtype() {
        DType::F32 if pieces => return in_pieces::<f32, C>(comm, &tensor, sum_of),
        DType::F64 if pieces => return in_pieces::<f64, C>(comm, &tensor, sum_of),
        DType::BF16 if pieces => return in_pieces::<bf16, C>(comm, &tensor, sum_of),
        DType::F16 if pieces => return in_pieces::<f16, C>(comm, &tensor, sum_of),
        _ => {}
    }
    let sum = match &sum_of(comm, &tensor)?[..] {
        // Only this rank holds the sum. The other algorithms' sums are shared: other ranks read them, too.
        [own] if algorithm == Algorithm::OneShot => own.clone(),
        [shared] => shared.force_contiguous()?,
        chunks => Tensor::cat(chunks, 0)?,
    };
    Ok(sum.reshape(tensor.shape())?)
}
// ANCHOR_END: all_reduce

/// The span of an all-reduce in a trace.
pub fn span(bytes: usize, shape: &Shape) -> EnteredSpan {
    let shape = shape.dims();
    info_span!(target: COMMUNICATION, "all-reduce", bytes, ?shape).entered()
}

// ANCHOR: in_pieces
/// The bytes of a piece of a large tensor: few enough for a processor's caches, and enough to make the time of messages small.
const PIECE: usize = 2 << 20;

/// Adds up a large tensor in pieces. The sum of a piece is written to the result while the piece is in the cache.
fn in_pieces<T: WithDType, C: Communicator + ?Sized>(
    comm: &C,
    tensor: &Tensor,
    sum_of: SumOf<C>,
) -> Result<Tensor, Error> {
    let (flat, len) = (tensor.flatten_all()?, tensor.elem_count());
    check_length(comm, len)?;
    let piece = PIECE / T::DTYPE.size_in_bytes();
    let mut all: Vec<T> = Vec::with_capacity(len);
    for start in (0..len).step_by(piece) {
        let chunks = sum_of(comm, &flat.narrow(0, start, piece.min(len - start))?)?;
        chunks.iter().try_for_each(|chunk| append(&mut all, chunk))?;
    }
    Ok(Tensor::from_vec(all, tensor.shape(), &Device::Cpu)?)
}
// ANCHOR_END: in_pieces

/// Checks that the previous rank has as many numbers. Otherwise some ranks would return before the error is found.
fn check_length(comm: &(impl Communicator + ?Sized), len: usize) -> Result<(), Error> {
    let (next, previous) = neighbours(comm);
    let mine = Tensor::new(&[len as i64], &Device::Cpu)?;
    comm.send_shared(next, &mine)?;
    let theirs = comm.recv(previous, mine.shape(), mine.dtype())?.to_vec1::<i64>()?;
    if theirs == [len as i64] {
        return Ok(());
    }
    Err(Error::Mismatch {
        rank: comm.world_rank(previous),
        found: format!("{} numbers", theirs[0]),
        expected: format!("{len} numbers"),
        waiting: comm.world_rank(comm.rank()),
    })
}

/// Appends the numbers of a contiguous CPU tensor.
fn append<T: WithDType>(row: &mut Vec<T>, tensor: &Tensor) -> candle_core::Result<()> {
    let (storage, layout) = tensor.storage_and_layout();
    let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets())
    else {
        bail!("expected a contiguous tensor in CPU memory, got {tensor:?}");
    };
    row.extend_from_slice(&storage.as_slice::<T>()?[start..end]);
    Ok(())
}

/// The error of [`Algorithm::Native`] where no library has an all-reduce.
pub fn no_native() -> Error {
    Error::Other(
        "there is no native all-reduce here: it needs NCCL (a GPU of its own for every device, and a program built with \
         --features nccl) or MPI (ranks that are processes, several started by mpirun, and --features mpi); the other \
         algorithms run everywhere"
            .to_owned(),
    )
}

//! What a device knows about the others.
//!
//! Devices that work together are numbered: each has a *rank*, from 0 to the *world size* minus one.
//! A [`Communicator`] is one rank's end of the connections to all others. Everything that several devices
//! do together is made of its two messages, [`send`](Communicator::send) and
//! [`recv`](Communicator::recv).
//!
//! # Messages without copies
//!
//! Where ranks share memory, the copy that `send` makes can cost more than the message. Two other ways to
//! send save it, each with a promise of the sender's:
//!
//! | | the sender promises | what arrives | as in MPI |
//! | --- | --- | --- | --- |
//! | `send` | nothing | the receiver's own | `MPI_Bsend` |
//! | `share` | that nobody ever writes to the tensor again | is only read | |
//! | `lend` | not to write to it before `reclaim` returns | is only read, for as long as it is held | `MPI_Isend`, `MPI_Waitall` |
//!
//! Where ranks share nothing, all three are the same. A receiver that only reads takes the message with
//! [`borrow`](Communicator::borrow); [`recv`](Communicator::recv) makes a copy of what was lent.

mod collectives;
mod received;
mod subset;

use std::fmt;
use std::sync::Arc;

use candle_core::{DType, Device, Shape, Tensor};

pub use collectives::Collectives;
pub(crate) use received::Memory;
pub use received::Received;
pub use subset::Subset;

/// Why a message did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The tensor operation around a message failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// A rank stopped, so what depends on it can never be finished.
    #[error("rank {rank} {why}, and rank {waiting} still needed it")]
    RankStopped {
        /// The rank that stopped first.
        rank: usize,
        /// How it stopped.
        why: String,
        /// The rank that found out.
        waiting: usize,
    },
    /// A rank sent nothing in time, or keeps what it was lent.
    #[error("rank {waiting} waited {seconds:.1} s: rank {rank} is alive but sends nothing")]
    TimedOut {
        /// The rank that everyone waits for in the end.
        rank: usize,
        /// How long this rank waited.
        seconds: f64,
        /// The rank that waited.
        waiting: usize,
    },
    /// Ranks wait for each other in a circle, so none of them will ever get its message.
    #[error("deadlock: {}", in_words(circle))]
    Deadlock {
        /// Each waits for the next, and the last for the first. The smallest comes first.
        circle: Vec<usize>,
    },
    /// What arrived is not what was expected: two ranks are not doing the same thing.
    #[error("rank {rank} sent {found}, but rank {waiting} expected {expected}")]
    Mismatch {
        /// The sender.
        rank: usize,
        /// Element type and shape that arrived.
        found: String,
        /// Element type and shape that were expected.
        expected: String,
        /// The receiver.
        waiting: usize,
    },
    /// A rank that does not exist, or the rank itself.
    #[error("rank {rank} cannot exchange messages with rank {other} in a world of {world_size}")]
    NoSuchRank {
        /// The caller.
        rank: usize,
        /// Whom it named.
        other: usize,
        /// How many ranks there are.
        world_size: usize,
    },
    /// A message between two ranks was asked for where an engine connects all of them together only.
    #[error(
        "{engine} alone connects these ranks: it has sums and broadcasts for all of them, and no messages between two"
    )]
    NoMessages {
        /// What connects them.
        engine: Engine,
    },
    /// A production engine's all-reduce was asked for where there is none.
    #[error("there is no {engine} here: it needs {}; the other algorithms run everywhere", engine.needs())]
    NoNativeAllReduce {
        /// The engine that is missing.
        engine: Engine,
    },
}

/// `rank 0 waits for rank 2, which waits for rank 0`
fn in_words(circle: &[usize]) -> String {
    let (mut ranks, first) = (circle.iter(), circle.first());
    let start = ranks.next().map(|rank| format!("rank {rank}")).unwrap_or_default();
    let waits: Vec<String> =
        ranks.chain(first).map(|rank| format!(" waits for rank {rank}")).collect();
    start + &waits.join(", which")
}

/// A library that makes all-reduces itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// NVIDIA's, between GPUs.
    Nccl,
    /// The one that connects processes.
    Mpi,
}

impl Engine {
    fn needs(self) -> &'static str {
        match self {
            Self::Nccl => {
                "a GPU of its own for every device and a program built with --features nccl"
            }
            Self::Mpi => "processes started by mpirun and a program built with --features mpi",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nccl => "NCCL",
            Self::Mpi => "MPI",
        })
    }
}

/// One rank's end of the connections to all other ranks.
pub trait Communicator {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// Where received tensors are put.
    fn device(&self) -> &Device;

    /// What errors call a rank of this world: its number among all ranks, of which these may be some.
    fn number_of(&self, rank: usize) -> usize {
        rank
    }

    /// Whether what is [shared](Self::share) and [lent](Self::lend) is read where it lies, in CPU memory.
    ///
    /// The same for all ranks of a world. Then a message costs no copy, and what matters is which caches its
    /// bytes are in.
    fn shares_memory(&self) -> bool {
        false
    }

    /// Sends a tensor to another rank and returns at once.
    ///
    /// What is sent is the tensor's value at the time of the call; the sender may change its variables
    /// right afterwards.
    ///
    /// # Errors
    ///
    /// When `to` is no other rank of this world, or has stopped.
    // ANCHOR: send
    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error>;
    // ANCHOR_END: send

    /// [`send`](Self::send)s a tensor that nobody will write to any more.
    ///
    /// Within one process both ranks may then hold the same memory, and the copy is saved.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    fn share(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.send(to, tensor)
    }

    /// [`send`](Self::send)s a tensor that stays as it is until [`reclaim`](Self::reclaim) returns.
    ///
    /// Within one process the other rank may then read this rank's memory, and the copy is saved.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    fn lend(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.send(to, tensor)
    }

    /// Waits until nobody reads any more what this rank has [lent](Self::lend).
    ///
    /// # Errors
    ///
    /// When a rank that has not read it yet has stopped or stalls.
    fn reclaim(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Waits for the next tensor from another rank; it arrives on this rank's device.
    ///
    /// The receiver says what it expects, as a transport between machines needs to know beforehand. What
    /// was sent has memory of its own. What was [`share`](Self::share)d may not: copy it before writing.
    ///
    /// # Errors
    ///
    /// When `from` is no other rank of this world, when it or a rank that it waits for has stopped or
    /// stalls, or when something else arrives than was expected.
    // ANCHOR: recv
    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error>;
    // ANCHOR_END: recv

    /// [`recv`](Self::recv)s a tensor that this rank only reads.
    ///
    /// If it was [lent](Self::lend), it goes back when the result is dropped. A rank must do so before it
    /// waits for anything that the lender does after [`reclaim`](Self::reclaim).
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    fn borrow(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Received, Error> {
        self.recv(from, shape, dtype).map(Received::shared)
    }

    /// What makes this world's collectives, where its ranks have no messages; `None` where they have.
    fn collectives(&self) -> Option<&dyn Collectives> {
        None
    }

    /// The sum of all ranks' tensors, made by an engine that this communicator runs on.
    ///
    /// It keeps what [`allreduce`](crate::allreduce) promises.
    ///
    /// # Errors
    ///
    /// [`Error::NoNativeAllReduce`] where there is none, and those of [`allreduce`](crate::allreduce).
    fn native_all_reduce(&self, engine: Engine, _tensor: &Tensor) -> Result<Tensor, Error> {
        Err(Error::NoNativeAllReduce { engine })
    }
}

/// Any communicator that can be kept and called from any thread: what operations and wrappers hold.
pub type SharedCommunicator = Arc<dyn Communicator + Send + Sync>;

impl<C: Communicator + ?Sized> Communicator for Arc<C> {
    fn rank(&self) -> usize {
        (**self).rank()
    }

    fn world_size(&self) -> usize {
        (**self).world_size()
    }

    fn device(&self) -> &Device {
        (**self).device()
    }

    fn number_of(&self, rank: usize) -> usize {
        (**self).number_of(rank)
    }

    fn shares_memory(&self) -> bool {
        (**self).shares_memory()
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        (**self).send(to, tensor)
    }

    fn share(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        (**self).share(to, tensor)
    }

    fn lend(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        (**self).lend(to, tensor)
    }

    fn reclaim(&self) -> Result<(), Error> {
        (**self).reclaim()
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        (**self).recv(from, shape, dtype)
    }

    fn borrow(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Received, Error> {
        (**self).borrow(from, shape, dtype)
    }

    fn collectives(&self) -> Option<&dyn Collectives> {
        (**self).collectives()
    }

    fn native_all_reduce(&self, engine: Engine, tensor: &Tensor) -> Result<Tensor, Error> {
        (**self).native_all_reduce(engine, tensor)
    }
}

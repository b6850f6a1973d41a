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
mod error;
mod received;
mod subset;

use std::sync::Arc;

use candle_core::{DType, Device, Shape, Tensor};

pub use collectives::Collectives;
pub use error::{Engine, Error};
pub(crate) use received::Memory;
pub use received::Received;
pub use subset::Subset;

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

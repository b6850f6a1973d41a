//! What a device knows about the others.
//!
//! Devices that work together are numbered: each has a *rank*, from 0 to the *world size* minus one.
//! A [`Communicator`] is one rank's end of the connections to all others. Everything that several devices
//! do together is made of its two messages, [`send`](Communicator::send) and
//! [`recv`](Communicator::recv).

use candle_core::{DType, Device, Shape, Tensor};

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
    /// A rank sent nothing in time.
    #[error("rank {waiting} waited {seconds:.1} s: rank {rank} is alive but sends nothing")]
    TimedOut {
        /// The rank that everyone waits for in the end.
        rank: usize,
        /// How long this rank waited.
        seconds: f64,
        /// The rank that waited.
        waiting: usize,
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
}

/// One rank's end of the connections to all other ranks.
pub trait Communicator {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// Where received tensors are put.
    fn device(&self) -> &Device;

    /// Sends a tensor to another rank and returns at once.
    ///
    /// What is sent is the tensor's value at the time of the call; the sender may change its variables
    /// right afterwards.
    ///
    /// # Errors
    ///
    /// When `to` is no other rank of this world, or has stopped.
    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error>;

    /// Waits for the next tensor from another rank. It has memory of its own, on this rank's device.
    ///
    /// The receiver says what it expects, as a transport between machines needs to know beforehand.
    ///
    /// # Errors
    ///
    /// When `from` is no other rank of this world, when it or a rank that it waits for has stopped or
    /// stalls, or when something else arrives than was expected.
    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error>;
}

//! Messages between threads.
//!
//! A message is a tensor in CPU memory that nobody writes to. Between CPU slices that is one copy, made
//! by the sender, or none when the tensor is shared or lent: the message is then a counted reference to
//! it. Between GPUs it passes through the host: slower than a direct copy, and right everywhere.
//!
//! With a loan goes one end of a channel that nothing is sent through. When the receiver is done, or gone,
//! that end is closed, and so the sender knows.
//!
//! Every message is counted where it is sent, with its bytes: what an algorithm costs is a number here,
//! not a claim.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use candle_core::{DType, Device, Shape, Tensor};
use devices::move_view;

use super::channels::{Channels, Closed};
use super::patience::wait;
use super::roster::{Chain, FirstCause, Roster};
use crate::communicator::{Error, Memory, Received};
use harness::lock::locked;

/// A tensor of up to this many bytes is copied sooner than the news of its return arrives.
const SMALL: usize = 16 << 10;

/// What a rank has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// How many messages.
    pub messages: u64,
    /// The bytes of their elements.
    pub bytes: u64,
}

/// One rank's ends of the channels to and from all others.
#[derive(Debug)]
pub(super) struct Link {
    rank: usize,
    channels: Arc<Channels>,
    roster: Arc<Roster>,
    timeout: Duration,
    /// To whom this rank has lent something, and how it will know that it was read.
    loans: Mutex<Vec<(usize, Receiver<Infallible>)>>,
    messages_sent: AtomicU64,
    bytes_sent: AtomicU64,
}

impl Link {
    /// Connects every rank with every other; the links come in rank order.
    pub(super) fn connect(world_size: usize, roster: &Arc<Roster>, timeout: Duration) -> Vec<Self> {
        let channels = Arc::new(Channels::new(world_size));
        let link = |rank| Self {
            rank,
            channels: Arc::clone(&channels),
            roster: Arc::clone(roster),
            timeout,
            loans: Mutex::default(),
            messages_sent: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
        };
        (0..world_size).map(link).collect()
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn world_size(&self) -> usize {
        self.channels.world_size()
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Lets go of the ends of all channels to others: whoever waits for this rank is told so.
    pub(super) fn close(&self) {
        self.channels.close(self.rank);
    }

    /// What this rank has sent so far.
    pub(super) fn traffic(&self) -> Traffic {
        Traffic {
            messages: self.messages_sent.load(Ordering::Relaxed),
            bytes: self.bytes_sent.load(Ordering::Relaxed),
        }
    }

    /// Queues a copy of the tensor and returns at once.
    pub(super) fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        // A copy of exactly what the tensor shows, even if it is a view of something larger. From a GPU,
        // the copy to the host is one.
        let tensor = tensor.detach();
        let copy = if tensor.device().is_cpu() { tensor.force_contiguous()? } else { tensor };
        self.queue(to, &copy, Memory::Own)
    }

    /// Queues the tensor itself, where it is in CPU memory, and returns at once.
    pub(super) fn share(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.queue(to, tensor, Memory::Shared)
    }

    /// As [`share`](Self::share), until [`reclaim`](Self::reclaim).
    pub(super) fn lend(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        if bytes(tensor) <= SMALL || !tensor.device().is_cpu() {
            return self.send(to, tensor);
        }
        let (until_closed, loan) = channel();
        self.queue(to, tensor, Memory::Lent { _until_closed: until_closed })?;
        locked(&self.loans).push((to, loan));
        Ok(())
    }

    fn queue(&self, to: usize, tensor: &Tensor, memory: Memory) -> Result<(), Error> {
        self.check(to)?;
        let message = move_view(&tensor.detach(), &Device::Cpu)?.contiguous()?;
        let bytes = bytes(&message);
        let message = Received::new(message, memory);
        self.channels.send(self.rank, to, message).map_err(|Closed| self.stopped(to))?;
        self.messages_sent.fetch_add(1, Ordering::Relaxed);
        self.bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until everything is read that this rank has lent.
    pub(super) fn reclaim(&self) -> Result<(), Error> {
        let mut loans = locked(&self.loans);
        for (to, loan) in loans.drain(..) {
            let waiting = || match wait(&loan, self.timeout) {
                Err(RecvTimeoutError::Timeout) => Err(self.timed_out(to)),
                // Read, or thrown away by a rank that has stopped: nobody reads it now. Who needs
                // something from that rank will be told.
                Err(RecvTimeoutError::Disconnected) => Ok(()),
                Ok(never) => match never {},
            };
            self.roster.while_waiting(self.rank, to, waiting)?;
        }
        Ok(())
    }

    /// Waits for the next message from a rank; it arrives in CPU memory.
    pub(super) fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Received, Error> {
        self.check(from)?;
        let inbox = self.channels.inbox(from, self.rank).map_err(|Closed| self.stopped(from))?;
        let inbox = locked(&inbox);
        let waiting = || match wait(&inbox, self.timeout) {
            // Asked while this rank still counts as waiting, so that nobody blames it meanwhile.
            Err(RecvTimeoutError::Timeout) => Err(self.timed_out(from)),
            Err(RecvTimeoutError::Disconnected) => Err(self.stopped(from)),
            Ok(message) => Ok(message),
        };
        let message = self.roster.while_waiting(self.rank, from, waiting)?;
        if message.shape() != shape || message.dtype() != dtype {
            return Err(Error::Mismatch {
                rank: from,
                found: format!("{:?} {:?}", message.dtype(), message.dims()),
                expected: format!("{dtype:?} {:?}", shape.dims()),
                waiting: self.rank,
            });
        }
        Ok(message)
    }

    /// Whom this rank can exchange messages with.
    fn check(&self, other: usize) -> Result<(), Error> {
        let (rank, world_size) = (self.rank, self.world_size());
        if other == rank || other >= world_size {
            return Err(Error::NoSuchRank { rank, other, world_size });
        }
        Ok(())
    }

    /// The channel is closed. Whoever failed first is the cause; if nobody failed, the other rank has simply
    /// returned too early.
    fn stopped(&self, other: usize) -> Error {
        if self.channels.has_closed(self.rank) {
            return ended(self.rank);
        }
        let early = FirstCause::Rank { rank: other, why: "returned early".to_owned() };
        self.because_of(self.roster.accuse(early))
    }

    /// Nothing came in time. Another rank may have failed meanwhile in a way that never reached this
    /// one: then that is the cause, and not what the chain of waiting ranks leads to.
    fn timed_out(&self, other: usize) -> Error {
        if self.channels.has_closed(self.rank) {
            return ended(self.rank);
        }
        let seconds = self.timeout.as_secs_f64();
        let found = match self.roster.chain(other) {
            Chain::Ends { rank } => {
                FirstCause::Rank { rank, why: format!("sent nothing for {seconds:.1} s") }
            }
            Chain::Closes { circle } => FirstCause::Deadlock { circle },
        };
        let cause = self.roster.accuse(found.clone());
        match cause {
            FirstCause::Rank { rank, .. } if cause == found => {
                Error::TimedOut { rank, seconds, waiting: self.rank }
            }
            cause => self.because_of(cause),
        }
    }

    /// What this rank is told of another's failure.
    fn because_of(&self, cause: FirstCause) -> Error {
        match cause {
            FirstCause::Rank { rank, why } => Error::RankStopped { rank, why, waiting: self.rank },
            FirstCause::Deadlock { circle } => Error::Deadlock { circle },
        }
    }
}

/// What a thread of a rank's is told that goes on talking after the rank has returned: nobody else is to blame.
pub(super) fn ended(rank: usize) -> Error {
    Error::RankStopped { rank, why: "has ended".to_owned(), waiting: rank }
}

fn bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}

//! The communicator of an answer.

use std::sync::{Arc, Mutex};
use std::thread::{self as threads, ThreadId};

use candle_core::{DType, Device, Shape, Tensor};
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator};
use params_and_allreduce::forward;
use params_and_allreduce::thread::{self, Traffic};

use harness::lock::locked;

use super::meeting::Meeting;
use super::promises::Promises;
use super::sent::Sent;

/// One rank inside its own thread: its device, its number and the meeting point.
///
/// A rank works in that thread only, because one thread drives one device. If a waiting rank could send from another thread, a
/// circle of waiting ranks would prove no deadlock.
pub struct Rank {
    slot: thread::Rank,
    meeting: Arc<Meeting>,
    promises: Mutex<Promises>,
    thread: ThreadId,
}

impl Rank {
    pub(super) fn new(slot: &thread::Rank, meeting: &Arc<Meeting>) -> Self {
        let (slot, meeting) = (slot.clone(), Arc::clone(meeting));
        Self { slot, meeting, promises: Mutex::default(), thread: threads::current().id() }
    }

    /// The messages that this rank has sent so far.
    pub fn sent(&self) -> Sent {
        self.meeting.sent(self.rank())
    }

    /// The number and the bytes of these messages.
    pub fn traffic(&self) -> Traffic {
        self.sent().traffic
    }

    /// Fails when a tensor that this rank has shared was written to.
    pub(super) fn promises_kept(&self) -> Result<(), String> {
        locked(&self.promises).kept()
    }

    fn check_thread(&self) -> Result<(), Error> {
        if threads::current().id() == self.thread {
            return Ok(());
        }
        let rank = self.slot.rank();
        Err(Error::Other(format!(
            "rank {rank} is used in another thread: one thread drives one device"
        )))
    }
}

impl Communicator for Rank {
    forward!(slot: rank, world_size, device);

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.check_thread()?;
        // A copy: later writes of one rank do not change the other rank's tensor.
        self.meeting.send(self.rank(), to, tensor.detach().force_contiguous()?)
    }

    fn send_shared(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        locked(&self.promises).share(to, tensor)?;
        self.send(to, tensor)
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        self.check_thread()?;
        let tensor = self.meeting.receive(self.rank(), from)?;
        if tensor.shape() != shape || tensor.dtype() != dtype {
            return Err(Error::Mismatch {
                rank: from,
                found: format!("{:?} {:?}", tensor.dtype(), tensor.dims()),
                expected: format!("{dtype:?} {:?}", shape.dims()),
                waiting: self.rank(),
            });
        }
        Ok(tensor)
    }

    fn background(&self) -> Result<SharedCommunicator, Error> {
        Err(Error::Other("the ranks of an exercise have one connection".to_owned()))
    }
}

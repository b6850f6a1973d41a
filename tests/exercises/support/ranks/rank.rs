//! The communicator of an answer.

use std::sync::{Arc, Mutex};
use std::thread::{self as threads, ThreadId};

use candle_core::{DType, Device, Shape, Tensor};
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator};
use params_and_allreduce::forward;
use params_and_allreduce::thread::{self, Traffic};

use harness::lock::locked;

use super::meeting::{Meeting, Sent};
use crate::expectation::numbers;

/// A part of the failure of a rank that has written to a tensor that it had shared.
pub const PROMISE_BROKEN: &str = " was written to afterwards";

/// The law about shared tensors.
pub const PROMISE: &str =
    "a shared tensor is not written to again, and an update writes to a variable: `send` it";

/// One rank inside its own thread: its device, its number and the meeting point.
///
/// A rank works in that thread only, because one thread drives one device. If a waiting rank could send from another thread, a
/// circle of waiting ranks would prove no deadlock.
pub struct Rank {
    slot: thread::Rank,
    meeting: Arc<Meeting>,
    /// The tensors that this rank has shared: the receiver, the memory, and its bits at that time. In the exercises every message
    /// is a copy, so writing to a shared tensor changes nothing. The comparison of the bits finds it every time.
    shared: Mutex<Vec<(usize, Tensor, Vec<u64>)>>,
    thread: ThreadId,
}

impl Rank {
    pub(super) fn new(slot: &thread::Rank, meeting: &Arc<Meeting>) -> Self {
        let (slot, meeting) = (slot.clone(), Arc::clone(meeting));
        Self { slot, meeting, shared: Mutex::default(), thread: threads::current().id() }
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
        let is_broken =
            |(_, memory, held): &&(_, _, Vec<u64>)| bits(memory).ok().as_ref() != Some(held);
        match locked(&self.shared).iter().find(is_broken) {
            Some((to, ..)) => {
                let told = format!("a tensor that it had shared with rank {to}{PROMISE_BROKEN}");
                Err(format!("broke a promise: {told}"))
            }
            None => Ok(()),
        }
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
        // A detached tensor shares the memory of its variable.
        let memory = tensor.detach();
        let held = bits(&memory)?;
        locked(&self.shared).push((to, memory, held));
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

/// The bits of a tensor's numbers: as bits, NaN equals NaN.
fn bits(tensor: &Tensor) -> candle_core::Result<Vec<u64>> {
    Ok(numbers(tensor)?.into_iter().map(f64::to_bits).collect())
}

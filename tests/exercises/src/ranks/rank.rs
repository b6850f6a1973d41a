//! One rank, as an answer sees it.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use candle_core::{DType, Device, Shape, Tensor};
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::thread::{self, Traffic};

use super::meeting::Meeting;
use super::promises::Promises;
use super::sent::Sent;

/// One rank inside its own thread: its device, and its place among the others.
///
/// It stays in that thread. (One thread drives one device; and a rank that waits must not be able to send
/// from elsewhere, or no circle of waiting ranks would prove a deadlock.)
#[derive(Debug)]
pub struct Rank<'a> {
    slot: &'a thread::Rank<'a>,
    meeting: &'a Meeting,
    promises: RefCell<Promises>,
    stays_in_its_thread: PhantomData<Cell<()>>,
}

impl<'a> Rank<'a> {
    pub(super) fn new(slot: &'a thread::Rank<'a>, meeting: &'a Meeting) -> Self {
        Self { slot, meeting, promises: RefCell::default(), stays_in_its_thread: PhantomData }
    }

    /// What this rank has sent so far.
    pub fn sent(&self) -> Sent {
        self.meeting.sent(self.rank())
    }

    /// How much that is.
    pub fn traffic(&self) -> Traffic {
        self.sent().traffic
    }

    /// Whether nobody has written to what this rank has shared, nor to what it has lent and not reclaimed; else
    /// what became of it.
    pub(super) fn promises_kept(&self) -> Result<(), String> {
        self.promises.borrow().kept()
    }
}

impl Communicator for Rank {
    fn rank(&self) -> usize {
        self.slot.rank()
    }

    fn world_size(&self) -> usize {
        self.slot.world_size()
    }

    fn device(&self) -> &Device {
        self.slot.device()
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        // A copy, so that neither rank sees what the other writes afterwards.
        self.meeting.send(self.rank(), to, tensor.detach().force_contiguous()?)
    }

    fn share(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.promises.borrow_mut().share(to, tensor)?;
        self.send(to, tensor)
    }

    fn lend(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.promises.borrow_mut().lend(to, tensor)?;
        self.send(to, tensor)
    }

    fn reclaim(&self) -> Result<(), Error> {
        self.promises.borrow_mut().reclaim();
        Ok(())
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
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
}

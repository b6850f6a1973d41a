//! A communicator that writes down what it passes on.

use std::cell::RefCell;

use candle_core::{DType, Device, Shape, Tensor};
use params_and_allreduce::communicator::{Communicator, Error, Received};
use params_and_allreduce::thread::Rank;

use super::{Message, numbers};

/// What a rank did, in its own order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// It sent this.
    Sent(Message),
    /// It took the next message from this rank.
    Took(usize),
}

/// A rank's communicator that behaves as the one within and remembers every message.
#[derive(Debug)]
pub struct Recorder<'a> {
    rank: &'a Rank<'a>,
    events: RefCell<Vec<Event>>,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(rank: &'a Rank<'a>) -> Self {
        Self { rank, events: RefCell::default() }
    }

    pub(super) fn into_events(self) -> Vec<Event> {
        self.events.into_inner()
    }

    fn sent(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        let elements = tensor.flatten_all()?.to_vec1::<u32>()?;
        let from = self.rank();
        let (chunks, sum_of) = numbers::read(&elements, self.world_size()).map_err(|what| {
            candle_core::Error::Msg(format!("rank {from} sends rank {to} {what}"))
        })?;
        let bytes = size_of_val(elements.as_slice()) as u64;
        self.note(Event::Sent(Message { from, to, chunks, sum_of, bytes }));
        Ok(())
    }

    fn note(&self, event: Event) {
        self.events.borrow_mut().push(event);
    }
}

impl Communicator for Recorder<'_> {
    fn rank(&self) -> usize {
        self.rank.rank()
    }

    fn world_size(&self) -> usize {
        self.rank.world_size()
    }

    fn device(&self) -> &Device {
        self.rank.device()
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.sent(to, tensor)?;
        self.rank.send(to, tensor)
    }

    fn share(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.sent(to, tensor)?;
        self.rank.share(to, tensor)
    }

    fn lend(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.sent(to, tensor)?;
        self.rank.lend(to, tensor)
    }

    fn reclaim(&self) -> Result<(), Error> {
        self.rank.reclaim()
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        let tensor = self.rank.recv(from, shape, dtype)?;
        self.note(Event::Took(from));
        Ok(tensor)
    }

    fn borrow(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Received, Error> {
        let received = self.rank.borrow(from, shape, dtype)?;
        self.note(Event::Took(from));
        Ok(received)
    }
}

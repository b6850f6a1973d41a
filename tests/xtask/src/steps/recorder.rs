//! A communicator that writes down what it passes on.

use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Shape, Tensor};
use harness::lock::locked;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::forward;
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
pub struct Recorder<'a> {
    rank: &'a Rank,
    events: Mutex<Vec<Event>>,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(rank: &'a Rank) -> Self {
        Self { rank, events: Mutex::default() }
    }

    pub(super) fn into_events(self) -> Vec<Event> {
        self.events.into_inner().unwrap_or_else(PoisonError::into_inner)
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
        locked(&self.events).push(event);
    }
}

impl Communicator for Recorder<'_> {
    forward!(rank: rank, world_size, device, background);

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.sent(to, tensor)?;
        self.rank.send(to, tensor)
    }

    fn send_shared(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.sent(to, tensor)?;
        self.rank.send_shared(to, tensor)
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        let tensor = self.rank.recv(from, shape, dtype)?;
        self.note(Event::Took(from));
        Ok(tensor)
    }
}

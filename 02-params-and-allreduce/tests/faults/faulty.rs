//! A rank that misbehaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use candle_core::{DType, Shape, Tensor};
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::forward;
use params_and_allreduce::thread::Rank;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Panic,
    Error,
    EarlyReturn,
    Stall,
}

/// A communicator that counts its messages, and misbehaves before one of them if it is the culprit's.
pub struct Faulty {
    pub rank: Rank,
    pub messages: Arc<AtomicUsize>,
    pub fault: Option<(Fault, usize)>,
    /// How many of the others are done: whoever stalls, stalls until then.
    pub others_done: Arc<AtomicUsize>,
}

impl Faulty {
    fn before_message(&self) -> Result<(), Error> {
        let message = self.messages.fetch_add(1, Ordering::SeqCst);
        match self.fault {
            Some((fault, before)) if before == message => self.misbehave(fault),
            _ => Ok(()),
        }
    }

    fn misbehave(&self, fault: Fault) -> Result<(), Error> {
        match fault {
            // As a panic, without the backtrace that printing one would cost 700 times.
            Fault::Panic => std::panic::resume_unwind(Box::new("on purpose")),
            Fault::Error | Fault::EarlyReturn => {}
            Fault::Stall => {
                while self.others_done.load(Ordering::SeqCst) + 1 < self.world_size() {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
        Err(candle_core::Error::Msg("on purpose".into()).into())
    }
}

impl Communicator for Faulty {
    forward!(rank: rank, world_size, device, shares_memory, background);

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.before_message()?;
        self.rank.send(to, tensor)
    }

    fn send_shared(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.before_message()?;
        self.rank.send_shared(to, tensor)
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        self.before_message()?;
        self.rank.recv(from, shape, dtype)
    }
}

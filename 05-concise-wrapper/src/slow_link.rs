//! A link that is slower than memory, on purpose.
//!
//! Between slices of one CPU gradients travel as fast as memory is, and those who travel take a core's time
//! from those who compute. So there is little to hide, and nothing to hide it behind. Between machines it is
//! otherwise: a message takes its time, and the cores are free meanwhile. A slow link behaves so: a message
//! is there `latency + bytes / bandwidth` after it was sent, and not before, and the messages from one rank
//! to another follow one after the other.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Shape, Tensor};
use params_and_allreduce::communicator::{Communicator, Error, Received, SharedCommunicator};

/// How slow a link is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowness {
    /// What every message takes at the least.
    pub latency: Duration,
    /// Bytes in a second.
    pub bandwidth: f64,
}

/// A communicator whose messages take their time.
pub struct SlowLink {
    link: SharedCommunicator,
    slowness: Slowness,
    /// When the line from each rank will have delivered all that was received so far.
    busy_until: Mutex<Vec<Option<Instant>>>,
}

impl SlowLink {
    /// Slows a communicator down; all ranks have to.
    pub fn new(link: SharedCommunicator, slowness: Slowness) -> Self {
        let busy_until = Mutex::new(vec![None; link.world_size()]);
        Self { link, slowness, busy_until }
    }

    /// Waits as long as a message from `from` takes, counted from now.
    ///
    /// From now, and not from when it was sent: the sender's clock is not known here. A rank that comes to
    /// receive late waits longer than it would have to, so nothing is made to look better than it is.
    fn travel(&self, from: usize, shape: &Shape, dtype: DType) {
        let bytes = shape.elem_count() * dtype.size_in_bytes();
        let takes = Duration::from_secs_f64(bytes as f64 / self.slowness.bandwidth);
        let arrival = {
            let mut busy = self.busy_until.lock().unwrap_or_else(PoisonError::into_inner);
            let begins = busy.get(from).copied().flatten().unwrap_or_else(Instant::now);
            let arrival = begins.max(Instant::now()) + self.slowness.latency + takes;
            if let Some(busy) = busy.get_mut(from) {
                *busy = Some(arrival);
            }
            arrival
        };
        std::thread::sleep(arrival.saturating_duration_since(Instant::now()));
    }
}

impl Communicator for SlowLink {
    fn rank(&self) -> usize {
        self.link.rank()
    }

    fn world_size(&self) -> usize {
        self.link.world_size()
    }

    fn device(&self) -> &Device {
        self.link.device()
    }

    fn number_of(&self, rank: usize) -> usize {
        self.link.number_of(rank)
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.link.send(to, tensor)
    }

    fn share(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.link.share(to, tensor)
    }

    // What takes its time is not lent: the lender would have to wait until it is read.
    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        let message = self.link.recv(from, shape, dtype)?;
        self.travel(from, shape, dtype);
        Ok(message)
    }

    fn borrow(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Received, Error> {
        let message = self.link.borrow(from, shape, dtype)?;
        self.travel(from, shape, dtype);
        Ok(message)
    }
}

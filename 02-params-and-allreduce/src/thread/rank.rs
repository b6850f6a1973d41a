//! One rank inside its own thread.

use std::sync::Arc;
use std::time::Duration;

use candle_core::{DType, Device, Shape, Tensor};
use devices::ComputeDevice;

use super::line::Line;
use super::link::{Link, Traffic};
use super::roster::Roster;
use crate::communicator::{Communicator, Error, Received};

/// One rank inside its own thread: its device, and its links to the others.
#[derive(Debug)]
pub struct Rank<'a> {
    device: ComputeDevice,
    links: &'a Links,
}

/// One rank's connections: two, so that two of its threads can talk at the same time.
#[derive(Debug)]
pub(super) struct Links {
    main: Arc<Link>,
    background: Arc<Link>,
}

impl Links {
    /// Connects every rank with every other, twice; in rank order.
    pub(super) fn connect(roster: &Arc<Roster>, world_size: usize, timeout: Duration) -> Vec<Self> {
        let other = Arc::new(roster.of_other_threads());
        let links = |roster| Link::connect(world_size, roster, timeout).into_iter().map(Arc::new);
        let both = links(roster).zip(links(&other));
        both.map(|(main, background)| Self { main, background }).collect()
    }

    /// Whose they are.
    pub(super) fn rank(&self) -> usize {
        self.main.rank()
    }
}

impl Drop for Links {
    /// Tells the others, even while a thread of this rank still waits for one of them.
    fn drop(&mut self) {
        self.main.close();
        self.background.close();
    }
}

impl<'a> Rank<'a> {
    pub(super) fn new(device: ComputeDevice, links: &'a Links) -> Self {
        Self { device, links }
    }
}

impl Rank<'_> {
    /// The device that this rank drives.
    pub fn compute_device(&self) -> &ComputeDevice {
        &self.device
    }

    /// How long this rank waits for another before it gives up.
    pub fn timeout(&self) -> Duration {
        self.links.main.timeout()
    }

    /// What this rank has sent so far, through both of its connections.
    pub fn traffic(&self) -> Traffic {
        let [main, background] =
            [&self.links.main, &self.links.background].map(|link| link.traffic());
        Traffic {
            messages: main.messages + background.messages,
            bytes: main.bytes + background.bytes,
        }
    }

    /// This rank's end of the connections as a value that can be kept, and given to operations.
    ///
    /// It is the same connection: what is sent here and there arrives in one row. After the rank has
    /// ended, every call fails.
    pub fn line(&self) -> Line {
        Line::new(&self.links.main, self.device())
    }

    /// A second connection to all others, for a thread that talks while this one works.
    ///
    /// What is sent through one connection never meets what is sent through the other. Its tensors are those of the device
    /// with a second [stream](ComputeDevice::side_stream).
    pub fn background_line(&self) -> Line {
        Line::new(&self.links.background, self.device.side_stream())
    }
}

impl Communicator for Rank<'_> {
    fn rank(&self) -> usize {
        self.links.main.rank()
    }

    fn world_size(&self) -> usize {
        self.links.main.world_size()
    }

    fn device(&self) -> &Device {
        self.device.tensors()
    }

    fn shares_memory(&self) -> bool {
        self.device().is_cpu()
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.links.main.send(to, tensor)
    }

    fn share(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.links.main.share(to, tensor)
    }

    fn lend(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.links.main.lend(to, tensor)
    }

    fn reclaim(&self) -> Result<(), Error> {
        self.links.main.reclaim()
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        Ok(self.borrow(from, shape, dtype)?.into_shared()?)
    }

    fn borrow(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Received, Error> {
        Ok(self.links.main.recv(from, shape, dtype)?.moved_to(self.device())?)
    }
}

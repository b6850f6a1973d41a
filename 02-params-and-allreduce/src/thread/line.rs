//! One rank's end of its connections, as a value of its own.
//!
//! A [`Rank`](super::Rank) lives as long as the work that it was made for, and no longer: so nobody can
//! keep it. An operation in a computation graph has to keep what it needs until its backward pass, and a
//! thread that talks in the background has to own what it talks through. They are given a [`Line`].

use std::sync::{Arc, Weak};

use candle_core::{DType, Device, Shape, Tensor};

use super::link::{Link, ended};
use crate::communicator::{Communicator, Error, Received};

/// One rank's end of its connections, for as long as the rank lives.
#[derive(Clone, Debug)]
pub struct Line {
    rank: usize,
    world_size: usize,
    device: Device,
    // The rank itself owns the link: the others must hear of its end, whoever still holds a line.
    link: Weak<Link>,
}

impl Line {
    pub(super) fn new(link: &Arc<Link>, device: &Device) -> Self {
        let (rank, world_size) = (link.rank(), link.world_size());
        Self { rank, world_size, device: device.clone(), link: Arc::downgrade(link) }
    }

    fn link(&self) -> Result<Arc<Link>, Error> {
        self.link.upgrade().ok_or_else(|| ended(self.rank))
    }
}

impl Communicator for Line {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn shares_memory(&self) -> bool {
        self.device.is_cpu()
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.link()?.send(to, tensor)
    }

    fn share(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.link()?.share(to, tensor)
    }

    fn lend(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.link()?.lend(to, tensor)
    }

    fn reclaim(&self) -> Result<(), Error> {
        self.link()?.reclaim()
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        Ok(self.borrow(from, shape, dtype)?.into_shared()?)
    }

    fn borrow(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Received, Error> {
        Ok(self.link()?.recv(from, shape, dtype)?.moved_to(&self.device)?)
    }
}

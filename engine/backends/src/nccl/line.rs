//! One rank's end of a world that NCCL alone connects.

use candle_core::{DType, Device, Shape, Tensor};

use super::collective::Kind;
use super::post::Post;
use crate::communicator::{Collectives, Communicator, Engine, Error};

/// One rank's end of a connection, as a value that can be kept, and given to any of its threads.
///
/// It has collectives, and no messages.
#[derive(Clone)]
pub struct Line {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) device: Device,
    pub(super) post: Post,
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

    fn send(&self, _to: usize, _tensor: &Tensor) -> Result<(), Error> {
        Err(Error::NoMessages { engine: Engine::Nccl })
    }

    fn recv(&self, _from: usize, _shape: &Shape, _dtype: DType) -> Result<Tensor, Error> {
        Err(Error::NoMessages { engine: Engine::Nccl })
    }

    fn collectives(&self) -> Option<&dyn Collectives> {
        Some(self)
    }
}

impl Collectives for Line {
    fn sum(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        self.post.order(tensor, Kind::Sum)
    }

    fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Tensor, Error> {
        self.post.order(tensor, Kind::Broadcast { root })
    }
}

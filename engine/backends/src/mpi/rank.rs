//! One rank inside its process.

use std::sync::Arc;
use std::time::Duration;

use candle_core::{DType, Device, Shape, Tensor};
use devices::ComputeDevice;

use super::line::{Ends, Line};
use crate::communicator::{Communicator, Engine, Error};

/// One rank inside its own process: its device, and its lines to the others.
#[derive(Debug)]
pub struct Rank<'a> {
    device: ComputeDevice,
    line: Line,
    background: &'a Arc<Ends>,
}

impl<'a> Rank<'a> {
    pub(super) fn new(
        device: ComputeDevice,
        main: &'a Arc<Ends>,
        background: &'a Arc<Ends>,
    ) -> Self {
        let line = Line::new(main, device.tensors());
        Self { device, line, background }
    }

    /// The device that this rank drives.
    pub fn compute_device(&self) -> &ComputeDevice {
        &self.device
    }

    /// How long this rank waits for another before it gives up.
    pub fn timeout(&self) -> Duration {
        self.background.timeout()
    }

    /// This rank's end of the connections as a value that can be kept, and given to operations.
    ///
    /// It is the same connection: what is sent here and there arrives in one row. After the end of
    /// the [`World`](super::World) every call fails.
    pub fn line(&self) -> Line {
        self.line.clone()
    }

    /// A second connection to all others, for a thread that talks while this one works.
    ///
    /// What is sent through one connection never meets what is sent through the other. Its tensors are those of the device
    /// with a second [stream](ComputeDevice::side_stream).
    pub fn background_line(&self) -> Line {
        Line::new(self.background, self.device.side_stream())
    }
}

impl Communicator for Rank<'_> {
    fn rank(&self) -> usize {
        self.line.rank()
    }

    fn world_size(&self) -> usize {
        self.line.world_size()
    }

    fn device(&self) -> &Device {
        self.line.device()
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.line.send(to, tensor)
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        self.line.recv(from, shape, dtype)
    }

    fn native_all_reduce(&self, engine: Engine, tensor: &Tensor) -> Result<Tensor, Error> {
        self.line.native_all_reduce(engine, tensor)
    }
}

//! A link that is slower than memory, on purpose.
//!
//! Between slices of one CPU gradients travel as fast as memory is, and those who travel take a core's time
//! from those who compute. So there is little to hide, and nothing to hide it behind. Between machines it is
//! otherwise: a message takes its time, and the cores are free meanwhile. A slow link behaves so: a message
//! is there `latency + bytes / bandwidth` after it has left, and not before. Each rank has one port: of the
//! messages that it sends, one is on its way at a time, to whomever they go, and so with those it receives.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Shape, Tensor};
use params_and_allreduce::communicator::{Communicator, Error, Received, SharedCommunicator};

/// As flags count them.
const MEGABYTE: f64 = 1_048_576.0;

/// How slow a link is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowness {
    /// What every message takes at the least.
    pub latency: Duration,
    /// Bytes in a second.
    pub bandwidth: f64,
}

impl Slowness {
    /// So many MB in a second, of 2²⁰ bytes each.
    pub fn of_megabytes(megabytes: f64, latency: Duration) -> Self {
        Self { latency, bandwidth: megabytes * MEGABYTE }
    }

    /// How many MB in a second.
    pub fn megabytes(&self) -> f64 {
        self.bandwidth / MEGABYTE
    }
}

/// A communicator whose messages take their time.
///
/// Each message is announced by another: for how long it waits until the sender's port is free.
pub struct SlowLink {
    link: SharedCommunicator,
    slowness: Slowness,
    /// When the port will have sent, and received, all that it was given so far.
    ports: Mutex<Ports>,
}

#[derive(Default)]
struct Ports {
    out: Option<Instant>,
    into: Option<Instant>,
}

impl SlowLink {
    /// Slows a communicator down; all ranks have to.
    pub fn new(link: SharedCommunicator, slowness: Slowness) -> Self {
        Self { link, slowness, ports: Mutex::default() }
    }

    fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a message of this shape is on its way, beside the latency.
    fn takes(&self, shape: &Shape, dtype: DType) -> Duration {
        let bytes = shape.elem_count() * dtype.size_in_bytes();
        Duration::from_secs_f64(bytes as f64 / self.slowness.bandwidth)
    }

    /// Puts a message in the queue of this rank's port, and says to its receiver how long the queue is.
    fn announce(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        let takes = self.takes(tensor.shape(), tensor.dtype());
        let now = Instant::now();
        let leaves = {
            let mut ports = self.ports();
            let leaves = ports.out.map_or(now, |free| free.max(now));
            ports.out = Some(leaves + takes);
            leaves
        };
        self.link.send(to, &Tensor::new(&[(leaves - now).as_secs_f64()], &Device::Cpu)?)
    }

    /// How long the next message from `from` waits for that rank's port.
    fn queue(&self, from: usize) -> Result<Duration, Error> {
        let announced = self.link.recv(from, &Shape::from(1), DType::F64)?.to_vec1::<f64>()?;
        Ok(Duration::from_secs_f64(announced[0]))
    }

    /// Waits as long as a message takes, counted from now.
    ///
    /// From now, and not from when it was sent: the sender's clock is not known here. A rank that comes to
    /// receive late waits longer than it would have to, so nothing is made to look better than it is.
    fn travel(&self, queue: Duration, shape: &Shape, dtype: DType) {
        let arrival = {
            let mut ports = self.ports();
            let leaves = Instant::now() + queue;
            let begins = ports.into.map_or(leaves, |free| free.max(leaves));
            let arrival = begins + self.slowness.latency + self.takes(shape, dtype);
            ports.into = Some(arrival);
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
        self.announce(to, tensor)?;
        self.link.send(to, tensor)
    }

    fn share(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.announce(to, tensor)?;
        self.link.share(to, tensor)
    }

    // What takes its time is not lent: the lender would have to wait until it is read.
    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        let queue = self.queue(from)?;
        let message = self.link.recv(from, shape, dtype)?;
        self.travel(queue, shape, dtype);
        Ok(message)
    }

    fn borrow(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Received, Error> {
        let queue = self.queue(from)?;
        let message = self.link.borrow(from, shape, dtype)?;
        self.travel(queue, shape, dtype);
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Arc;

    use params_and_allreduce::collective::barrier;
    use params_and_allreduce::thread::run_ranks;
    use params_and_allreduce::{Algorithm, allreduce};
    use single_gpu::device::{DeviceKind, DevicePlan};

    use super::*;

    /// Seconds of an all-reduce of a megabyte between four ranks, of the slowest.
    fn seconds(algorithm: Algorithm, slowness: Slowness) -> f64 {
        let plan = DevicePlan::new(DeviceKind::Cpu, 4, NonZeroUsize::new(1)).unwrap();
        let seconds = run_ranks(&plan, Duration::from_secs(60), |rank| {
            let slow = SlowLink::new(Arc::new(rank.line()), slowness);
            let tensor = Tensor::ones(250_000, DType::F32, &Device::Cpu)?;
            barrier(rank)?;
            let start = Instant::now();
            let sum = allreduce(&slow, &tensor, algorithm)?;
            let seconds = start.elapsed().as_secs_f64();
            assert_eq!(sum.to_vec1::<f32>()?, vec![4.0; 250_000]);
            Ok::<_, Error>(seconds)
        });
        seconds.unwrap().into_iter().fold(0.0, f64::max)
    }

    #[test]
    fn a_port_is_used_by_one_message_at_a_time() {
        let slowness = Slowness { latency: Duration::from_millis(1), bandwidth: 20e6 };
        // Of 50 ms each: three to rank 0 and three from it, one after the other.
        assert!(seconds(Algorithm::Naive, slowness) >= 0.300);
        // Of a quarter each: six steps.
        let ring = seconds(Algorithm::Ring, slowness);
        assert!(ring >= 6.0 * 0.0135, "{ring}");
        assert!(ring < 0.300, "{ring}");
    }
}

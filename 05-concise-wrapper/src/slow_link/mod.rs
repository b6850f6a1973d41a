//! A link that is slower than memory, on purpose.
//!
//! Between slices of one CPU gradients travel as fast as memory is, and those who travel take a core's time
//! from those who compute. So there is little to hide, and nothing to hide it behind. Between machines it is
//! otherwise: a message takes its time, and the cores are free meanwhile. A slow link behaves so: a message
//! is there `latency + bytes / bandwidth` after it has left, and not before. Each rank has one port: of the
//! messages that it sends, one is on its way at a time, to whomever they go and whichever of its threads has sent it, and
//! so with those it receives.

mod port;
mod slowness;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use candle_core::{DType, Device, Shape, Tensor};
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator};

use port::Port;
pub use slowness::{Slowness, parse_speed};

/// A communicator whose messages take their time.
///
/// Each message is announced by another: when that was, and when it leaves the sender's port.
pub struct SlowLink {
    link: SharedCommunicator,
    slowness: Slowness,
    /// How long a message may be on its way once somebody waits for it.
    timeout: Duration,
    port: Arc<Port>,
}

impl SlowLink {
    /// Slows a communicator down; all ranks have to. Whoever waits for longer than `timeout` gets an error.
    pub fn new(link: SharedCommunicator, slowness: Slowness, timeout: Duration) -> Self {
        Self { link, slowness, timeout, port: Arc::new(Port::new()) }
    }

    /// Another communicator of the same rank, for another of its threads: its messages go through the same port.
    pub fn with(&self, link: SharedCommunicator) -> Self {
        Self { link, port: Arc::clone(&self.port), ..*self }
    }

    fn takes(&self, shape: &Shape, dtype: DType) -> Duration {
        self.slowness.takes(shape.elem_count() * dtype.size_in_bytes())
    }

    /// Puts a message in the queue of this rank's port, and says to its receiver when it will leave.
    fn announce(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        let now = self.port.now();
        let leaves = self.port.leave(now, self.takes(tensor.shape(), tensor.dtype()));
        let times = [now, leaves].map(|time| time.as_secs_f64());
        self.link.send(to, &Tensor::new(&times, &Device::Cpu)?)
    }

    /// When the next message from `from` leaves that rank's port, on this rank's clock.
    fn left(&self, from: usize) -> Result<Duration, Error> {
        let times = self.link.recv(from, &Shape::from(2), DType::F64)?.to_vec1::<f64>()?;
        Ok(self.port.left(from, times[0], times[1]))
    }

    /// Waits until a message of `from`'s that leaves at that time has arrived.
    ///
    /// One that will not arrive in time is an error at once. Else its receiver would be silent meanwhile, and be
    /// blamed for that by those who wait for it.
    fn travel(
        &self,
        from: usize,
        left: Duration,
        shape: &Shape,
        dtype: DType,
    ) -> Result<(), Error> {
        let takes = self.slowness.latency.saturating_add(self.takes(shape, dtype));
        let ahead = self.port.arrive(left, takes).saturating_sub(self.port.now());
        if ahead > self.timeout {
            let [ahead, timeout] = [ahead, self.timeout].map(|time| time.as_secs_f64());
            let (waiting, speed) = (self.link.rank(), self.slowness.megabytes());
            let text = format!(
                "rank {waiting} waits for {timeout:.1} s at most, and a message from rank {from} is on its way for \
                 {ahead:.1} s more: the link is slowed down to {speed} MB/s"
            );
            return Err(candle_core::Error::Msg(text).into());
        }
        thread::sleep(ahead);
        Ok(())
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

    fn world_rank(&self, rank: usize) -> usize {
        self.link.world_rank(rank)
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.announce(to, tensor)?;
        self.link.send(to, tensor)
    }

    fn send_shared(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.announce(to, tensor)?;
        self.link.send_shared(to, tensor)
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        let left = self.left(from)?;
        let message = self.link.recv(from, shape, dtype)?;
        self.travel(from, left, shape, dtype)?;
        Ok(message)
    }

    fn background(&self) -> Result<SharedCommunicator, Error> {
        Ok(Arc::new(self.with(self.link.background()?)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use devices::DevicePlan;
    use params_and_allreduce::Algorithm;
    use params_and_allreduce::thread::run_ranks;

    use super::*;

    /// Seconds of an all-reduce of a megabyte between four ranks, of the slowest.
    fn seconds(algorithm: Algorithm, slowness: Slowness) -> f64 {
        let plan = DevicePlan::slices(4).unwrap();
        let seconds = run_ranks(&plan, Duration::from_secs(60), |rank| {
            let slow = SlowLink::new(Arc::new(rank.clone()), slowness, rank.timeout());
            let tensor = Tensor::ones(250_000, DType::F32, &Device::Cpu)?;
            rank.barrier()?;
            let start = Instant::now();
            let sum = slow.all_reduce(&tensor, algorithm)?;
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

    /// What waits in a sender's port waits there once, and not again for each message before it.
    #[test]
    fn many_messages_at_once_take_as_long_as_their_bytes() {
        let plan = DevicePlan::slices(2).unwrap();
        let slowness = Slowness { latency: Duration::ZERO, bandwidth: 4e6 };
        let seconds = run_ranks(&plan, Duration::from_secs(60), |rank| {
            let slow = SlowLink::new(Arc::new(rank.clone()), slowness, rank.timeout());
            // 40 messages of 10 ms each.
            let message = Tensor::ones(10_000, DType::F32, &Device::Cpu)?;
            rank.barrier()?;
            let start = Instant::now();
            for _ in 0..40 {
                match rank.rank() {
                    0 => slow.send(1, &message)?,
                    _ => drop(slow.recv(0, message.shape(), DType::F32)?),
                }
            }
            let seconds = start.elapsed().as_secs_f64();
            // What has arrived while nobody looked is there at once.
            match rank.rank() {
                0 => slow.send(1, &message)?,
                _ => {
                    thread::sleep(Duration::from_millis(200));
                    let start = Instant::now();
                    slow.recv(0, message.shape(), DType::F32)?;
                    assert!(start.elapsed() < Duration::from_millis(100));
                }
            }
            Ok::<_, Error>(seconds)
        });
        let seconds = seconds.unwrap()[1];
        assert!((0.399..1.5).contains(&seconds), "{seconds}");
    }

    /// A bucket and a batch norm's statistics, say, of two threads.
    #[test]
    fn two_lines_of_a_rank_share_its_port() {
        let plan = DevicePlan::slices(2).unwrap();
        let slowness = Slowness { latency: Duration::ZERO, bandwidth: 4e6 };
        let seconds = run_ranks(&plan, Duration::from_secs(60), |rank| {
            let main = SlowLink::new(Arc::new(rank.clone()), slowness, rank.timeout());
            let background = main.with(rank.background()?);
            // Of 100 ms.
            let message = Tensor::ones(100_000, DType::F32, &Device::Cpu)?;
            rank.barrier()?;
            let start = Instant::now();
            match rank.rank() {
                0 => {
                    main.send(1, &message)?;
                    background.send(1, &message)?;
                }
                _ => {
                    // Whichever it takes first, the second one is there after both.
                    background.recv(0, message.shape(), DType::F32)?;
                    main.recv(0, message.shape(), DType::F32)?;
                }
            }
            Ok::<_, Error>(start.elapsed().as_secs_f64())
        });
        let seconds = seconds.unwrap()[1];
        assert!((0.199..0.5).contains(&seconds), "{seconds}");
    }

    /// Four ranks, and nobody sleeps for the hours that the message takes.
    #[test]
    fn what_cannot_arrive_in_time_is_an_error_at_once() {
        let plan = DevicePlan::slices(4).unwrap();
        let slowness = Slowness { latency: Duration::ZERO, bandwidth: 10.0 };
        let start = Instant::now();
        let failure = run_ranks(&plan, Duration::from_secs(60), |rank| {
            let slow = SlowLink::new(Arc::new(rank.clone()), slowness, rank.timeout());
            slow.all_reduce(&Tensor::ones(10_000, DType::F32, &Device::Cpu)?, Algorithm::Ring)
        });
        let told = failure.unwrap_err().to_string();
        assert!(start.elapsed() < Duration::from_secs(30), "{told}");
        // Not that a rank, which is on its way too, sends nothing.
        assert!(told.contains("waits for 60.0 s at most, and a message from rank "), "{told}");
    }
}

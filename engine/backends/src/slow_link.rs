//! A link that is slower than memory, on purpose.
//!
//! Slices of one CPU exchange gradients at the speed of memory, on the cores that compute. Between machines, a message takes
//! its time, and the cores are free meanwhile. A slow link shows this on one machine:
//!
//! - A message of m bytes arrives α + m / β after it leaves the sender. α is the latency, β the bandwidth.
//! - Each rank has one port, for all of its connections. A port sends one message at a time, and receives one at a time.
//! - Sending does not wait. Each message carries the time at which it is due, and the receiver sleeps until then.
//!
//! All ranks read one clock, so they have to be threads of one process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Shape, Tensor};
use harness::cli::{self, UsageError};
use harness::lock::locked;
use harness::report::{number, thousands};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator};
use params_and_allreduce::forward;

/// The bytes of a megabyte in flags.
const MEGABYTE: f64 = 1_048_576.0;

/// How slow a link is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowness {
    /// The least time of a message: α.
    pub latency: Duration,
    /// Bytes per second: β.
    pub bandwidth: f64,
}

impl Slowness {
    /// A bandwidth in MB of 2²⁰ bytes per second.
    pub fn of_megabytes(megabytes: f64, latency: Duration) -> Self {
        Self { latency, bandwidth: megabytes * MEGABYTE }
    }

    /// The bandwidth in MB per second.
    pub fn megabytes(&self) -> f64 {
        self.bandwidth / MEGABYTE
    }

    /// The time that a message of so many bytes occupies a port. Without bandwidth this is [`Duration::MAX`].
    pub fn takes(&self, bytes: usize) -> Duration {
        Duration::try_from_secs_f64(bytes as f64 / self.bandwidth).unwrap_or(Duration::MAX)
    }

    /// Refuses a link so slow that a rank would give up waiting: while rank 0 sends all `weights`, or while the ranks add up
    /// so many bytes of `gradients`, by an algorithm or along a fixed tree. The error of such a run would name a rank
    /// without a fault.
    pub fn check(
        &self,
        timeout: Duration,
        ranks: usize,
        (weights, gradients): (usize, usize),
        algorithm: Option<Algorithm>,
    ) -> Result<(), UsageError> {
        // The rounds of a tree. In each of them, rank 0 sends a copy.
        let rounds = ranks.next_power_of_two().ilog2() as usize;
        // The bytes that travel while a rank waits for one message.
        let waiting = match algorithm {
            Some(Algorithm::Ring) => gradients.div_ceil(ranks),
            // Up the tree, and down again, but for the last round.
            Some(Algorithm::Tree) => (2 * rounds - 1) * gradients,
            // All messages that one rank receives or sends.
            _ => (ranks - 1) * gradients,
        };
        let [of_weights, of_gradients] = [rounds * weights, waiting].map(|bytes| self.takes(bytes));
        let [weights, gradients] = [weights, gradients].map(thousands);
        let [rank_0, others] = [of_weights, of_gradients].map(|time| time.as_secs_f64());
        let what = if of_weights > timeout {
            format!(
                "rank 0 takes {rank_0:.1} s to send the weights ({weights} bytes) to the other ranks"
            )
        } else if of_gradients > timeout {
            format!(
                "a rank waits {others:.1} s for a message while {gradients} bytes of gradients are added up"
            )
        } else {
            return Ok(());
        };
        Err(UsageError::new(format_args!(
            "--slow-link {}: {what}, and --timeout ends a wait after {} s: take a faster link, or a longer --timeout",
            number(self.megabytes()),
            timeout.as_secs_f64(),
        )))
    }
}

/// Parses a bandwidth in MB per second. Fails outside of the range that the message names.
pub fn parse_speed(argument: &str) -> Result<f64, String> {
    let expected = "this is a number of megabytes in a second, from 0.001 to 1000000, such as 25";
    cli::number(0.001..=1e6, expected)(argument)
}

/// The ports of all ranks of a run. Make one before the ranks start.
pub struct SlowNetwork {
    slowness: Slowness,
    timeout: Duration,
    started: Instant,
    ports: Mutex<HashMap<usize, Port>>,
}

/// The times until which a rank's port is busy, in seconds since the start.
#[derive(Default)]
struct Port {
    sending: f64,
    receiving: f64,
}

impl SlowNetwork {
    /// A network of links with this latency and bandwidth, between ranks that wait for a message at most `timeout`.
    pub fn new(slowness: Slowness, timeout: Duration) -> Arc<Self> {
        Arc::new(Self { slowness, timeout, started: Instant::now(), ports: Mutex::default() })
    }

    /// Slows down all connections of a rank. Every rank has to do the same.
    pub fn slow_down(self: &Arc<Self>, comm: SharedCommunicator) -> SharedCommunicator {
        Arc::new(SlowLink { comm, network: Arc::clone(self) })
    }

    fn now(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}

/// One rank's end of a slow connection.
struct SlowLink {
    comm: SharedCommunicator,
    network: Arc<SlowNetwork>,
}

impl SlowLink {
    /// Occupies the ports of this rank and the receiver, and sends the receiver the time at which the next message is due.
    fn announce(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        let [sender, receiver] = [self.rank(), to].map(|rank| self.world_rank(rank));
        let Slowness { latency, .. } = self.network.slowness;
        let takes = self.network.slowness.takes(ops::size_in_bytes(tensor)).as_secs_f64();
        let mut ports = locked(&self.network.ports);
        let sending = &mut ports.entry(sender).or_default().sending;
        *sending = sending.max(self.network.now()) + takes;
        let sent = *sending;
        let receiving = &mut ports.entry(receiver).or_default().receiving;
        *receiving = sent.max(*receiving + takes);
        let due = *receiving + latency.as_secs_f64();
        drop(ports);
        self.comm.send(to, &Tensor::new(due, &Device::Cpu)?)
    }

    /// Sleeps until a message is due. A message that is not due within the time limit is an error at once: a rank that
    /// sleeps for longer would be reported as silent.
    fn sleep_until(&self, due: f64, from: usize) -> Result<(), Error> {
        let left = (due - self.network.now()).max(0.0);
        let timeout = self.network.timeout.as_secs_f64();
        if left > timeout {
            let [waiting, from] = [self.rank(), from].map(|rank| self.world_rank(rank));
            return Err(Error::Other(format!(
                "rank {waiting} waits for {timeout:.1} s at most, and a message from rank {from} is on its way for \
                 {left:.1} s more: the link is slowed down to {} MB/s",
                number(self.network.slowness.megabytes())
            )));
        }
        thread::sleep(Duration::from_secs_f64(left));
        Ok(())
    }
}

impl Communicator for SlowLink {
    forward!(comm: rank, world_size, device, world_rank);

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.announce(to, tensor)?;
        self.comm.send(to, tensor)
    }

    fn send_shared(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.announce(to, tensor)?;
        self.comm.send_shared(to, tensor)
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        let due = self.comm.recv(from, &Shape::from(()), DType::F64)?.to_scalar()?;
        let message = self.comm.recv(from, shape, dtype)?;
        self.sleep_until(due, from)?;
        Ok(message)
    }

    fn background(&self) -> Result<SharedCommunicator, Error> {
        Ok(self.network.slow_down(self.comm.background()?))
    }
}

#[cfg(test)]
mod tests {
    use devices::DevicePlan;
    use params_and_allreduce::thread::{RankFailure, run_ranks};

    use super::*;

    /// Runs ranks whose links are slow, with a time limit of a minute.
    fn on_slow_ranks<R: Send>(
        ranks: usize,
        slowness: Slowness,
        work: impl Fn(&SharedCommunicator) -> Result<R, Error> + Sync,
    ) -> Result<Vec<R>, RankFailure<Error>> {
        let timeout = Duration::from_secs(60);
        let network = SlowNetwork::new(slowness, timeout);
        let plan = DevicePlan::slices(ranks).unwrap();
        run_ranks(&plan, timeout, |rank| {
            let slow = network.slow_down(rank.into());
            slow.barrier()?;
            work(&slow)
        })
    }

    /// A link without latency.
    fn bandwidth(bandwidth: f64) -> Slowness {
        Slowness { latency: Duration::ZERO, bandwidth }
    }

    fn ones(numbers: usize) -> Tensor {
        Tensor::ones(numbers, DType::F32, &Device::Cpu).unwrap()
    }

    /// Seconds from the first start to the last end: ranks do not start together.
    fn from_first_to_last(times: Vec<(Instant, Instant)>) -> f64 {
        let (starts, ends): (Vec<_>, Vec<_>) = times.into_iter().unzip();
        let (first, last) = (starts.into_iter().min(), ends.into_iter().max());
        last.unwrap().duration_since(first.unwrap()).as_secs_f64()
    }

    /// Seconds of an all-reduce of a megabyte between four ranks.
    fn seconds(algorithm: Algorithm) -> f64 {
        let slowness = Slowness { latency: Duration::from_millis(1), bandwidth: 20e6 };
        let times = on_slow_ranks(4, slowness, |slow| {
            let start = Instant::now();
            let sum = slow.all_reduce(&ones(250_000), algorithm)?;
            let times = (start, Instant::now());
            assert_eq!(sum.to_vec1::<f32>()?, vec![4.0; 250_000]);
            Ok(times)
        });
        from_first_to_last(times.unwrap())
    }

    #[test]
    fn a_port_is_used_by_one_message_at_a_time() {
        // A message takes 50 ms. Rank 0 receives three messages, and then sends three.
        assert!(seconds(Algorithm::Naive) >= 0.300);
        // Six steps with a quarter of the message.
        let ring = seconds(Algorithm::Ring);
        assert!(ring >= 6.0 * 0.0135, "{ring}");
        assert!(ring < 0.300, "{ring}");
    }

    /// A message waits for the sender's port once, and not again for each message before it.
    #[test]
    fn many_messages_at_once_take_as_long_as_their_bytes() {
        let times = on_slow_ranks(2, bandwidth(4e6), |slow| {
            // 40 messages of 10 ms each.
            let message = ones(10_000);
            let start = Instant::now();
            for _ in 0..40 {
                match slow.rank() {
                    0 => slow.send(1, &message)?,
                    _ => drop(slow.recv(0, message.shape(), DType::F32)?),
                }
            }
            let times = (start, Instant::now());
            // A message that is due already is received at once.
            match slow.rank() {
                0 => slow.send(1, &message)?,
                _ => {
                    thread::sleep(Duration::from_millis(200));
                    let start = Instant::now();
                    slow.recv(0, message.shape(), DType::F32)?;
                    assert!(start.elapsed() < Duration::from_millis(100));
                }
            }
            Ok(times)
        });
        let seconds = from_first_to_last(times.unwrap());
        assert!((0.399..1.5).contains(&seconds), "{seconds}");
    }

    /// As a bucket and the statistics of a batch norm do, from two threads.
    #[test]
    fn two_connections_of_a_rank_share_its_port() {
        let times = on_slow_ranks(2, bandwidth(4e6), |main| {
            let background = main.background()?;
            // 100 ms.
            let message = ones(100_000);
            let start = Instant::now();
            match main.rank() {
                0 => {
                    main.send(1, &message)?;
                    background.send(1, &message)?;
                }
                _ => {
                    background.recv(0, message.shape(), DType::F32)?;
                    main.recv(0, message.shape(), DType::F32)?;
                }
            }
            Ok((start, Instant::now()))
        });
        let seconds = from_first_to_last(times.unwrap());
        assert!((0.199..1.0).contains(&seconds), "{seconds}");
    }

    /// Four ranks, and no rank sleeps for the hours that the message takes.
    #[test]
    fn what_cannot_arrive_in_time_is_an_error_at_once() {
        let start = Instant::now();
        let slowness = Slowness { latency: Duration::ZERO, bandwidth: 10.0 };
        let failure =
            on_slow_ranks(4, slowness, |slow| slow.all_reduce(&ones(10_000), Algorithm::Ring));
        let told = failure.unwrap_err().to_string();
        assert!(start.elapsed() < Duration::from_secs(30), "{told}");
        // The cause is not a rank that sends nothing: that rank waits for its own message.
        assert!(told.contains("waits for 60.0 s at most, and a message from rank "), "{told}");
    }

    #[test]
    fn over_a_link_without_bandwidth_nothing_arrives() {
        assert_eq!(bandwidth(2e6).takes(1_000_000), Duration::from_millis(500));
        for none in [0.0, -1.0, f64::NAN, 1e-300] {
            assert_eq!(bandwidth(none).takes(1), Duration::MAX, "{none}");
        }
    }

    #[test]
    fn a_flag_is_a_number_of_megabytes() {
        assert_eq!(parse_speed("25").map(|speed| speed * MEGABYTE), Ok(26_214_400.0));
        assert_eq!(Slowness::of_megabytes(25.0, Duration::ZERO).megabytes(), 25.0);
        for wrong in ["", "fast", "0", "-1", "nan", "inf", "1e-300"] {
            assert!(parse_speed(wrong).is_err(), "{wrong}");
        }
    }
}

//! The cost of a message of m bytes: latency + m · (wire + handling).
//!
//! Latency and wire are Hockney's numbers (1994). Handling is the work of the receiver, which adds or copies the message.
//! A device can compute while bytes are on the wire, and not while it handles bytes, unless other hardware handles them.
//! A device sends one message at a time, and receives one at the same time.

use std::time::Instant;

use candle_core::{DType, Tensor};
use concise_wrapper::Error;
use concise_wrapper::slow_link::{SlowNetwork, Slowness};
use devices::DevicePlan;
use harness::statistics::slowest;
use params_and_allreduce::communicator::{Communicator as _, SharedCommunicator};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, Rank, RankFailure, run_ranks};
use serde::{Deserialize, Serialize};

/// The number of messages of each length that are timed.
const MESSAGES: usize = 41;

// ANCHOR: link
/// A link between two devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Seconds that every message takes, however short it is.
    pub latency: f64,
    /// Seconds for each byte on its way: 1 / bandwidth.
    pub wire: f64,
    /// Seconds to add or to copy each received byte.
    pub handling: f64,
}

impl Link {
    /// A link with this latency in seconds and bandwidth in bytes a second. Its messages need no handling.
    pub fn new(latency: f64, bandwidth: f64) -> Self {
        Self { latency, wire: 1.0 / bandwidth, handling: 0.0 }
    }

    /// Seconds from the start of a message of `bytes` to the end of its handling.
    pub fn message(&self, bytes: f64) -> f64 {
        self.latency + bytes * (self.wire + self.handling)
    }

    /// Bytes a second of a long message.
    pub fn bandwidth(&self) -> f64 {
        1.0 / (self.wire + self.handling)
    }
}
// ANCHOR_END: link

// ANCHOR: hosts
/// Who has a network port to other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Ports {
    /// Each device its own
    Gpu,
    /// The devices of a host share one
    Host,
}

/// Hosts of `each` devices, ranks counted host by host: the links between two devices of a host, and between two hosts
/// through one port.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the line above explains the fields")]
pub struct Hosts {
    pub each: usize,
    pub inside: Link,
    pub between: Link,
    pub ports: Ports,
}

impl Hosts {
    /// All devices in one host.
    pub fn one(link: Link) -> Self {
        Self { each: usize::MAX, inside: link, between: link, ports: Ports::Gpu }
    }

    /// The slowest link between so many ranks.
    pub fn slowest(&self, ranks: usize) -> Link {
        if ranks > self.each { self.between } else { self.inside }
    }

    /// Between devices of two hosts, when so many devices of each host send at the same time.
    pub fn shared(&self, devices: usize) -> Link {
        let share = if self.ports == Ports::Host { devices.min(self.each) as f64 } else { 1.0 };
        Link { wire: self.between.wire * share, ..self.between }
    }

    /// The hosts as a group of every n-th device sees them. The groups beside it send at the same time.
    #[must_use]
    pub fn every(&self, nth: usize) -> Self {
        Self { each: (self.each / nth).max(1), between: self.shared(nth), ..*self }
    }
}
// ANCHOR_END: hosts

// ANCHOR: measure
/// Measures the link between the devices of a plan, in memory or slowed down: messages of one number, and of `bytes`.
///
/// The devices form a ring. Each sends to the next, and adds the message of the device before, as in a step of the ring
/// all-reduce. In memory, the time of a byte is work of the receiver; on a slow link, the rest is the wire. Fails when a
/// rank fails. The link of one device costs nothing.
pub fn measure(
    plan: &DevicePlan,
    bytes: usize,
    slow: Option<Slowness>,
) -> Result<Link, RankFailure<Error>> {
    if plan.len() == 1 {
        return Ok(Link::default());
    }
    let numbers = (bytes / DType::F32.size_in_bytes()).max(2);
    let exchange = |slow: Option<Slowness>| {
        let network = slow.map(|slow| SlowNetwork::new(slow, DEFAULT_TIMEOUT));
        let times = run_ranks(plan, DEFAULT_TIMEOUT, |rank| {
            let comm = rank.background()?;
            let comm = network.as_ref().map_or(comm.clone(), |network| network.slow_down(comm));
            Ok((messages(rank, &comm, 1)?, messages(rank, &comm, numbers)?))
        })?;
        let (short, long): (Vec<_>, Vec<_>) = times.into_iter().unzip();
        let (latency, long) = (slowest(&short), slowest(&long));
        Ok((latency, (long - latency).max(0.0) / (4 * numbers) as f64))
    };
    let (latency, handling) = exchange(None)?;
    let Some(slow) = slow else { return Ok(Link { latency, wire: 0.0, handling }) };
    let (latency, byte) = exchange(Some(slow))?;
    Ok(Link { latency, wire: (byte - handling).max(0.0), handling })
}

/// Seconds of messages of so many numbers. The first one is not counted.
fn messages(rank: &Rank, comm: &SharedCommunicator, numbers: usize) -> Result<Vec<f64>, Error> {
    let (me, of) = (rank.rank(), rank.world_size());
    // Each sum is the next message. Like gradients, a message was written just before, and is in no cache of its receiver.
    let mut mine = Tensor::zeros(numbers, DType::F32, comm.device())?;
    let mut seconds = Vec::new();
    for _ in 0..=MESSAGES {
        comm.device().synchronize()?;
        rank.barrier()?;
        let start = Instant::now();
        comm.send_shared((me + 1) % of, &mine)?;
        mine = ops::sum(&mine, &comm.recv((me + of - 1) % of, mine.shape(), mine.dtype())?)?;
        comm.device().synchronize()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(seconds.split_off(1))
}
// ANCHOR_END: measure

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_message_costs_what_its_bytes_cost_and_the_latency() {
        let link = Link { latency: 3.0, wire: 0.5, handling: 0.25 };
        assert_eq!(link.message(0.0), 3.0);
        assert_eq!(link.message(4.0), 6.0);
        assert_eq!(Link::new(1.0, 4.0).message(8.0), 3.0);
        assert_eq!(Link::new(1.0, 4.0).bandwidth(), 4.0);
    }

    #[test]
    fn groups_share_the_port_of_their_host_or_have_their_own() {
        let [inside, between] = [Link::new(1.0, 8.0), Link::new(2.0, 4.0)];
        let hosts = Hosts { each: 8, inside, between, ports: Ports::Host };
        assert_eq!([hosts.slowest(8), hosts.slowest(9)], [inside, between]);
        assert_eq!(hosts.shared(8), Link::new(2.0, 0.5));
        // Four groups of two devices in each host; eight of one; groups that skip hosts.
        let of = |nth| (hosts.every(nth).each, hosts.every(nth).between);
        assert_eq!(of(1), (8, between));
        assert_eq!(of(4), (2, Link::new(2.0, 1.0)));
        assert_eq!([of(8), of(16)], [(1, Link::new(2.0, 0.5)); 2]);
        let own = Hosts { ports: Ports::Gpu, ..hosts };
        assert_eq!((own.shared(8), own.every(8).between), (between, between));
    }

    /// No wait is shorter than the requested time, also on a busy machine.
    #[test]
    fn a_link_that_was_slowed_down_is_at_least_as_slow() {
        let plan = DevicePlan::slices(2).unwrap();
        let slowness = Slowness { latency: Duration::from_millis(2), bandwidth: 20e6 };
        let memory = measure(&plan, 400_000, None).unwrap();
        let slow = measure(&plan, 400_000, Some(slowness)).unwrap();
        assert!(memory.wire == 0.0 && memory.handling > 0.0, "{memory:?}");
        assert!(slow.latency >= 2e-3, "{slow:?}");
        assert!(slow.message(400_000.0) >= 2e-3 + 20e-3, "{slow:?}");
        assert_eq!(measure(&DevicePlan::slices(1).unwrap(), 400, None).unwrap(), Link::default());
    }
}

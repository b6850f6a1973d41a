//! The cost of a message of m bytes: latency + m · (wire + handling).
//!
//! Latency and wire are Hockney's numbers (1994). Handling is the work of the receiver, which adds or copies the message.
//! A device can compute while bytes are on the wire, and not while it handles bytes, unless other hardware handles them.
//! A device sends one message at a time, and receives one at the same time.

use std::sync::Arc;
use std::time::Instant;

use candle_core::{DType, Tensor};
use concise_wrapper::Error;
use concise_wrapper::slow_link::SlowNetwork;
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
/// Hosts of `each` devices, ranks counted host by host: the link between two devices of a host, and the link between
/// devices of two hosts while all devices of the hosts send.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the line above explains the fields")]
pub struct Hosts {
    pub each: usize,
    pub inside: Link,
    pub between: Link,
}

impl Hosts {
    /// All devices in one host.
    pub fn one(link: Link) -> Self {
        Self { each: usize::MAX, inside: link, between: link }
    }

    /// The hosts as a group of every n-th device sees them: of eight devices, a group of every fourth has two. The other
    /// groups send at the same time.
    #[must_use]
    pub fn every(&self, nth: usize) -> Self {
        Self { each: (self.each / nth).max(1), ..*self }
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
    slow: Option<&Arc<SlowNetwork>>,
) -> Result<Link, RankFailure<Error>> {
    if plan.len() == 1 {
        return Ok(Link::default());
    }
    let numbers = (bytes / DType::F32.size_in_bytes()).max(2);
    // The latency, and the seconds of a byte.
    let exchange = |slow: Option<&Arc<SlowNetwork>>| {
        let times = run_ranks(plan, DEFAULT_TIMEOUT, |rank| {
            let comm = rank.background()?;
            let comm = slow.map_or(comm.clone(), |slow| slow.slow_down(comm));
            Ok((messages(rank, &comm, 1)?, messages(rank, &comm, numbers)?))
        })?;
        let (short, long): (Vec<_>, Vec<_>) = times.into_iter().unzip();
        let (latency, long) = (slowest(&short), slowest(&long));
        Ok((latency, (long - latency).max(0.0) / (4 * numbers) as f64))
    };
    let (latency, handling) = exchange(None)?;
    let (latency, byte) = slow.map_or(Ok((latency, handling)), |slow| exchange(Some(slow)))?;
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

    use concise_wrapper::slow_link::Slowness;

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
    fn a_group_has_fewer_devices_in_each_host() {
        let [inside, between] = [Link::new(1.0, 8.0), Link::new(2.0, 4.0)];
        let hosts = Hosts { each: 8, inside, between };
        // All devices; four groups of two devices in each host; eight of one; groups that skip hosts.
        assert_eq!([1, 4, 8, 16].map(|nth| hosts.every(nth).each), [8, 2, 1, 1]);
        assert_eq!(hosts.every(4), Hosts { each: 2, ..hosts });
    }

    /// No wait is shorter than the requested time, also on a busy machine.
    #[test]
    fn a_link_that_was_slowed_down_is_at_least_as_slow() {
        let plan = DevicePlan::slices(2).unwrap();
        let slowness = Slowness { latency: Duration::from_millis(2), bandwidth: 20e6 };
        let memory = measure(&plan, 400_000, None).unwrap();
        let slow =
            measure(&plan, 400_000, Some(&SlowNetwork::new(slowness, DEFAULT_TIMEOUT))).unwrap();
        assert!(memory.wire == 0.0 && memory.handling > 0.0, "{memory:?}");
        assert!(slow.latency >= 2e-3, "{slow:?}");
        assert!(slow.message(400_000.0) >= 2e-3 + 20e-3, "{slow:?}");
        assert_eq!(measure(&DevicePlan::slices(1).unwrap(), 400, None).unwrap(), Link::default());
    }
}

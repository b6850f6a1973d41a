//! Messages between idle devices.
//!
//! The devices form a ring. Each device sends to the next, and adds the message of the device before, as in a step of the
//! ring all-reduce. A message of one number shows the latency, and a long message the cost of each byte.

use std::time::Instant;

use candle_core::{DType, Tensor};
use concise_wrapper::Error;
use concise_wrapper::slow_link::{SlowNetwork, Slowness};
use devices::DevicePlan;
use harness::statistics::slowest;
use params_and_allreduce::communicator::{Communicator as _, SharedCommunicator};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, Rank, RankFailure, run_ranks};

use crate::link::Link;

/// The numbers of short and of long messages.
const TIMES: (usize, usize) = (101, 21);

/// The links between the devices of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Links {
    /// The link in memory.
    pub memory: Link,
    /// The link that is slow on purpose.
    pub slow: Link,
}

/// Measures the links between the devices of a plan, of at least two.
///
/// `bytes` is the length of the long message. It is the length of the gradients, because shorter messages stay in caches. The
/// time of a byte in memory is work of the receiver, and the extra time on the slow link is time on the wire. Fails when
/// a rank fails, with the failure of the first rank that failed. Panics when there is one device only.
pub fn links(
    plan: &DevicePlan,
    bytes: usize,
    slowness: Slowness,
) -> Result<Links, RankFailure<Error>> {
    assert!(plan.len() > 1, "a link has two ends");
    let numbers = (bytes / DType::F32.size_in_bytes()).max(2);
    let each = |[short, long]: [f64; 2]| (long - short).max(0.0) / (4 * numbers) as f64;
    let fast = exchange(plan, numbers, None)?;
    let slow = exchange(plan, numbers, Some(slowness))?;
    let handling = each(fast);
    let wire = (each(slow) - handling).max(0.0);
    Ok(Links {
        memory: Link { latency: fast[0], wire: 0.0, handling },
        slow: Link { latency: slow[0], wire, handling },
    })
}

/// Seconds of a message of one number, and of a message of `numbers`.
fn exchange(
    plan: &DevicePlan,
    numbers: usize,
    slowness: Option<Slowness>,
) -> Result<[f64; 2], RankFailure<Error>> {
    let slow = slowness.map(|slowness| SlowNetwork::new(slowness, DEFAULT_TIMEOUT));
    let times = run_ranks(plan, DEFAULT_TIMEOUT, |rank| {
        let background = rank.background()?;
        let line = match &slow {
            Some(slow) => slow.slow_down(background),
            None => background,
        };
        Ok((messages(rank, &line, 1, TIMES.0)?, messages(rank, &line, numbers, TIMES.1)?))
    })?;
    let (short, long): (Vec<_>, Vec<_>) = times.into_iter().unzip();
    Ok([slowest(&short), slowest(&long)])
}

fn messages(
    rank: &Rank,
    line: &SharedCommunicator,
    numbers: usize,
    times: usize,
) -> Result<Vec<f64>, Error> {
    let (me, of) = (rank.rank(), rank.world_size());
    // Each sum is the next message. Like gradients, a message was written just before, and is in no cache of its receiver.
    let mut mine = Tensor::zeros(numbers, DType::F32, line.device())?;
    let mut seconds = Vec::with_capacity(times);
    for time in 0..=times {
        line.device().synchronize()?;
        rank.barrier()?;
        let start = Instant::now();
        line.send_shared((me + 1) % of, &mine)?;
        let received = line.recv((me + of - 1) % of, mine.shape(), mine.dtype())?;
        let sum = ops::sum(&mine, &received)?;
        line.device().synchronize()?;
        if time > 0 {
            seconds.push(start.elapsed().as_secs_f64());
        }
        mine = sum;
    }
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// No wait is shorter than the requested time, also on a busy machine.
    #[test]
    fn a_link_that_was_slowed_down_is_at_least_as_slow() {
        let plan = DevicePlan::slices(2).unwrap();
        let slowness = Slowness { latency: Duration::from_millis(2), bandwidth: 20e6 };
        let Links { memory, slow } = links(&plan, 400_000, slowness).unwrap();
        assert_eq!(memory.wire, 0.0);
        assert_eq!(slow.handling, memory.handling);
        assert!(slow.latency >= 2e-3, "{slow:?}");
        assert!(slow.message(400_000.0) >= 2e-3 + 20e-3, "{slow:?}");
    }
}

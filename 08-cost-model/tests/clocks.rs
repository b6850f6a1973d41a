//! The formulas say what stage 2's collectives do: these run on ranks that have clocks of their own.
//!
//! Nothing is measured. A message carries the time at which it leaves, a receiver puts its clock forward to
//! when the message has been dealt with, and what the slowest clock shows at the end is what the all-reduce
//! costs: to twelve digits, whatever the machine does meanwhile.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use candle_core::{DType, Device, Shape, Tensor};
use cost_model::all_reduce::{Taken, Way, two_levels};
use cost_model::link::{Hosts, Link};
use devices::DevicePlan;
use harness::lock::locked;
use params_and_allreduce::Algorithm;
use params_and_allreduce::all_reduce::two_levels as in_two_levels;
use params_and_allreduce::communicator::{Communicator, Error, Group, SharedCommunicator};
use params_and_allreduce::forward;
use params_and_allreduce::thread::{Rank, run_ranks};

/// A rank whose messages take as long as its links say, on its own clock.
struct Clocked {
    line: SharedCommunicator,
    hosts: Hosts,
    clock: Mutex<Clock>,
}

#[derive(Default)]
struct Clock {
    now: f64,
    busy: f64,
    /// When the ports towards devices of the host, and towards other hosts, are free again.
    out: [f64; 2],
    into: [f64; 2],
}

impl Clocked {
    fn new(rank: &Rank, hosts: Hosts) -> Arc<Self> {
        Arc::new(Self { line: Arc::new(rank.clone()), hosts, clock: Mutex::default() })
    }

    fn link(&self, other: usize) -> (usize, Link) {
        match self.line.rank() / self.hosts.each == other / self.hosts.each {
            true => (0, self.hosts.inside),
            false => (1, self.hosts.between),
        }
    }

    /// When a message leaves: once the port is free.
    fn leave(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        let (port, link) = self.link(to);
        let leaves = {
            let mut clock = locked(&self.clock);
            let leaves = clock.now.max(clock.out[port]);
            clock.out[port] = leaves + bytes(tensor.shape()) * link.wire;
            leaves
        };
        self.line.send(to, &Tensor::new(leaves, &Device::Cpu)?)
    }

    // ANCHOR: arrive
    /// Puts the clock forward to when a message has been dealt with.
    fn arrive(&self, from: usize, shape: &Shape) -> Result<(), Error> {
        let (port, link) = self.link(from);
        let leaves = self.line.recv(from, &Shape::from(()), DType::F64)?.to_scalar::<f64>()?;
        let mut clock = locked(&self.clock);
        let begins = clock.now.max(leaves).max(clock.into[port]);
        let there = begins + link.latency + bytes(shape) * link.wire;
        clock.into[port] = there;
        let handling = bytes(shape) * link.handling;
        clock.now = there + handling;
        clock.busy += handling;
        Ok(())
    }
    // ANCHOR_END: arrive
}

fn bytes(shape: &Shape) -> f64 {
    (shape.elem_count() * size_of::<f32>()) as f64
}

impl Communicator for Clocked {
    forward!(line: rank, world_size, device, background);

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.leave(to, tensor)?;
        self.line.send(to, tensor)
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        self.arrive(from, shape)?;
        self.line.recv(from, shape, dtype)
    }
}

/// Seconds and busy seconds of `work` as the clocks show them, of the slowest and of the busiest rank.
fn shown(
    ranks: usize,
    hosts: Hosts,
    work: impl Fn(Arc<Clocked>, usize) -> Result<(), Error> + Sync,
) -> Taken {
    let plan = DevicePlan::slices(ranks).expect("a plan");
    let clocks = run_ranks(&plan, Duration::from_secs(60), |rank| {
        let clocked = Clocked::new(rank, hosts);
        work(Arc::clone(&clocked), rank.rank())?;
        let clock = locked(&clocked.clock);
        Ok::<_, Error>((clock.now, clock.busy))
    });
    let clocks = clocks.expect("a sum");
    let most = |pick: fn(&(f64, f64)) -> f64| clocks.iter().map(pick).fold(0.0, f64::max);
    Taken { seconds: most(|clock| clock.0), busy: most(|clock| clock.1) }
}

/// What an all-reduce of `numbers` f32 takes; in two levels without a way.
fn all_reduce(ranks: usize, numbers: usize, hosts: Hosts, way: Option<Way>) -> Taken {
    shown(ranks, hosts, |comm, rank| {
        let tensor = (Tensor::ones(numbers, DType::F32, &Device::Cpu)? * rank as f64)?;
        let sum = match way {
            Some(Way::OneShot) => comm.all_reduce(&tensor, Algorithm::OneShot)?,
            Some(Way::Naive) => comm.all_reduce(&tensor, Algorithm::Naive)?,
            Some(Way::Tree) => comm.all_reduce(&tensor, Algorithm::Tree)?,
            Some(Way::Ring) => comm.all_reduce(&tensor, Algorithm::Ring)?,
            None => in_two_levels(&(comm as _), hosts.each, &tensor, Algorithm::Ring)?,
        };
        let expected = (ranks * (ranks - 1) / 2) as f32;
        assert_eq!(sum.to_vec1::<f32>()?, vec![expected; numbers]);
        Ok(())
    })
}

/// What a reduce-scatter and an all-gather of `numbers` f32 take: stage 2's, and two levels of them if there are hosts.
fn halves(ranks: usize, numbers: usize, hosts: Hosts) -> [Taken; 2] {
    let each = hosts.each.min(ranks);
    [true, false].map(|scatters| {
        shown(ranks, hosts, |comm, me| {
            let place = me % each;
            let comm: SharedCommunicator = comm;
            let host = Group::new(comm.clone(), (me - place..me - place + each).collect())?;
            let peers = Group::new(comm.clone(), (place..ranks).step_by(each).collect())?;
            let tensor = Tensor::ones(numbers, DType::F32, &Device::Cpu)?;
            let own = tensor.narrow(0, 0, numbers / ranks)?;
            match (scatters, each < ranks) {
                (true, true) => peers.reduce_scatter(&host.reduce_scatter(&tensor)?)?,
                (true, false) => comm.reduce_scatter(&tensor)?,
                (false, true) => {
                    host.all_gather(&peers.all_gather(&own, numbers / each)?, numbers)?
                }
                (false, false) => comm.all_gather(&own, numbers)?,
            };
            Ok(())
        })
    })
}

/// Half of what an all-reduce takes.
fn half(Taken { seconds, busy }: Taken) -> Taken {
    Taken { seconds: seconds / 2.0, busy: busy / 2.0 }
}

const LINK: Link = Link { latency: 3e-6, wire: 1e-9, handling: 2e-10 };
const SLOWER: Link = Link { latency: 5e-5, wire: 8e-9, handling: 3e-10 };

#[track_caller]
fn close(what: &str, formula: Taken, clock: Taken) {
    for (formula, clock) in [(formula.seconds, clock.seconds), (formula.busy, clock.busy)] {
        assert!(
            (formula - clock).abs() <= 1e-12 * clock,
            "{what}: {formula:e} s, the clocks {clock:e}"
        );
    }
}

#[test]
fn formulas_are_what_the_collectives_cost() {
    let hosts = Hosts::one(LINK);
    for numbers in [5040, 5 * 5040] {
        let bytes = 4.0 * numbers as f64;
        for ranks in 2..=8 {
            for way in [Way::OneShot, Way::Naive, Way::Tree, Way::Ring] {
                let clock = all_reduce(ranks, numbers, hosts, Some(way));
                let formula = way.takes(ranks, bytes, LINK);
                match way == Way::Tree && !ranks.is_power_of_two() {
                    // At most, and at least a rank's messages on the way up.
                    true => {
                        let range = 0.5 * formula.seconds..formula.seconds;
                        assert!(range.contains(&clock.seconds), "tree on {ranks}: {clock:?}");
                    }
                    false => close(&format!("{way:?} on {ranks}"), formula, clock),
                }
            }
            for (clock, which) in halves(ranks, numbers, hosts).into_iter().zip(0..) {
                let formula = half(Way::Ring.takes(ranks, bytes, LINK));
                close(&format!("half {which} on {ranks}"), formula, clock);
            }
        }
    }
}

#[test]
fn between_hosts_too() {
    let hosts = Hosts { each: 4, inside: LINK, between: SLOWER };
    for ranks in [8, 16] {
        let formula = two_levels(ranks, 4.0 * 5040.0, &hosts);
        close(&format!("two levels on {ranks}"), formula, all_reduce(ranks, 5040, hosts, None));
        for (clock, which) in halves(ranks, 5040, hosts).into_iter().zip(0..) {
            close(&format!("half {which} on {ranks}"), half(formula), clock);
        }
    }
}

#[test]
fn a_send_is_a_message() {
    let clock = shown(2, Hosts::one(LINK), |comm, rank| {
        let tensor = Tensor::ones(5040, DType::F32, &Device::Cpu)?;
        match rank {
            0 => comm.send(1, &tensor),
            _ => comm.recv(0, tensor.shape(), DType::F32).map(drop),
        }
    });
    let bytes = 4.0 * 5040.0;
    close("send", Taken { seconds: LINK.message(bytes), busy: bytes * LINK.handling }, clock);
}

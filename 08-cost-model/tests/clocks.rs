//! The formulas say what stage 2's collectives do: these run on ranks that have clocks of their own.
//!
//! Nothing is measured. A message carries the time at which it leaves, a receiver puts its clock forward to
//! when the message has been dealt with, and what the slowest clock shows at the end is what the all-reduce
//! costs: to the last bit that f64 has, whatever the machine does meanwhile.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use candle_core::{DType, Device, Shape, Tensor};
use cost_model::all_reduce::Way;
use cost_model::hosts::Hosts;
use cost_model::link::Link;
use devices::DevicePlan;
use harness::lock::locked;
use params_and_allreduce::Algorithm;
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

/// Seconds and busy seconds of an all-reduce of `numbers` f32 as the clocks show them, of the slowest and of
/// the busiest rank.
fn shown(ranks: usize, numbers: usize, hosts: Hosts, way: Way) -> (f64, f64) {
    let plan = DevicePlan::slices(ranks).expect("a plan");
    let clocks = run_ranks(&plan, Duration::from_secs(60), |rank| {
        let clocked = Clocked::new(rank, hosts);
        let tensor = (Tensor::ones(numbers, DType::F32, &Device::Cpu)? * rank.rank() as f64)?;
        let sum = match way.algorithm() {
            Some(algorithm) => clocked.all_reduce(&tensor, algorithm)?,
            None => rings(&clocked, &tensor, hosts)?,
        };
        let expected = (ranks * (ranks - 1) / 2) as f32;
        assert_eq!(sum.to_vec1::<f32>()?, vec![expected; numbers]);
        let clock = locked(&clocked.clock);
        Ok::<_, Error>((clock.now, clock.busy))
    });
    let clocks = clocks.expect("a sum");
    let most = |pick: fn(&(f64, f64)) -> f64| clocks.iter().map(pick).fold(0.0, f64::max);
    (most(|clock| clock.0), most(|clock| clock.1))
}

/// Rings in hosts and a ring of hosts, of stage 2's collectives.
fn rings(rank: &Arc<Clocked>, tensor: &Tensor, hosts: Hosts) -> Result<Tensor, Error> {
    let (me, each) = (rank.rank(), hosts.each);
    let (host, place) = (me / each, me % each);
    let neighbours = Group::new(rank.clone(), (host * each..(host + 1) * each).collect())?;
    let peers = Group::new(rank.clone(), (place..rank.world_size()).step_by(each).collect())?;
    let chunk = neighbours.reduce_scatter(tensor)?;
    let chunk = peers.all_reduce(&chunk, Algorithm::Ring)?;
    neighbours.all_gather(&chunk, tensor.elem_count())
}

const LINK: Link = Link { latency: 3e-6, wire: 1e-9, handling: 2e-10 };
const SLOWER: Link = Link { latency: 5e-5, wire: 8e-9, handling: 3e-10 };

fn close(what: &str, formula: f64, clock: f64) {
    assert!(
        (formula - clock).abs() <= 1e-12 * clock,
        "{what}: {formula:e} s, the clocks {clock:e}"
    );
}

#[test]
fn formulas_are_what_the_collectives_cost() {
    for numbers in [5040, 5 * 5040] {
        for ranks in 2..=8 {
            let cost = |way: Way| way.cost(ranks, 4.0 * numbers as f64, &Hosts::one(LINK));
            for way in [Way::OneShot, Way::Naive, Way::Tree, Way::Ring] {
                let (seconds, busy) = shown(ranks, numbers, Hosts::one(LINK), way);
                close(&format!("{way} on {ranks}"), cost(way).seconds, seconds);
                close(&format!("{way} on {ranks}, busy"), cost(way).busy, busy);
            }
        }
    }
}

/// Some pairs of a round are in one host, others in two.
#[test]
fn a_tree_over_hosts_that_do_not_halve_it() {
    for each in [1, 3, 5, 6, 7] {
        let hosts = Hosts { each, inside: LINK, between: SLOWER };
        for ranks in 2..=13 {
            let (seconds, busy) = shown(ranks, 5040, hosts, Way::Tree);
            let cost = Way::Tree.cost(ranks, 4.0 * 5040.0, &hosts);
            close(&format!("tree on {ranks}, {each} to a host"), cost.seconds, seconds);
            close(&format!("tree on {ranks}, {each} to a host, busy"), cost.busy, busy);
        }
    }
}

#[test]
fn between_hosts_too() {
    let hosts = Hosts { each: 4, inside: LINK, between: SLOWER };
    for ranks in [8, 16] {
        let agree = |way: Way, assumed| {
            let (seconds, busy) = shown(ranks, 5040, hosts, way);
            let cost = way.cost(ranks, 4.0 * 5040.0, &assumed);
            close(&format!("{way} on {ranks}"), cost.seconds, seconds);
            close(&format!("{way} on {ranks}, busy"), cost.busy, busy);
        };
        for way in [Way::Naive, Way::Tree, Way::Ring] {
            agree(way, hosts);
        }
        // Here every device has a port of its own to the other hosts: a host's, shared by all, is as many times slower.
        let shared = Link { wire: SLOWER.wire / hosts.each as f64, ..SLOWER };
        for way in [Way::OneShot, Way::Rings] {
            agree(way, Hosts { between: shared, ..hosts });
        }
    }
}

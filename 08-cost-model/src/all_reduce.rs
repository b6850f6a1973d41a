//! The cost of an all-reduce of m bytes on n ranks, in closed form.
//!
//! With latency α, wire β and handling h of a [`Link`], all ranks in one host:
//!
//! | way | seconds |
//! | --- | --- |
//! | one-shot | (n − 1)·(α + m·(β + h)) + (n − 2)·m·β |
//! | naive | n·α + 2(n − 1)·m·β + n·m·h |
//! | tree | 2⌈log₂ n⌉·(α + m·(β + h)), if n is a power of two; else at most that |
//! | ring | 2(n − 1)·(α + m/n·(β + h)) |
//! | ring in rings | a ring in each host, and a ring of the hosts for each chunk |
//!
//! The formulas are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
//! MPICH", 2005, adapted to our code. In our naive algorithm, rank 0 receives and adds the tensors one by one, and lends
//! the sum to all ranks at once. A test runs stage 2's collectives on clocks that obey [`Link`], and compares.
//!
//! One-shot, naive and tree move whole tensors: the tree a few times, one-shot and naive once for every rank. The ring
//! moves less than two tensors on any number of ranks, but the number of its steps grows with the number of ranks, and
//! each step waits for the step before.

use std::fmt;
use std::iter::successors;

use params_and_allreduce::Algorithm;
use serde::{Deserialize, Serialize};

use crate::hosts::Hosts;
use crate::link::Link;

/// An all-reduce algorithm with a known cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Everyone sends to everyone, everyone adds all up
    OneShot,
    /// Gather to the first rank, add, broadcast back
    Naive,
    /// Add up along a binomial tree, broadcast down it
    Tree,
    /// Reduce-scatter, then all-gather, around one ring of all ranks
    Ring,
    /// Reduce-scatter in each host, a ring of the hosts for each chunk, all-gather in each host
    Rings,
}

/// The cost of a collective for a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Seconds from beginning to end, of the rank that ends last.
    pub seconds: f64,
    /// Of these, seconds in which the busiest rank adds and copies.
    pub busy: f64,
}

impl Way {
    /// The algorithms for many devices. [`Self::OneShot`] is an algorithm for few devices.
    pub const FOR_MANY: [Self; 4] = [Self::Naive, Self::Tree, Self::Ring, Self::Rings];

    /// The algorithm of stage 2, if stage 2 has it.
    pub fn algorithm(self) -> Option<Algorithm> {
        match self {
            Self::OneShot => Some(Algorithm::OneShot),
            Self::Naive => Some(Algorithm::Naive),
            Self::Tree => Some(Algorithm::Tree),
            Self::Ring => Some(Algorithm::Ring),
            Self::Rings => None,
        }
    }

    /// The cost of an all-reduce of `bytes` on so many ranks.
    pub fn cost(self, ranks: usize, bytes: f64, hosts: &Hosts) -> Cost {
        if ranks < 2 {
            return Cost::default();
        }
        match self {
            Self::OneShot => one_shot(ranks, bytes, hosts),
            Self::Naive => naive(ranks, bytes, hosts),
            Self::Tree => tree(ranks, bytes, hosts),
            Self::Ring => ring(ranks, bytes, hosts),
            Self::Rings => rings(ranks, bytes, hosts),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneShot => "one-shot",
            Self::Naive => "naive",
            Self::Tree => "tree",
            Self::Ring => "ring",
            Self::Rings => "rings",
        })
    }
}

/// Every rank receives the tensors of all ranks one by one. The first tensor in its order may be the last that is sent.
fn one_shot(ranks: usize, bytes: f64, hosts: &Hosts) -> Cost {
    let (near, far) = near_and_far(ranks, hosts);
    let (inside, between) = (hosts.inside, hosts.shared());
    let waits = |link: Link, messages: f64| f64::max(messages - 1.0, 0.0) * bytes * link.wire;
    let taken = near * inside.message(bytes) + far * between.message(bytes);
    let seconds = waits(inside, near).max(waits(between, far)) + taken;
    Cost { seconds, busy: bytes * (near * inside.handling + far * between.handling) }
}

/// Rank 0 receives the tensors one by one, and sends the sum to every rank.
fn naive(ranks: usize, bytes: f64, hosts: &Hosts) -> Cost {
    let (near, far) = near_and_far(ranks, hosts);
    let Hosts { inside, between, .. } = hosts;
    let gather = near * inside.message(bytes) + far * between.message(bytes);
    // The port inside the host and the port to other hosts work at the same time.
    let sent = |link: &Link, times: f64| match times > 0.0 {
        true => link.latency + bytes * (times * link.wire + link.handling),
        false => 0.0,
    };
    let broadcast = sent(inside, near).max(sent(between, far));
    let busy = bytes * (near * inside.handling + far * between.handling);
    Cost { seconds: gather + broadcast, busy }
}

/// A round for each doubling of the distance, up the tree and down again. A rank waits for the latest of its children, and
/// its messages down the tree leave one by one. No closed form is exact if branches are missing, or if only some branches
/// lead to another host.
fn tree(ranks: usize, bytes: f64, hosts: &Hosts) -> Cost {
    let far = |a: usize, b: usize| usize::from(a / hosts.each != b / hosts.each);
    let links = [hosts.inside, hosts.between];
    let distances = successors(Some(1), |distance| Some(2 * distance));
    let distances: Vec<usize> = distances.take_while(|&distance| distance < ranks).collect();
    let pairs = |distance: usize| {
        (0..ranks - distance).step_by(2 * distance).map(move |upper| (upper, upper + distance))
    };
    let (mut clock, mut busy) = (vec![0.0f64; ranks], vec![0.0; ranks]);
    for &distance in &distances {
        for (upper, lower) in pairs(distance) {
            let link = links[far(upper, lower)];
            clock[upper] = clock[upper].max(clock[lower]) + link.message(bytes);
            busy[upper] += bytes * link.handling;
        }
    }
    // The times at which a rank's port inside the host and its port to other hosts are free.
    let mut free = vec![[0.0f64; 2]; ranks];
    for &distance in distances.iter().rev() {
        for (upper, lower) in pairs(distance) {
            let port = far(upper, lower);
            let leaves = clock[upper].max(free[upper][port]);
            free[upper][port] = leaves + bytes * links[port].wire;
            clock[lower] = leaves + links[port].message(bytes);
            busy[lower] += bytes * links[port].handling;
        }
    }
    let most = |of: Vec<f64>| of.into_iter().fold(0.0, f64::max);
    Cost { seconds: most(clock), busy: most(busy) }
}

// ANCHOR: ring
/// Every step is as slow as the slowest link of the ring.
fn ring(ranks: usize, bytes: f64, hosts: &Hosts) -> Cost {
    let chunk = bytes / ranks as f64;
    let slower = |cost: fn(&Link, f64) -> f64| match hosts.hosts(ranks) {
        1 => cost(&hosts.inside, chunk),
        _ => cost(&hosts.inside, chunk).max(cost(&hosts.between, chunk)),
    };
    let steps = 2.0 * (ranks as f64 - 1.0);
    Cost {
        seconds: steps * slower(Link::message),
        busy: steps * slower(|link, chunk| chunk * link.handling),
    }
}
// ANCHOR_END: ring

/// In each host, a reduce-scatter gives every device a chunk of the host's sum. Devices with the same chunk form a ring
/// of hosts, and all these rings share the ports of the hosts.
fn rings(ranks: usize, bytes: f64, hosts: &Hosts) -> Cost {
    let each = ranks.min(hosts.each);
    let inside = ring(each.max(1), bytes, &Hosts::one(hosts.inside));
    let inside = if each > 1 { inside } else { Cost::default() };
    let count = hosts.hosts(ranks);
    if count < 2 {
        return inside;
    }
    let outside = ring(count, bytes / each as f64, &Hosts::one(hosts.shared()));
    Cost { seconds: inside.seconds + outside.seconds, busy: inside.busy + outside.busy }
}

/// The numbers of other ranks in the host of a rank and in other hosts, if all hosts are full.
fn near_and_far(ranks: usize, hosts: &Hosts) -> (f64, f64) {
    let near = (ranks.min(hosts.each) - 1) as f64;
    (near, ranks as f64 - 1.0 - near)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Way; 5] = [Way::OneShot, Way::Naive, Way::Tree, Way::Ring, Way::Rings];
    const LINK: Link = Link { latency: 1.0, wire: 0.01, handling: 0.002 };

    fn seconds(way: Way, ranks: usize, hosts: &Hosts) -> f64 {
        way.cost(ranks, 1000.0, hosts).seconds
    }

    #[test]
    fn the_table_above() {
        let one = Hosts::one(LINK);
        for n in [2usize, 3, 4, 8] {
            let (ranks, m) = (n as f64, 1000.0);
            let Link { latency, wire, handling } = LINK;
            let one_shot = (ranks - 1.0) * LINK.message(m) + (ranks - 2.0) * m * wire;
            close(seconds(Way::OneShot, n, &one), one_shot);
            let naive = ranks * latency + 2.0 * (ranks - 1.0) * m * wire + ranks * m * handling;
            close(seconds(Way::Naive, n, &one), naive);
            let tree = 2.0 * (n as f64).log2().ceil() * LINK.message(m);
            match n.is_power_of_two() {
                true => close(seconds(Way::Tree, n, &one), tree),
                false => assert!(seconds(Way::Tree, n, &one) <= tree),
            }
            let ring = 2.0 * (ranks - 1.0) * LINK.message(m / ranks);
            close(seconds(Way::Ring, n, &one), ring);
            close(seconds(Way::Rings, n, &one), ring);
        }
    }

    #[test]
    fn one_rank_has_nothing_to_add_up() {
        for way in ALL {
            assert_eq!(way.cost(1, 1000.0, &Hosts::one(LINK)), Cost::default());
        }
    }

    #[test]
    fn a_slow_link_between_hosts_is_crossed_as_rarely_as_may_be() {
        let slow = Link { wire: 1.0, ..LINK };
        let hosts = Hosts { each: 8, inside: LINK, between: slow };
        let at_64 = |way| seconds(way, 64, &hosts);
        // A ring of all ranks sends as many bytes over the slow link as a ring of hosts, but in more steps.
        assert!(at_64(Way::Rings) < at_64(Way::Ring));
        assert!(at_64(Way::Ring) < at_64(Way::Tree));
        assert!(at_64(Way::Tree) < at_64(Way::Naive));
        for way in ALL {
            assert!(at_64(way) > seconds(way, 64, &Hosts::one(LINK)), "{way}");
        }
    }

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() <= 1e-12 * b.abs(), "{a} is not {b}");
    }
}

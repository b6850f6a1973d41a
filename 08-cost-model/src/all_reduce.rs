//! The cost of the collectives of m bytes on n ranks. In one host, with latency α, wire β and handling h of a [`Link`]:
//!
//! | all-reduce | seconds |
//! | --- | --- |
//! | one-shot | (n − 1)·(α + m·(β + h)) + (n − 2)·m·β |
//! | naive | n·α + 2(n − 1)·m·β + n·m·h |
//! | tree | 2⌈log₂ n⌉·(α + m·(β + h)), if n is a power of two; else at most that |
//! | ring | 2(n − 1)·(α + m/n·(β + h)) |
//! | two levels | a ring in each host, and a ring of the hosts for each chunk |
//!
//! The last two have equal halves: a reduce-scatter and an all-gather. A send is a [message](Link::message). The formulas
//! are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005,
//! adapted to our code. A test runs stage 2's collectives on clocks that obey [`Link`], and compares.

use std::iter::successors;

use crate::link::{Hosts, Link};

// ANCHOR: way
/// The all-reduce algorithms of stage 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table above explains them")]
pub enum Way {
    OneShot,
    Naive,
    Tree,
    Ring,
    TwoLevels,
}

/// The cost of a collective: seconds until the last rank ends; of these, seconds in which the busiest rank adds and
/// copies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "the line above explains the fields")]
pub struct Cost {
    pub seconds: f64,
    pub busy: f64,
}

impl Way {
    /// The cost of an all-reduce of `bytes` on so many ranks.
    pub fn cost(self, ranks: usize, bytes: f64, hosts: &Hosts) -> Cost {
        match self {
            _ if ranks < 2 => Cost::default(),
            Self::OneShot => one_shot(ranks, bytes, hosts),
            Self::Naive => naive(ranks, bytes, hosts),
            Self::Tree => tree(ranks, bytes, hosts),
            Self::Ring | Self::TwoLevels => {
                let Cost { seconds, busy } = self.half(ranks, bytes, hosts);
                Cost { seconds: 2.0 * seconds, busy: 2.0 * busy }
            }
        }
    }

    /// The cost of a reduce-scatter, or of an all-gather, of `bytes` in all: in two levels, or around a ring.
    pub fn half(self, ranks: usize, bytes: f64, hosts: &Hosts) -> Cost {
        if self == Self::TwoLevels {
            two_levels_half(ranks, bytes, hosts)
        } else {
            ring_half(ranks, bytes, hosts)
        }
    }
}
// ANCHOR_END: way

// ANCHOR: whole
/// Every rank receives the tensors of all ranks one by one. The first tensor in its order may be the last that is sent.
fn one_shot(ranks: usize, bytes: f64, hosts: &Hosts) -> Cost {
    let (near, far) = near_and_far(ranks, hosts);
    let (inside, between) = (hosts.inside, hosts.shared(hosts.each));
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

/// The numbers of other ranks in the host of a rank and in other hosts, if all hosts are full.
fn near_and_far(ranks: usize, hosts: &Hosts) -> (f64, f64) {
    let near = (ranks.min(hosts.each) - 1) as f64;
    (near, ranks as f64 - 1.0 - near)
}

/// A round for each doubling of the distance, up the tree and down again. No closed form is exact if branches are missing,
/// or if only some lead to another host, so the function follows each rank.
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
// ANCHOR_END: whole

// ANCHOR: halves
/// n − 1 steps, each with a chunk of an n-th. Every step is as slow as the slowest link of the ring.
fn ring_half(ranks: usize, bytes: f64, hosts: &Hosts) -> Cost {
    let (chunk, steps) = (bytes / ranks as f64, ranks as f64 - 1.0);
    let links = [hosts.inside, hosts.slowest(ranks)];
    let slower =
        |cost: &dyn Fn(Link) -> f64| steps * links.map(cost).into_iter().fold(0.0, f64::max);
    Cost {
        seconds: slower(&|link| link.message(chunk)),
        busy: slower(&|link| chunk * link.handling),
    }
}

/// In each host, a ring leaves every device a chunk. Devices with the same chunk form a ring of hosts, and all these
/// rings send at the same time.
fn two_levels_half(ranks: usize, bytes: f64, hosts: &Hosts) -> Cost {
    let (each, between) = (ranks.min(hosts.each), hosts.shared(hosts.each));
    let inside = ring_half(each, bytes, &Hosts::one(hosts.inside));
    let outside = ring_half(ranks.div_ceil(each), bytes / each as f64, &Hosts::one(between));
    Cost { seconds: inside.seconds + outside.seconds, busy: inside.busy + outside.busy }
}
// ANCHOR_END: halves

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Ports;

    const ALL: [Way; 5] = [Way::OneShot, Way::Naive, Way::Tree, Way::Ring, Way::TwoLevels];
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
            close(seconds(Way::TwoLevels, n, &one), ring);
            for way in [Way::Ring, Way::TwoLevels] {
                close(2.0 * way.half(n, m, &one).seconds, ring);
            }
        }
    }

    #[test]
    fn one_rank_has_nothing_to_add_up() {
        for way in ALL {
            assert_eq!(way.cost(1, 1000.0, &Hosts::one(LINK)), Cost::default());
            assert_eq!(way.half(1, 1000.0, &Hosts::one(LINK)), Cost::default());
        }
    }

    #[test]
    fn a_slow_link_between_hosts_is_crossed_as_rarely_as_may_be() {
        let slow = Link { wire: 1.0, ..LINK };
        let hosts = Hosts { each: 8, inside: LINK, between: slow, ports: Ports::Host };
        let at_64 = |way| seconds(way, 64, &hosts);
        // A ring of all ranks sends as many bytes over the slow link as a ring of hosts, but in more steps.
        assert!(at_64(Way::TwoLevels) < at_64(Way::Ring));
        assert!(at_64(Way::Ring) < at_64(Way::Tree));
        assert!(at_64(Way::Tree) < at_64(Way::Naive));
        for way in ALL {
            assert!(at_64(way) > seconds(way, 64, &Hosts::one(LINK)), "{way:?}");
        }
        // Eight ports carry eight chunks at a time.
        let own = Hosts { ports: Ports::Gpu, ..hosts };
        assert!(4.0 * seconds(Way::TwoLevels, 64, &own) < at_64(Way::TwoLevels));
        assert_eq!(seconds(Way::Ring, 64, &own), at_64(Way::Ring));
    }

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() <= 1e-12 * b.abs(), "{a} is not {b}");
    }
}

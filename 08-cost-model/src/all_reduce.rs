//! The cost of the collectives of m bytes on n ranks, with latency α, wire β and handling h of a [`Link`]:
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
//! follow Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005, adapted to
//! our code. A test runs stage 2's collectives on clocks that obey [`Link`], and compares.

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
}

/// The time of a collective: the seconds until the last rank ends, and of these the seconds in which the busiest rank adds
/// and copies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "the line above explains the fields")]
pub struct Taken {
    pub seconds: f64,
    pub busy: f64,
}

impl Way {
    /// The time of an all-reduce of `m` bytes on so many ranks with equal links.
    pub fn takes(self, ranks: usize, m: f64, link: Link) -> Taken {
        let (n, Link { latency, wire, handling }) = (ranks as f64, link);
        // The seconds, and the tensors that the busiest rank adds and copies.
        let (seconds, tensors) = match self {
            _ if ranks < 2 => (0.0, 0.0),
            // Every rank receives all others' tensors. Its first may be the last that another rank sends.
            Self::OneShot => ((n - 1.0) * link.message(m) + (n - 2.0) * m * wire, n - 1.0),
            // Rank 0 receives the tensors one by one, and sends the sum to every rank.
            Self::Naive => (n * latency + 2.0 * (n - 1.0) * m * wire + n * m * handling, n - 1.0),
            // A round for each doubling of the distance, up the tree and down again. A tree without some branches may end
            // earlier.
            Self::Tree => {
                let rounds = n.log2().ceil();
                (2.0 * rounds * link.message(m), rounds)
            }
            // The chunks go around twice. In each step, every rank sends one.
            Self::Ring => (2.0 * (n - 1.0) * link.message(m / n), 2.0 * (n - 1.0) / n),
        };
        Taken { seconds, busy: tensors * m * handling }
    }
}

/// The time of an all-reduce of `m` bytes in two levels. In each host, a ring leaves every device a chunk. Devices with the
/// same chunk form a ring of hosts, and all these rings send at the same time. One host has one ring.
pub fn two_levels(ranks: usize, m: f64, hosts: &Hosts) -> Taken {
    let each = ranks.min(hosts.each);
    let inside = Way::Ring.takes(each, m, hosts.inside);
    let outside = Way::Ring.takes(ranks.div_ceil(each), m / each as f64, hosts.between);
    Taken { seconds: inside.seconds + outside.seconds, busy: inside.busy + outside.busy }
}
// ANCHOR_END: way

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Way; 4] = [Way::OneShot, Way::Naive, Way::Tree, Way::Ring];
    const LINK: Link = Link { latency: 1.0, wire: 0.01, handling: 0.002 };

    fn seconds(way: Way, ranks: usize) -> f64 {
        way.takes(ranks, 1000.0, LINK).seconds
    }

    #[test]
    fn the_table_above() {
        let close = |a: f64, b: f64| assert!((a - b).abs() <= 1e-12 * b.abs(), "{a} is not {b}");
        for n in [2usize, 3, 4, 8] {
            let (ranks, m) = (n as f64, 1000.0);
            let Link { latency, wire, handling } = LINK;
            let one_shot = (ranks - 1.0) * LINK.message(m) + (ranks - 2.0) * m * wire;
            close(seconds(Way::OneShot, n), one_shot);
            let naive = ranks * latency + 2.0 * (ranks - 1.0) * m * wire + ranks * m * handling;
            close(seconds(Way::Naive, n), naive);
            close(seconds(Way::Tree, n), 2.0 * (n as f64).log2().ceil() * LINK.message(m));
            let ring = 2.0 * (ranks - 1.0) * LINK.message(m / ranks);
            close(seconds(Way::Ring, n), ring);
            close(two_levels(n, m, &Hosts::one(LINK)).seconds, ring);
        }
    }

    #[test]
    fn one_rank_has_nothing_to_add_up() {
        assert!(ALL.iter().all(|way| way.takes(1, 1000.0, LINK) == Taken::default()));
        assert_eq!(two_levels(1, 1000.0, &Hosts::one(LINK)), Taken::default());
    }

    #[test]
    fn a_slow_link_between_hosts_is_crossed_as_rarely_as_may_be() {
        let slow = Link { wire: 1.0, ..LINK };
        let hosts = Hosts { each: 8, inside: LINK, between: slow };
        let at_64 = |hosts: &Hosts| two_levels(64, 1000.0, hosts).seconds;
        // A ring of all ranks sends as many bytes over the slow link as a ring of hosts, but in more steps.
        assert!(at_64(&hosts) < Way::Ring.takes(64, 1000.0, slow).seconds);
        assert!(at_64(&hosts) > at_64(&Hosts::one(LINK)));
    }
}

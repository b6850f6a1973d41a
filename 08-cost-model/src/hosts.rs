//! The link between two devices: a fast link within a host, a slower link between hosts.

use crate::link::Link;

/// Devices in hosts, ranks counted host by host.
///
/// All devices of a host share its port to other hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hosts {
    /// Devices in one host.
    pub each: usize,
    /// Between two devices of a host.
    pub inside: Link,
    /// Between two hosts.
    pub between: Link,
}

impl Hosts {
    /// All devices in one host.
    pub fn one(link: Link) -> Self {
        Self { each: usize::MAX, inside: link, between: link }
    }

    /// Between two devices of different hosts, when all devices of both hosts use the port.
    pub fn shared(&self) -> Link {
        Link { wire: self.between.wire * self.each as f64, ..self.between }
    }

    /// How many hosts so many ranks need.
    pub fn hosts(&self, ranks: usize) -> usize {
        ranks.div_ceil(self.each)
    }
}

//! What is between devices, in words and in numbers.

use cost_model::paper::Wire;
use serde::Serialize;

use crate::number::Rounded;

/// What is between devices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    pub name: String,
    /// Whether lines are predictions of something that was measured.
    pub measured: bool,
    /// Devices in a host. Left out where all are in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub each: Option<usize>,
    /// Inside a host, then between hosts: what is assumed. Empty where it was measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wires: Vec<Wired>,
}

/// What is assumed of a kind of link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wired {
    pub name: &'static str,
    /// GB/s.
    pub bandwidth: Rounded,
    /// Microseconds.
    pub latency: Rounded,
}

impl Wired {
    /// Stage 7's assumptions.
    pub fn of(wire: Wire) -> Self {
        let link = wire.link();
        Self {
            name: match wire {
                Wire::Nvlink => "NVLink",
                Wire::Pcie => "PCIe",
                Wire::Infiniband => "InfiniBand",
                Wire::Ethernet100 => "100 Gb/s Ethernet",
                Wire::Ethernet10 => "10 Gb/s Ethernet",
            },
            bandwidth: Rounded::of(link.bandwidth() / 1e9),
            latency: Rounded::of(1e6 * link.latency),
        }
    }
}

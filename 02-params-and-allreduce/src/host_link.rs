//! Several hosts on one machine: a link between groups of ranks that is slower than memory, on purpose.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use candle_core::Tensor;
use harness::lock::locked;

use crate::communicator::{Communicator, Error, SharedCommunicator};
use crate::forward;

// ANCHOR: host_link
/// A link between hosts with the same number of ranks each. The first ranks are on host 0, the next on host 1, and so on.
///
/// The ranks of a host share one port. The port sends one message to another host at a time, and the sender waits for as long
/// as its bytes take. A message inside a host takes the time of a copy.
pub struct HostLink {
    ranks_per_host: usize,
    bytes_per_second: f64,
    /// The port of each host: the bytes that the host has sent to other hosts.
    ports: Vec<Mutex<u64>>,
}

impl HostLink {
    /// Makes the link of so many hosts. Make one before the ranks start.
    pub fn new(hosts: usize, ranks_per_host: usize, bytes_per_second: f64) -> Arc<Self> {
        let ports = (0..hosts).map(|_| Mutex::default()).collect();
        Arc::new(Self { ranks_per_host, bytes_per_second, ports })
    }

    /// Puts a rank on its host. Every rank has to do the same.
    pub fn connect(self: &Arc<Self>, comm: SharedCommunicator) -> SharedCommunicator {
        Arc::new(OnHost { comm, link: Arc::clone(self) })
    }

    /// The bytes that each host has sent to other hosts so far.
    pub fn sent(&self) -> Vec<u64> {
        self.ports.iter().map(|port| *locked(port)).collect()
    }
}

/// A rank on its host. It shares no memory with other ranks, so every message is a copy.
struct OnHost {
    comm: SharedCommunicator,
    link: Arc<HostLink>,
}

impl Communicator for OnHost {
    forward!(comm: rank, world_size, device, recv, world_rank);

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        let [host, other] = [self.rank(), to].map(|rank| rank / self.link.ranks_per_host);
        if host != other {
            let bytes = ops::size_in_bytes(tensor);
            let mut sent = locked(&self.link.ports[host]);
            thread::sleep(Duration::from_secs_f64(bytes as f64 / self.link.bytes_per_second));
            *sent += bytes as u64;
        }
        self.comm.send(to, tensor)
    }
}
// ANCHOR_END: host_link

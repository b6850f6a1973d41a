//! The messages that a rank has sent.

use std::collections::BTreeSet;

use params_and_allreduce::thread::Traffic;

/// The messages that a rank has sent so far: number, sizes and receivers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Messages and bytes in all.
    pub traffic: Traffic,
    /// The bytes of the largest message; 0 if there was no message.
    pub largest_message: u64,
    /// The bytes of the smallest message; `None` if there was no message.
    pub smallest_message: Option<u64>,
    /// The receivers, in order.
    pub receivers: BTreeSet<usize>,
}

impl Sent {
    /// Counts a message of so many bytes to a rank.
    pub(super) fn add(&mut self, to: usize, bytes: u64) {
        self.traffic.messages += 1;
        self.traffic.bytes += bytes;
        self.largest_message = self.largest_message.max(bytes);
        self.smallest_message = Some(self.smallest_message.map_or(bytes, |least| least.min(bytes)));
        self.receivers.insert(to);
    }
}

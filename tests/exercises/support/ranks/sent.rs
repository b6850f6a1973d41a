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
    /// The length of the longest chain of messages that ends with one of its messages: in a chain, the sender of each
    /// message has received the one before.
    pub longest_chain: u64,
}

impl Sent {
    /// Counts a message of so many bytes to a rank, at the end of a chain of this length.
    pub(super) fn add(&mut self, to: usize, bytes: u64, chain: u64) {
        self.traffic.messages += 1;
        self.traffic.bytes += bytes;
        self.largest_message = self.largest_message.max(bytes);
        self.smallest_message = Some(self.smallest_message.map_or(bytes, |least| least.min(bytes)));
        self.receivers.insert(to);
        self.longest_chain = self.longest_chain.max(chain);
    }
}

//! What a rank has sent.

use std::collections::BTreeSet;

use params_and_allreduce::thread::Traffic;

/// What a rank has sent so far: how much, in messages of which sizes, and to whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Messages and bytes in all.
    pub traffic: Traffic,
    /// The bytes of its largest message; 0 if there was none.
    pub largest_message: u64,
    /// The bytes of its smallest message; `None` if there was none.
    pub smallest_message: Option<u64>,
    /// The ranks that it has sent something, in order.
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

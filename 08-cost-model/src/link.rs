//! The cost of a message: three numbers.
//!
//! ```text
//! a message of m bytes takes   latency + m · (wire + handling)
//! ```
//!
//! Latency and wire are Hockney's numbers (1994). Handling is the work of the receiver: it adds the message to its own
//! numbers, or copies the message to its place. While bytes are on the wire, a device can compute. While a device handles
//! bytes, it cannot compute, unless other hardware handles them.
//!
//! A device has one port. It sends one message at a time, and receives one message at a time. Sending does not delay
//! receiving.

use serde::{Deserialize, Serialize};

/// A link between two devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Seconds that every message takes, however short it is.
    pub latency: f64,
    /// Seconds for each byte on its way: 1 / bandwidth.
    pub wire: f64,
    /// Seconds to add or to copy each received byte.
    pub handling: f64,
}

impl Link {
    /// A link with this latency in seconds and bandwidth in bytes a second. Its messages need no handling.
    pub fn new(latency: f64, bandwidth: f64) -> Self {
        Self { latency, wire: 1.0 / bandwidth, handling: 0.0 }
    }

    /// Seconds from the start of a message of `bytes` to the end of its handling.
    pub fn message(&self, bytes: f64) -> f64 {
        self.latency + bytes * (self.wire + self.handling)
    }

    /// Bytes a second of a long message.
    pub fn bandwidth(&self) -> f64 {
        1.0 / (self.wire + self.handling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_costs_what_its_bytes_cost_and_the_latency() {
        let link = Link { latency: 3.0, wire: 0.5, handling: 0.25 };
        assert_eq!(link.message(0.0), 3.0);
        assert_eq!(link.message(4.0), 6.0);
        assert_eq!(Link::new(1.0, 4.0).message(8.0), 3.0);
        assert_eq!(Link::new(1.0, 4.0).bandwidth(), 4.0);
    }
}

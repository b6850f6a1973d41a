//! What a message costs: three numbers.
//!
//! ```text
//! a message of m bytes takes   latency + m · (wire + handling)
//! ```
//!
//! The first two are Hockney's (1994), the third is what the receiver does with what has arrived: it adds it
//! to its own, or copies it to where it belongs. They differ in who is busy meanwhile. While bytes are on the
//! wire, a device can compute; while it handles them, it cannot, unless it has something else that does.
//!
//! A device has one port: of the messages that it sends, one is on the wire at a time, and so with those that
//! it receives. To send and to receive do not hold each other up.

use serde::{Deserialize, Serialize};

/// What a link between two devices costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Seconds that every message takes, however short it is.
    pub latency: f64,
    /// Seconds for each byte on its way: 1 / bandwidth.
    pub wire: f64,
    /// Seconds for each byte that has arrived, to add or to copy it.
    pub handling: f64,
}

impl Link {
    /// A link of so many seconds and bytes a second, on which what arrives costs nothing more.
    pub fn new(latency: f64, bandwidth: f64) -> Self {
        Self { latency, wire: 1.0 / bandwidth, handling: 0.0 }
    }

    /// Seconds that a message of so many bytes takes, from when it leaves until it is dealt with.
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

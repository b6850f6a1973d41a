//! The pipeline: devices in a row, each with some of the layers, and micro-batches that pass through.
//!
//! ```text
//!             activation →      activation →
//!   stage 0                stage 1                stage 2
//!             ← gradient        ← gradient
//! ```

pub mod schedule;

pub use schedule::{Action, Instruction, Kind, Schedule};

//! The pipeline: each device has some of the layers, and micro-batches pass from device to device.
//!
//! A schedule exists before anything runs. From the list of instructions to the prediction:
//!
//! ```
//! use model_parallel::partition::Cost;
//! use model_parallel::pipeline::{Kind, check, predict};
//!
//! let schedule = Kind::OneFOneB.schedule(4, 8)?;
//! // Channels between stages hold one message.
//! let checked = check(schedule, 1)?;
//! assert_eq!(checked.peaks()[0].activations, 4);
//!
//! // One unit of time forward, two backward; a message takes none.
//! let timeline = predict(&checked, &[Cost::UNITS; 4], 0.0)?;
//! assert_eq!(timeline.bubble(), 3.0 / 11.0);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

pub mod check;
pub mod drawing;
pub mod orders;
pub mod predict;
mod pytorch;
pub mod schedule;
pub mod timeline;
pub mod worker;

pub use check::{Checked, check};
pub use orders::Kind;
pub use predict::{predict, shorten};
pub use schedule::{Action, Instruction, Schedule, UNBOUNDED};
pub use timeline::Timeline;
pub use worker::Worker;

//! The pipeline: devices in a row, each with some of the layers, and micro-batches that pass through.
//!
//! ```text
//!             activation →      activation →
//!   stage 0                stage 1                stage 2
//!             ← gradient        ← gradient
//! ```
//!
//! A schedule is written down before anything runs, so it can be looked at, checked, and drawn. From the
//! list of instructions to the prediction:
//!
//! ```
//! use model_parallel::pipeline::{Kind, check, predict};
//! use model_parallel::pipeline::predict::{Costs, StageCost};
//!
//! let schedule = Kind::OneFOneB.schedule(4, 8)?;
//! // Channels between stages hold one message.
//! let checked = check(schedule, 1)?;
//! assert_eq!(checked.peaks()[0].activations, 4);
//!
//! // One unit of time forward, two backward; a message takes none.
//! let timeline = predict(&checked, &Costs::equal(4, StageCost::UNITS))?;
//! assert_eq!(timeline.bubble(), 3.0 / 11.0);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

pub mod channel;
pub mod check;
pub mod memory;
mod model;
pub mod predict;
mod run;
pub mod schedule;
pub mod timeline;
pub mod worker;

pub use check::{Checked, check};
pub use model::PipelineParallel;
pub use predict::predict;
pub use schedule::{Action, Instruction, Kind, Schedule};
pub use timeline::Timeline;
pub use worker::Worker;

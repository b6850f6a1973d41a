//! The pipeline: each device has some of the layers, and micro-batches pass from device to device.
//!
//! ```text
//!             activation →      activation →
//!   stage 0                stage 1                stage 2
//!             ← gradient        ← gradient
//! ```
//!
//! | file | content |
//! | --- | --- |
//! | [`schedule`], [`orders`] | instructions and messages; naive, GPipe, 1F1B, interleaved 1F1B, ZB-H1 |
//! | [`mod@check`] | the laws that every schedule keeps, and deadlock |
//! | [`timeline`], [`mod@predict`] | the times of all instructions, from the cost of the layers: bubble, activations alive |
//! | [`worker`] | execution of a checked schedule |
//! | [`drawing`] | timelines as text and as Gantt charts |
//!
//! A schedule exists before anything runs. From the list of instructions to the prediction:
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

pub mod check;
pub mod drawing;
pub mod orders;
pub mod predict;
pub mod schedule;
pub mod timeline;
pub mod worker;

pub use check::{Checked, check};
pub use orders::Kind;
pub use predict::predict;
pub use schedule::{Action, Instruction, Schedule, UNBOUNDED};
pub use timeline::Timeline;
pub use worker::Worker;

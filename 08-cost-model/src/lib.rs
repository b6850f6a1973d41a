//! Stage 8: the time of a step on k devices, predicted before the step runs.
//!
//! Two measurements come first: the compute time of a device with its share of the batch, and the time of a message between
//! idle devices. The rest is arithmetic, which also works for machines on paper.
//!
//! | module | what it teaches |
//! | --- | --- |
//! | [`mod@link`] | a message costs a latency, and a time for each byte; the device that is busy meanwhile |
//! | [`hosts`] | which link is between which devices |
//! | [`mod@all_reduce`] | naive, tree and ring in closed form, and rings in rings for several hosts |
//! | [`compute`] | a step is a straight line: a fixed time, and a time for every sample |
//! | [`model`] | the numbers of a model that decide its time; when its buckets are full |
//! | [`step`] | the communication that overlap hides, and the rest |
//! | [`training`] | the prediction of a training step |
//! | [`measure`] | the measurements of this machine, and the steps that test a prediction |
//! | [`record`] | the lines of `--metrics` |
//! | [`paper`] | machines on paper, with assumed speeds |
//!
//! The model leaves out the loading of data, evaluation, batch norm across devices, and all differences between steps. A
//! prediction is about steps that no other program disturbs.

pub mod all_reduce;
pub mod compute;
pub mod hosts;
pub mod link;
pub mod measure;
pub mod model;
pub mod paper;
pub mod record;
pub mod step;
pub mod training;

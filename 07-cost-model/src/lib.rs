//! Stage 7: how long a step will take on k devices, before it is run on them.
//!
//! What a device takes for its share is measured where it computes by itself, what a message takes where devices have
//! nothing else to do. The rest is arithmetic, so it can also be done for machines that one does not have.
//!
//! | module | what it teaches |
//! | --- | --- |
//! | [`mod@link`] | a message costs a latency, and so much a byte; who is busy meanwhile |
//! | [`hosts`] | which link is between which devices |
//! | [`mod@all_reduce`] | naive, tree and ring in closed form, and rings in rings for several hosts |
//! | [`compute`] | a step is a straight line: so much in any case, so much for every sample |
//! | [`model`] | what of a model decides how long it takes; when its buckets are full |
//! | [`step`] | what overlap hides, and what it cannot |
//! | [`training`] | all of it together |
//! | [`measure`] | what has to be known of this machine; what a prediction is judged by |
//! | [`record`] | what is written down of both |
//! | [`paper`] | machines that are not here, with what is assumed of them |
//!
//! Left out: loading data (stage 1 has the next batch ready), evaluation, batch norm across devices, and everything
//! that differs from one step to the next. A prediction is of steps that nothing else disturbs.

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

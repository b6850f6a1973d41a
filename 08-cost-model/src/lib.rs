//! Stage 8: does it fit, and how fast is it? Answered before the step runs.
//!
//! A step is a list, as in stages 6 and 7. Stage 6's simulator says when everything happens, and how many bytes every
//! device holds. This stage gives the simulator its costs: measured on this machine, or assumed for machines on paper.
//!
//! | module | what it teaches |
//! | --- | --- |
//! | [`mod@link`] | a message costs a latency, and a time for each byte; hosts and their ports |
//! | [`mod@all_reduce`] | the cost of every collective in closed form |
//! | [`compute`] | the seconds and bytes of a layer are a straight line in the samples; steps that run, to compare |
//! | [`plan`] | a strategy on a mesh: its list, and the prediction of a step |
//! | [`paper`] | machines on paper, with assumed speeds and counted layers |
//!
//! The model leaves out the loss, the loading of data, evaluation, and all differences between steps. A prediction is about
//! steps that no other program disturbs, and uses no measurement of the step that it predicts.

pub mod all_reduce;
pub mod compute;
pub mod link;
pub mod paper;
pub mod plan;

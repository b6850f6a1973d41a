//! Stage 6: when the model does not fit on one device, the model itself is split.
//!
//! Each device holds some of the layers and hands on what it has computed. Done simply, one device works
//! and the others wait. A batch that is cut into micro-batches keeps them all busy, if each device does
//! the right thing at the right time: what that is, a *schedule* says.
//!
//! | module | what it teaches |
//! | --- | --- |
//! | [`pipeline::schedule`] | who does what, in which order: naive, GPipe, 1F1B, interleaved, zero-bubble |
//! | [`mod@pipeline::check`] | the laws that every schedule keeps, and deadlock |
//! | [`mod@pipeline::predict`] | when everything happens, from how long each part takes |
//! | [`pipeline::timeline`] | what happened when, predicted or measured: bubble, activations alive |
//!
//! Left out here: executing a schedule, cutting a model into stages, and tensors that are split within a
//! layer.

pub mod pipeline;

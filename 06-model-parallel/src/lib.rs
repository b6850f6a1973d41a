//! Stage 6: when the model does not fit on one device, the model itself is split.
//!
//! Each device holds some of the layers and hands on what it has computed. Done simply, one device works
//! and the others wait. A batch that is cut into micro-batches keeps them all busy, if each device does
//! the right thing at the right time: what that is, a *schedule* says.
//!
//! | module | what it teaches |
//! | --- | --- |
//! | [`layers`] | a model as a list of layers, of which a device builds its own alone |
//! | [`dense`] | a stack of dense layers: the same names and numbers, however it is cut |
//! | [`partition`] | where to cut the list: the smallest largest stage |
//! | [`pipeline::schedule`] | who does what, in which order: naive, GPipe, 1F1B, interleaved, zero-bubble |
//! | [`mod@pipeline::check`] | the laws that every schedule keeps, and deadlock |
//! | [`mod@pipeline::predict`] | when everything happens, from how long each part takes |
//! | [`pipeline::timeline`] | what happened when, predicted or measured: bubble, activations alive |
//! | [`mod@pipeline::worker`] | executes any checked schedule, and trains with the numbers of one device |
//! | [`tensor_parallel`] | the other way: every device holds a part of every layer |
//! | [`mesh`] | stages or parts together with replicas: who talks to whom |
//! | `wishes` | which tensors a layer asks for, before it gets any |
//! | [`held`], [`whole`] | what a device holds, and the whole model put together from it |
//!
//! Left out here: stages whose layers are in parts, activations that are computed a second time, and executing
//! what interleaved and zero-bubble schedules draw.

pub mod dense;
pub mod held;
pub mod layers;
pub mod mesh;
pub mod partition;
pub mod pipeline;
pub mod tensor_parallel;
pub mod whole;
mod wishes;

//! Stage 6: when the model does not fit on one device, the model itself is split.
//!
//! Each device holds some of the layers and sends its result to the next device. In the simplest form one device works
//! and all other devices wait. A batch that is cut into micro-batches keeps all devices busy, if each device does the right
//! thing at the right time. A *schedule* is this order of work.
//!
//! Read the modules in this order:
//!
//! | module | subject |
//! | --- | --- |
//! | [`layers`], [`networks`] | a model as a list of layers, of which a device builds its own |
//! | [`partition`] | where to cut the list: the smallest largest stage |
//! | [`pipeline::schedule`], [`pipeline::orders`] | the order of work: naive, GPipe, 1F1B, interleaved, zero-bubble |
//! | [`mod@pipeline::check`] | the laws that every schedule keeps, and deadlock |
//! | [`pipeline::timeline`], [`mod@pipeline::predict`] | when everything happens: bubble, activations alive |
//! | [`pipeline::drawing`] | timelines as text and as Gantt charts |
//! | [`mod@pipeline::worker`] | executes any checked schedule, and trains with the numbers of one device |
//! | [`tensor_parallel`] | every device holds a part of every layer |
//! | [`mesh`] | replicas, stages and parts together |
//! | [`held`] | the bytes that a device holds |

pub mod held;
pub mod layers;
pub mod mesh;
pub mod networks;
pub mod partition;
pub mod pipeline;
pub mod tensor_parallel;

/// A request that cannot be met, such as a cut or a schedule. The text names the numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

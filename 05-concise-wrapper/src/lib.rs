//! Stage 5: data parallelism behind one wrapper.
//!
//! Stage 4 writes data parallelism out for one model. This crate wraps any model in one line, and its training loop does not
//! depend on the number of devices. Read the modules in this order (lines with comments, without tests):
//!
//! | module | lines | content |
//! | --- | --- | --- |
//! | [`mod@network`] | 300 | a network: a module, its named tensors, their gradients |
//! | [`model`], [`mod@train`] | 190 | the model as the training loop sees it, and the loop |
//! | [`mod@data_parallel`] | 210 | one line: replicate, scatter, apply, gather |
//! | [`ddp`] | 670 | a rank for each device: gradients travel in buckets during the backward pass |
//! | [`resnet`], [`lenet`] | 200 | ResNet-18, and LeNet of stage 1 |
//! | [`batch_norm`] | 350 | statistics of the local shard, of the global batch, or of each shard |
//! | [`optimizer`] | 260 | optimizers: SGD with momentum, AdamW; warm-up, the linear scaling rule |
//!
//! [`recorder`] records the steps of a run, and `resume` resumes a run on all ranks to the same bits.

pub mod batch_norm;
pub mod data_parallel;
pub mod ddp;
mod error;
pub mod lenet;
pub mod model;
pub mod network;
pub mod optimizer;
pub mod recorder;
pub mod resnet;
mod resume;
pub mod train;

pub use backends::{counted, launch, native, slow_link, text};
pub use data_parallel::DataParallel;
pub use ddp::Ddp;
pub use error::Error;
pub use model::Model;
pub use model_state::precision::Precision;
pub use model_state::{initial, precision, weights};
pub use network::Network;
pub use resume::Store;
pub use scratch_data_parallel::{allreduce_sums, evaluate, replicas};
pub use train::train;
pub use trainer::sizing;

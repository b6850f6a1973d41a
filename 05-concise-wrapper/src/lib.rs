//! Stage 5: data parallelism behind one wrapper.
//!
//! Stage 4 writes data parallelism out for one model. This crate wraps any model in one line, and its training loop does not
//! depend on the number of devices. Read the modules in this order (lines with comments, without tests):
//!
//! | module | lines | content |
//! | --- | --- | --- |
//! | [`mod@network`], [`weights`] | 440 | a network: a module, its named tensors, gradient hooks |
//! | [`model`], [`mod@train`] | 200 | the model as the training loop sees it, and the loop |
//! | [`mod@data_parallel`] | 170 | one line: replicate, scatter, apply, gather |
//! | [`ddp`] | 730 | a rank for each device: gradients travel in buckets during the backward pass |
//! | [`resnet`], [`lenet`] | 230 | ResNet-18, and LeNet of stage 1 |
//! | [`batch_norm`] | 380 | statistics of the local shard, of the global batch, or of each shard |
//! | [`precision`] | 120 | layers in bf16, and sums in f32 |
//! | [`recording`] | 390 | the first step, rank and tensor in which two runs part |
//! | [`optimizer`] | 360 | SGD with momentum, AdamW, warm-up, the linear scaling rule |
//! | [`launch`] | 280 | ranks as threads, or as processes of a launcher |
//! | [`slow_link`] | 190 | a link that is slower than memory |
//!
//! The remaining modules serve these: [`initial`] draws initial values, and `device_threads` are threads that wait for work.
//! `resume` resumes a run on all ranks to the same bits, [`text`] sends JSON between ranks, and [`sizing`] is the default size of a
//! run on a CPU.

pub mod batch_norm;
pub mod data_parallel;
pub mod ddp;
mod device_threads;
mod error;
pub mod initial;
pub mod launch;
pub mod lenet;
pub mod model;
pub mod network;
pub mod optimizer;
pub mod precision;
pub mod recording;
pub mod resnet;
mod resume;
pub mod sizing;
pub mod slow_link;
pub mod text;
pub mod train;
pub mod weights;

pub use data_parallel::DataParallel;
pub use ddp::Ddp;
pub use error::Error;
pub use model::Model;
pub use network::Network;
pub use precision::Precision;
pub use scratch_data_parallel::{allreduce_sums, evaluate, replicas};
pub use train::train;

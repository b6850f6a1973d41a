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
//!
//! The remaining modules serve these: [`initial`] draws initial values, and `device_threads` are threads that wait for work.
//! [`optimiser`] has momentum, weight decay, warm-up and the linear scaling rule. [`checkpoint`] resumes a run to the same bits.
//! [`launch`] starts ranks as threads or meets the processes of a launcher, [`text`] sends JSON between ranks, [`slow_link`] makes a
//! link slower than memory, and [`sizing`] is the default size of a run on a CPU.

pub mod batch_norm;
pub mod checkpoint;
pub mod data_parallel;
pub mod ddp;
mod device_threads;
mod error;
pub mod initial;
pub mod launch;
pub mod lenet;
pub mod model;
pub mod network;
pub mod optimiser;
pub mod precision;
pub mod recording;
pub mod resnet;
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

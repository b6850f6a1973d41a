//! Stage 5: data parallelism behind one wrapper.
//!
//! Stage 4 writes data parallelism out for one model. This crate wraps any model in one line, and its training loop does not
//! depend on the number of devices. Read the modules in this order:
//!
//! | module | content |
//! | --- | --- |
//! | [`mod@network`], [`weights`] | a network: a module, its named tensors, gradient hooks |
//! | [`initial`] | initial values, which depend on a name and the seed alone |
//! | [`precision`] | layers in bf16, and sums in f32 |
//! | [`resnet`], [`lenet`] | ResNet-18, and LeNet of stage 1 |
//! | [`batch_norm`] | statistics of the local shard, of the global batch, or of each shard |
//! | [`model`], [`mod@train`] | the model as the training loop sees it, and the loop |
//! | [`mod@data_parallel`] | one line: replicate, scatter, apply, gather |
//! | `device_threads` | threads that drive devices and wait for work |
//! | [`ddp`] | a rank for each device; gradients travel during the backward pass |
//! | [`optimizer`] | SGD with momentum, AdamW, warm-up, the linear scaling rule |
//! | [`recording`] | the first step, rank and tensor in which two runs part |
//! | `resume` | a run that ended early, resumed on all ranks to the same bits |
//! | [`slow_link`] | a link that is slower than memory |
//! | [`launch`] | ranks as threads, or as processes of a launcher |
//! | [`text`] | values that ranks exchange as JSON |
//! | [`sizing`] | the default size of a run on a CPU |

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

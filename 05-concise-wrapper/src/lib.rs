//! Stage 5: the same behind one wrapper.
//!
//! After stage 4 it is known what data parallelism is. This is the tool one would use: a line that wraps a
//! model, a loop that does not know how many devices there are, and what makes it hold up in practice.
//!
//! | module | what it teaches |
//! | --- | --- |
//! | [`mod@network`], [`weights`] | a network is a function and named tensors, whoever builds, copies or saves it |
//! | [`initial`] | values that depend on a name and the seed, and on nothing else |
//! | `gradient_hook` | a parameter that passes its gradient on during the backward pass |
//! | [`precision`] | layers in bf16, and what has to stay in f32 |
//! | [`resnet`], [`lenet`] | ResNet-18, and LeNet once more |
//! | [`batch_norm`] | whose batch is it? local, synchronised, by shard |
//! | [`model`] | what a training loop needs of a model, plain or wrapped |
//! | [`mod@data_parallel`] | one line: scatter, replicas, gather |
//! | [`ddp`] | a rank for each device; buckets that travel during the backward pass |
//! | [`slow_link`] | a link that is slower than memory, so that there is something to hide |
//! | [`launch`] | ranks are threads, or processes that `mpirun` has started |
//! | [`text`] | values that ranks exchange as JSON |
//! | [`sizing`] | smaller defaults on a CPU |
//! | [`optimizer`] | momentum, weight decay, AdamW, warm-up, the linear scaling rule |
//! | [`mod@train`] | the loop |
//! | [`recording`] | where do two runs part? |
//! | `resume` | a run that ended early resumes after its last step, on all ranks, with the same bits |

pub mod batch_norm;
pub mod data_parallel;
pub mod ddp;
mod error;
mod gradient_hook;
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

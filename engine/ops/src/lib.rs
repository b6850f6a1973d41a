//! The operations of the course's networks, each with an explicit backward.
//!
//! | module | operation |
//! | --- | --- |
//! | [`conv2d`](mod@conv2d) | convolution, in the way that suits its shape, with relu and pooling if they follow |
//! | [`avg_pool2d`](mod@avg_pool2d) | average pooling; rows and columns that no window covers get no gradient |
//! | [`batch_norm`](mod@batch_norm) | each channel to mean 0 and variance 1, with its relu |
//! | [`relu`](mod@relu) | max(x, 0), with derivative 0 at 0 |
//! | [`add_bias`](mod@add_bias) | x + b for each channel, with its relu, behind what devices have summed up |
//! | [`add_relu`](mod@add_relu) | max(x + y, 0): where a short cut ends |
//! | [`global_avg_pool`](mod@global_avg_pool) | the mean of each plane |
//! | [`copies`] | a tensor once more, in another shape, order or type |
//! | [`linear`](mod@linear) | x · w + b, with its relu |
//! | [`sum`](mod@sum) | x + y of gradients, or of what devices have: without a backward |
//! | [`cross_entropy`](mod@cross_entropy) | the *sum* over the batch of −log softmax at the label |
//!
//! They are our own because the stock ones are wrong or slow where this course needs them: a pooling
//! gradient that is wrong when the input is not a multiple of the kernel, a relu whose derivative at 0
//! is 1, a convolution backward far below what the processor can do. Every gradient is checked against
//! finite differences and against PyTorch before anything is parallel.
//!
//! Layers also work on bf16: on the CPU as a GPU's tensor cores would (`rounded`), to see what its rounding
//! does. Batch norms take images in it and compute in f32, with f32 parameters. Losses add up too much for it, and refuse
//! it on any device.
//!
//! On the CPU each operation runs on the threads of the device that calls it. On a GPU it is kernels of our own
//! (`gpu`), and products by NVIDIA's libraries: cuBLAS for matrices, cuDNN for convolutions, where the build has it.
//! Either way its bits depend on shapes and values only, never on how many threads there are or on their timing.

/// Elements of a parallel task of an operation by element, at least: enough work to be worth handing to another thread.
pub const BLOCK: usize = 16 * 1024;

#[cfg(test)]
mod agreement;
pub(crate) mod element;
mod gemm;
#[cfg(feature = "cuda")]
pub(crate) mod gpu;
mod lanes;
#[cfg(feature = "cuda")]
#[cfg(test)]
pub(crate) mod on_a_gpu;
pub mod parameters;
mod room;
mod rounded;
mod scratch;
pub(crate) mod simd;

pub mod add_bias;
pub mod add_relu;
pub mod avg_pool2d;
pub mod backward;
pub mod batch_norm;
pub mod conv2d;
pub mod copies;
pub mod cross_entropy;
pub mod difference;
pub mod global_avg_pool;
pub mod linear;
pub mod relu;
pub mod sgd_step;
pub mod sum;
pub mod weights_hash;

pub use add_bias::{add_bias, add_bias_relu};
pub use add_relu::add_relu;
pub use avg_pool2d::avg_pool2d;
pub use batch_norm::{batch_norm, batch_norm_with};
pub use conv2d::{conv2d, conv2d_relu_pool};
pub use copies::{cast, flatten, transpose};
pub use cross_entropy::{cross_entropy, loss_and_correct};
pub(crate) use element::Element;
pub use global_avg_pool::global_avg_pool;
pub use linear::{linear, linear_relu};
pub use relu::relu;
pub use sum::sum;

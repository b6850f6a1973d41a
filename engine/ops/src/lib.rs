//! The operations of the course's networks, each with an explicit backward.
//!
//! | module | operation |
//! | --- | --- |
//! | [`conv2d`](mod@conv2d) | convolution by the algorithm for its shape, with relu and pooling |
//! | [`avg_pool2d`](mod@avg_pool2d) | average pooling; pixels outside all windows get no gradient |
//! | [`batch_norm`](mod@batch_norm) | each channel to mean 0 and variance 1, with its relu |
//! | [`relu`](mod@relu) | max(x, 0), with derivative 0 at 0 |
//! | [`add_bias`](mod@add_bias) | x + b for each channel, with its relu, after a sum over devices |
//! | [`add_relu`] | max(x + y, 0), at the end of a shortcut |
//! | [`global_avg_pool`] | the mean of each plane |
//! | [`copies`] | a copy of a tensor in another shape, order or type |
//! | [`linear`](mod@linear) | x · w + b, with its relu |
//! | [`sum`] | x + y of gradients or of devices' tensors, without a backward |
//! | [`cross_entropy`](mod@cross_entropy) | the *sum* over the batch of −log softmax at the label |
//!
//! The course has its own operations because candle's are wrong or slow for its networks: the
//! gradient of candle's pooling is wrong when the input is not a multiple of the kernel, the
//! derivative of candle's relu at 0 is 1, and the backward of candle's convolution is far below the
//! processor's speed. Tests check every gradient against finite differences and against PyTorch.
//!
//! Layers also work on bf16. On the CPU they round as a GPU's tensor cores would (`rounded`). A
//! batch norm computes in f32, and a loss refuses bf16 because it adds up too many terms.
//!
//! On the CPU each operation runs on the threads of the device that calls it. On a GPU an operation
//! runs kernels of this crate (`gpu`), cuBLAS, and cuDNN when the build has it. On both, the bits
//! of a result depend on shapes and values only, never on the number of threads or on their timing.

/// The least number of elements of a parallel task of an elementwise operation. A task of this size
/// has enough work to be worth handing to another thread.
pub const BLOCK: usize = 16 * 1024;

pub(crate) mod element;
pub(crate) mod elementwise;
mod gemm;
#[cfg(feature = "cuda")]
pub(crate) mod gpu;
mod memory;
pub mod parameters;
mod rounded;
pub(crate) mod simd;
#[cfg(test)]
mod tests;

pub mod add_bias;
pub mod avg_pool2d;
pub mod backward;
pub mod batch_norm;
pub mod conv2d;
pub mod copies;
pub mod cross_entropy;
pub mod difference;
pub mod initial;
pub mod linear;
pub mod precision;
pub mod relu;
pub mod sgd_step;
pub mod weights;
pub mod weights_hash;

pub use add_bias::{add_bias, add_bias_relu};
pub use avg_pool2d::{avg_pool2d, global_avg_pool};
pub use batch_norm::{batch_norm, batch_norm_with};
pub use conv2d::{conv2d, conv2d_relu_pool};
pub use copies::{cast, flatten, transpose};
pub use cross_entropy::{cross_entropy, loss_and_correct};
pub(crate) use element::Element;
pub use elementwise::sum;
pub use linear::{linear, linear_relu};
pub use relu::{add_relu, relu};

/// Returns the size of a tensor in bytes.
pub fn size_in_bytes(tensor: &candle_core::Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}

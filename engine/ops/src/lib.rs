//! The operations of the course's networks, each with an explicit backward.
//!
//! | module | operation |
//! | --- | --- |
//! | [`conv2d`](mod@conv2d) | convolution by the algorithm for its shape, with relu and pooling |
//! | [`avg_pool2d`](mod@avg_pool2d) | average pooling; pixels outside all windows get no gradient |
//! | [`batch_norm`](mod@batch_norm) | each channel to mean 0 and variance 1, with its relu |
//! | [`layer_norm`](mod@layer_norm) | each row to mean 0 and variance 1, with a scale and a shift by feature |
//! | [`relu`](mod@relu) | max(x, 0), with derivative 0 at 0 |
//! | [`add`](mod@add), [`add_relu`] | x + y, such as a layer's output and its input, with y repeated over the first axes; [`add_reduced`] adds y after an all-reduce |
//! | [`gelu`](mod@gelu), [`gelu_tanh`] | x · Φ(x), exactly and by a hyperbolic tangent |
//! | [`softmax`](mod@softmax) | exp(x) / Σ exp(x) over the last axis |
//! | [`global_avg_pool`] | the mean of each plane |
//! | [`copies`] | a copy of a tensor in another shape, order or type |
//! | [`linear`](mod@linear) | x · w + b, with its relu |
//! | [`sum`] | x + y of gradients or of devices' tensors, without a backward |
//! | [`cross_entropy`](mod@cross_entropy) | the *sum* over the batch of −log softmax at the label, also of classes in parts |
//! | [`embedding`](mod@embedding) | a row of a table for each token |
//!
//! candle's operations are wrong or slow for these networks: the gradient of its pooling is wrong when the input is not a
//! multiple of the kernel, the derivative of its relu at 0 is 1, and the backward of its convolution is slow. Tests check
//! every gradient against finite differences and against PyTorch.
//!
//! The crate has three parts, each of which uses only those before it:
//! 1. `kernels`: elements and memory, functions, products, loops over elements, and the kernels of a GPU, all without gradients.
//! 2. [`backward`](mod@backward): the tape, and the backward pass.
//! 3. The operations of the table, [`update`]: tensors that change in place, and [`difference`], which compares tensors.
//!
//! Every operation asks once in each direction whether its tensors are on a GPU (`is_cuda`). Then `kernels::gpu` computes the
//! result: by a kernel of this crate, by cuBLAS, or by cuDNN when the build has it. Otherwise the threads of the calling CPU
//! device do. The bits of a result depend on shapes and values only, never on the number of threads or on their timing.
//!
//! Layers also work on bf16. On the CPU they round as a GPU's tensor cores would ([`copies`]). A batch norm computes in f32,
//! and a loss refuses bf16 because it adds up too many terms.

/// The least number of elements of a parallel task of an elementwise operation: enough work for another thread.
pub const BLOCK: usize = 16 * 1024;

mod kernels;

pub mod backward;

pub mod add;
pub mod attention;
pub mod avg_pool2d;
pub mod batch_norm;
pub mod conv2d;
pub mod copies;
pub mod cross_entropy;
pub mod difference;
pub mod embedding;
pub mod gelu;
pub mod layer_norm;
pub mod linear;
pub mod relu;
pub mod softmax;
pub mod update;

#[cfg(test)]
mod tests;

pub use add::{add, add_reduced, add_relu};
pub use attention::causal_attention;
pub use avg_pool2d::{avg_pool2d, global_avg_pool};
pub use batch_norm::{batch_norm, batch_norm_with};
pub use conv2d::{conv2d, conv2d_relu_pool};
pub use copies::{cast, flatten, reshape, transpose};
pub use cross_entropy::{
    cross_entropy, cross_entropy_of_part, loss_and_correct, loss_and_correct_of_parts,
    row_statistics,
};
pub use embedding::{embedding, embedding_of_part};
pub use gelu::{gelu, gelu_tanh};
pub(crate) use kernels::element::Element;
pub use kernels::elementwise::sum;
pub use kernels::memory;
pub use layer_norm::layer_norm;
pub use linear::{linear, linear_relu};
pub use relu::relu;
pub use softmax::softmax;

/// Returns the size of a tensor in bytes.
pub fn size_in_bytes(tensor: &candle_core::Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}

//! Shared code of operations on a GPU, with feature `cuda` only.
//!
//! | file | contents |
//! | --- | --- |
//! | `kernels/*.cu` | the kernels, in CUDA C++; all begin with `prelude.cuh` |
//! | `kernels` | the compilation of kernels and their lookup |
//! | `operand` | tensors as operands of kernels |
//! | `launch` | a kernel with its arguments: checks, and the call of the driver |
//! | `channels` | images processed channel by channel, and a bias for each channel |
//! | `update` | in-place updates of several tensors in one launch |
//!
//! An operation launches its kernels itself, in its forward and backward functions or in a file `on_gpu.rs` of its folder.
//! candle calls cuBLAS for products of matrices. cuDNN computes the products of convolutions (`conv2d::cudnn`).
//!
//! A kernel is launched as a number of *blocks* of 256 threads. The terms of a block's sum depend
//! on shapes alone, and the sums of blocks are added in a fixed order, so the bits of a result
//! never depend on the GPU's timing. The speed of memory limits all kernels.
//!
//! **Tests without a GPU.** `tests::on_a_gpu` compares every operation on a GPU, which may be a
//! simulated one (`tests/simulated-gpu`), with the operation on the CPU. The simulated GPU also
//! reports a kernel that reaches beyond its memory, or reads memory that nothing has written.

mod channels;
mod kernels;
mod launch;
mod operand;
pub(crate) mod update;

pub(crate) use channels::{Channels, PartialSums, Totals, add_bias, bias_gradients};
pub(crate) use kernels::Source;
#[cfg(feature = "cudnn")]
pub(crate) use launch::address;
pub(crate) use launch::{Launch, alloc, blocks_of, elementwise};
pub(crate) use operand::{Operand, aligned, on_gpu, tensor};

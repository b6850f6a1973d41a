//! Operations on a GPU, as far as they have something in common; with feature `cuda` only.
//!
//! | file | what it is about |
//! | --- | --- |
//! | `kernels/*.cu` | the kernels, in CUDA C++; all begin with `prelude.cuh` |
//! | `kernels` | how kernels are compiled and found |
//! | `operand` | tensors as kernels are given them |
//! | `launch` | a kernel with its arguments: checks, and the call of the driver |
//! | `channels` | images gone through channel by channel, and a bias for each |
//! | `update` | in-place updates of several tensors in one launch |
//!
//! An operation launches its kernels itself, in its `cuda_fwd` and `bwd` or in a file `on_gpu.rs` of its folder. cuBLAS
//! computes products of matrices, called by candle, and cuDNN those of convolutions (`conv2d::cudnn`).
//!
//! A kernel is launched as a number of *blocks* of 256 threads. Threads of a block can wait for each other and share
//! memory, blocks cannot. What a block adds up depends on shapes alone, and blocks' sums are always added in the same
//! order: the bits of a result never depend on the GPU's timing.
//!
//! **Right before there is a GPU.** `on_a_gpu` compares every operation with the same on the CPU, on a GPU or on a
//! simulated one (`tests/simulated-gpu`), which also reports a kernel that reaches beyond its memory, or reads what
//! nobody wrote.
//!
//! **Cost.** All kernels are bound by memory. They read each operand and write each result once, except for batch
//! normalisation, whose statistics have to be complete before anything is normalised.

mod channels;
mod kernels;
mod launch;
mod operand;
pub(crate) mod update;

pub(crate) use channels::{Channels, PartialSums, Totals, add_bias, bias_gradients};
pub(crate) use kernels::Source;
pub(crate) use launch::{Launch, alloc, blocks_of, elementwise};
pub(crate) use operand::{Operand, aligned, on_gpu, tensor};

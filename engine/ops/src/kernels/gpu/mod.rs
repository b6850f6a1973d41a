//! The kernels of a GPU, and a typed function that launches each.
//!
//! | file | contents |
//! | --- | --- |
//! | `elementwise`, `bias`, `pooling`, `cross_entropy`, `embedding`, `batch_norm`, `update` | the kernels (`.cu`) and their functions (`.rs`) |
//! | `prelude.cuh` | the beginning of every file of kernels |
//! | `kernel` | what the driver queues: a kernel, its arguments and operands |
//! | `launch` | a kernel with its arguments, and the checks before it is queued |
//! | `driver` | NVRTC, which compiles kernels at their first use, and CUDA's driver, which queues them |
//!
//! Operations call the functions of the first row. Only this module can queue a kernel: the call is unsafe, and each function
//! checks that the tensors have the elements that the kernel reads or writes. So no code outside can make a kernel reach
//! beyond its operands. A program without the feature `cuda` has `no_driver` in place of `driver`.
//!
//! A kernel is launched as a number of *blocks* of 256 threads. The terms of a block's sum depend on shapes alone, and the
//! sums of blocks are added in a fixed order, so the bits never depend on the GPU's timing. Memory limits the speed.
//!
//! The tests of operations run on a GPU if `TEST_DEVICE=cuda` is in the environment. A simulated GPU
//! (`tests/simulated-gpu`) also reports a kernel that reaches beyond its memory, or reads memory that nothing has written.

#![expect(unsafe_code, reason = "each function checks that its arguments fit the kernel")]

mod batch_norm;
mod bias;
mod cross_entropy;
#[cfg_attr(not(feature = "cuda"), path = "no_driver.rs")]
pub(crate) mod driver;
mod elementwise;
mod embedding;
mod kernel;
pub(crate) mod launch;
mod pooling;
#[cfg(test)]
mod tests;
mod update;

pub(crate) use kernel::Operand;
pub(crate) use launch::on_gpu;
pub(crate) use {
    batch_norm::*, bias::*, cross_entropy::*, elementwise::*, embedding::*, pooling::*, update::*,
};

/// The number of threads in a block: a power of two, because blocks add up in a tree.
const THREADS: usize = 256;

/// The adjacent elements that a thread accesses at once, if they are aligned: 16 bytes of f32, the most that a GPU moves.
const VECTOR: usize = 4;

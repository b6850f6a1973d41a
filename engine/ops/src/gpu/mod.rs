//! What the operations do on a GPU.
//!
//! | module | what it does |
//! | --- | --- |
//! | `kernel`, `launch`, `blocks` | a kernel, its arguments, and how its work is shared out |
//! | `machine` | where kernels run |
//! | `batch_norm`, `bias`, `cross_entropy`, `pooling`, `relu`, `sum`, `transpose`, `update` | operations as launches of kernels |
//! | `kernels/*.cu` | the kernels of each, in CUDA C++ |
//! | `cuda` | a GPU as the machine: compiles the kernels when they are first used (NVRTC), and queues them |
//! | `absent` | its place in a build without CUDA |
//! | `pass`, `cudnn`, `convolution` | the products of convolutions, by cuDNN |
//! | `without_cudnn` | their place in a build without it |
//! | `tensors` | launches on tensors, for backward passes |
//! | `by_element` | launches that make each element of those at its place |
//! | `change` | launches that change several tensors in place |
//! | `emulator` | for tests: this computer's processor as the machine |
//!
//! A kernel is launched as a number of *blocks* of 256 threads; threads of a block can wait for each other and
//! share memory, blocks cannot. What each block adds up depends on shapes alone, and what blocks have added up is always
//! added in the same order: the bits of a result never depend on the GPU's timing.
//!
//! **Known to be right before there is a GPU.** A kernel is C++ but for a few words. With those explained, the
//! processor runs it as it stands, each thread of a block a thread; so tests hold every launch, with its blocks and
//! arguments, against the operation of the CPU, and find it out when it reaches beyond its memory.
//!
//! **Cost.** All of them are bound by memory. They read each operand and write each result once, except for batch
//! normalisation, whose statistics have to be complete before anything is normalised.

#[cfg(not(feature = "cuda"))]
mod absent;
pub(crate) mod batch_norm;
pub(crate) mod bias;
pub(crate) mod blocks;
mod by_element;
pub(crate) mod change;
#[cfg(feature = "cudnn")]
pub(crate) mod convolution;
pub(crate) mod cross_entropy;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cudnn")]
mod cudnn;
#[cfg(test)]
mod emulator;
mod kernel;
mod launch;
mod machine;
pub(crate) mod pass;
pub(crate) mod pooling;
pub(crate) mod relu;
pub(crate) mod sum;
mod tensors;
#[cfg(test)]
mod tests;
pub(crate) mod transpose;
pub(crate) mod update;
#[cfg(not(feature = "cudnn"))]
pub(crate) mod without_cudnn;

pub(crate) use launch::Operand;
pub(crate) use tensors::{aligned, on_gpu, tensor};
#[cfg(not(feature = "cudnn"))]
pub(crate) use without_cudnn as convolution;

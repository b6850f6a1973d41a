//! The lowest part of the crate: elements, memory, functions, products, and the kernels of a GPU. Nothing here knows of gradients.

pub(crate) mod element;
pub(crate) mod elementwise;
pub(crate) mod functions;
pub(crate) mod gemm;
pub(crate) mod gpu;
pub mod memory;
pub(crate) mod simd;
pub(crate) mod sums;
pub(crate) mod tiles;
pub(crate) mod windows;

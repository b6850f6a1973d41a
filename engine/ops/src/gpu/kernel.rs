//! Kernels: files of CUDA C++, and what their compilers are told.

#![cfg_attr(
    not(any(test, feature = "cuda")),
    expect(dead_code, reason = "a build without CUDA has no machine that would look at it")
)]

use candle_core::{DType, Result, bail};

/// The files of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    BatchNorm,
    Bias,
    CrossEntropy,
    Pooling,
    Relu,
    Sum,
    Transpose,
    Update,
}

impl Source {
    #[cfg(test)]
    pub(super) const ALL: [Self; 8] = [
        Self::BatchNorm,
        Self::Bias,
        Self::CrossEntropy,
        Self::Pooling,
        Self::Relu,
        Self::Sum,
        Self::Transpose,
        Self::Update,
    ];

    /// The kernels, without what they all begin with.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::BatchNorm => include_str!("kernels/batch_norm.cu"),
            Self::Bias => include_str!("kernels/bias.cu"),
            Self::CrossEntropy => include_str!("kernels/cross_entropy.cu"),
            Self::Pooling => include_str!("kernels/pooling.cu"),
            Self::Relu => include_str!("kernels/relu.cu"),
            Self::Sum => include_str!("kernels/sum.cu"),
            Self::Transpose => include_str!("kernels/transpose.cu"),
            Self::Update => include_str!("kernels/update.cu"),
        }
    }

    /// The names of the kernels.
    #[cfg(test)]
    pub(super) fn kernels(self) -> impl Iterator<Item = &'static str> {
        let after = self.text().split("\nKERNEL ").skip(1);
        after.filter_map(|text| text.split('(').next())
    }
}

/// What all kernels begin with.
pub(super) const PRELUDE: &str = include_str!("kernels/prelude.cuh");

/// What a file of kernels is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Elements {
    pub(super) dtype: DType,
    /// How many lie in a vector, which a thread reads or writes at once: [`VECTOR`](super::blocks::VECTOR) or 1.
    pub(super) vector: usize,
}

/// A kernel, for some elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub(super) source: Source,
    pub(super) name: &'static str,
    pub(super) elements: Elements,
}

/// The macros that a compiler of kernels is given: how elements are stored, how many make a vector, and threads of a
/// block.
///
/// # Errors
///
/// For a type that there are no kernels for.
pub(super) fn definitions(elements: Elements, threads: usize) -> Result<[String; 3]> {
    let stored = match elements.dtype {
        DType::F64 => "STORED_F64",
        DType::F32 => "STORED_F32",
        DType::BF16 => "STORED_BF16",
        other => bail!("there are kernels for f64, f32 and bf16, not for {}", other.as_str()),
    };
    let vector = elements.vector;
    Ok([format!("-D{stored}"), format!("-DVECTOR={vector}"), format!("-DTHREADS={threads}")])
}

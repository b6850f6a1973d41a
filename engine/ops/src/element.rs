//! The element types of the operations, and access to the elements of a tensor.

use candle_core::{DType, Layout, Result, Storage, WithDType, bail};
use num_traits::Float;

use super::scratch::Shelved;

/// A number type that layers compute with: `f32`, or `f64` for tests that need sixteen digits.
pub(crate) trait Element: WithDType + Float + std::iter::Sum + Shelved {}

impl Element for f32 {}
impl Element for f64 {}

/// Evaluates an expression with `$T` as the Rust type of a dtype. Other types than f32 and f64
/// return an error from the enclosing function.
macro_rules! for_dtype {
    ($dtype:expr, $op:expr, $T:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::F32 => {
                type $T = f32;
                $body
            }
            candle_core::DType::F64 => {
                type $T = f64;
                $body
            }
            other => candle_core::bail!("{}: works on f32 and f64, not on {other:?}", $op),
        }
    };
}
pub(crate) use for_dtype;

/// The type in which operations compute on elements of type `stored`. Kernels call this type
/// `Real`.
pub(crate) fn computed_in(stored: DType) -> DType {
    if stored == DType::BF16 { DType::F32 } else { stored }
}

/// Checks that `operation` supports `dtype`. The check is the same on every device.
///
/// # Errors
///
/// When `dtype` is neither f32 nor f64.
pub(crate) fn check_dtype(dtype: DType, operation: &str) -> Result<()> {
    for_dtype!(dtype, operation, _T => Ok(()))
}

/// Returns the elements of a contiguous CPU tensor, in order.
///
/// # Errors
///
/// When the tensor is not in CPU memory, not contiguous, or of another type than `T`.
pub(crate) fn elements<'a, T: Element>(storage: &'a Storage, layout: &Layout) -> Result<&'a [T]> {
    match storage {
        Storage::Cpu(storage) => cpu_elements(storage, layout),
        _ => bail!("expected a tensor in CPU memory"),
    }
}

/// Returns the elements of contiguous CPU storage, in order.
///
/// # Errors
///
/// When the layout is not contiguous, or the storage holds another type than `T`.
pub(crate) fn cpu_elements<'a, T: WithDType>(
    storage: &'a candle_core::CpuStorage,
    layout: &Layout,
) -> Result<&'a [T]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("expected a contiguous tensor, got strides {:?}", layout.stride());
    };
    Ok(&T::cpu_storage_as_slice(storage)?[start..end])
}

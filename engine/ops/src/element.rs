//! The element types the operations are written for, and the way to a tensor's memory.

use candle_core::{DType, Layout, Result, Storage, WithDType, bail};
use num_traits::Float;

use super::scratch::Shelved;

/// A number that a layer computes with: `f32`, or `f64` where a test wants to see sixteen digits.
pub(crate) trait Element: WithDType + Float + std::iter::Sum + Shelved {}

impl Element for f32 {}
impl Element for f64 {}

/// Evaluates an expression with `$T` standing for the Rust type of a dtype.
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

/// What is computed with where elements of this type are stored; in kernels `Real`.
pub(crate) fn computed_in(stored: DType) -> DType {
    if stored == DType::BF16 { DType::F32 } else { stored }
}

/// Refuses what `operation` is not to work on, whatever the device.
pub(crate) fn check_dtype(dtype: DType, operation: &str) -> Result<()> {
    for_dtype!(dtype, operation, _T => Ok(()))
}

/// The elements of a contiguous CPU tensor, in order.
pub(crate) fn elements<'a, T: Element>(storage: &'a Storage, layout: &Layout) -> Result<&'a [T]> {
    match storage {
        Storage::Cpu(storage) => cpu_elements(storage, layout),
        _ => bail!("expected a tensor in CPU memory"),
    }
}

/// The elements of contiguous CPU storage, in order.
pub(crate) fn cpu_elements<'a, T: WithDType>(
    storage: &'a candle_core::CpuStorage,
    layout: &Layout,
) -> Result<&'a [T]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("expected a contiguous tensor, got strides {:?}", layout.stride());
    };
    Ok(&T::cpu_storage_as_slice(storage)?[start..end])
}

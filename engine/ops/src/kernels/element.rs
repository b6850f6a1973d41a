//! The element types of the operations, and access to the elements of a tensor.

use std::ops::Deref;
use std::rc::Rc;

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, DType, Layout, Result, Shape, Storage, Tensor, TensorId, WithDType, bail,
};
use num_traits::Float;

use super::functions::Functions;
use super::memory::Shelved;

/// A number type that layers compute with: `f32`, or `f64` for tests that need sixteen digits.
pub(crate) trait Element: WithDType + Float + std::iter::Sum + Shelved + Functions {}

impl Element for f32 {}
impl Element for f64 {}

/// Evaluates an expression with `$T` as the Rust type of a dtype. The enclosing function fails on other types than f32 and f64.
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

/// The type in which operations compute on elements of type `stored`: `Real` in kernels.
pub(crate) fn computed_in(stored: DType) -> DType {
    if stored == DType::BF16 { DType::F32 } else { stored }
}

/// Fails when `dtype` is neither f32 nor f64, on every device.
pub(crate) fn check_dtype(dtype: DType, operation: &str) -> Result<()> {
    for_dtype!(dtype, operation, _T => Ok(()))
}

/// Makes a tensor without a gradient from a result.
pub(crate) fn tensor(result: Storage, shape: impl Into<Shape>) -> Tensor {
    Tensor::from_storage(result, shape, BackpropOp::none(), false)
}

/// Evaluates an expression with the elements of contiguous tensors in CPU memory: within the
/// expression, the name of a tensor is a slice of f32 or of f64, by the type of the first.
macro_rules! with_elements {
    ($op:expr, |$first:ident $(, $other:ident)*| $body:expr) => {
        $crate::kernels::element::for_dtype!($first.dtype(), $op, T => {
            let locked = $crate::kernels::element::lock(&[$first $(, $other)*]);
            let [$first $(, $other)*] = locked.elements::<T, _>()?;
            $body
        })
    };
}
pub(crate) use with_elements;

/// Evaluates the first expression if the tensors lie on a GPU, and the second [`with_elements`] otherwise.
macro_rules! by_device {
    ($op:expr, |$first:ident $(, $other:ident)*| $on_gpu:expr, $on_cpu:expr) => {
        if $first.device().is_cuda() {
            $on_gpu
        } else {
            $crate::kernels::element::with_elements!($op, |$first $(, $other)*| $on_cpu)
        }
    };
}
pub(crate) use by_device;

/// Locks the memory of tensors for reading, until the operation records its result: candle locks the inputs once more. A tensor
/// that is named twice is locked once: a second lock would wait forever for a writer that waits for the first.
pub(crate) fn lock<'a>(
    tensors: &[&'a Tensor],
) -> Locked<'a, impl Deref<Target = Storage> + use<'a>> {
    let mut locked: Vec<(TensorId, Rc<_>, _)> = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let earlier = locked.iter().find(|(id, ..)| *id == tensor.id());
        let lock = earlier.cloned().unwrap_or_else(|| {
            let (storage, layout) = tensor.storage_and_layout();
            (tensor.id(), Rc::new(storage), layout)
        });
        locked.push(lock);
    }
    Locked(locked)
}

/// The memory of tensors, locked for reading.
pub(crate) struct Locked<'a, Guard>(Vec<(TensorId, Rc<Guard>, &'a Layout)>);

impl<'a, Guard: Deref<Target = Storage>> Locked<'a, Guard> {
    /// Returns the memory and the layout of each tensor, in the order of the tensors.
    pub(crate) fn memory(&self) -> impl Iterator<Item = (&Storage, &'a Layout)> {
        self.0.iter().map(|(_, storage, layout)| (&***storage, *layout))
    }

    /// Returns the elements of the `N` tensors, which must be contiguous in CPU memory.
    pub(crate) fn elements<T: WithDType, const N: usize>(&self) -> Result<[&[T]; N]> {
        let slices = self.memory().map(|(storage, layout)| match storage {
            Storage::Cpu(storage) => cpu_elements(storage, layout),
            _ => bail!("expected a tensor in CPU memory"),
        });
        let Ok(slices) = slices.collect::<Result<Vec<_>>>()?.try_into() else {
            bail!("{N} tensors were expected")
        };
        Ok(slices)
    }
}

/// Returns the elements of contiguous CPU storage of type `T`, in order.
pub(crate) fn cpu_elements<'a, T: WithDType>(
    storage: &'a CpuStorage,
    layout: &Layout,
) -> Result<&'a [T]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("expected a contiguous tensor, got strides {:?}", layout.stride());
    };
    Ok(&T::cpu_storage_as_slice(storage)?[start..end])
}

/// Makes CPU memory of the elements of a result.
pub(crate) fn cpu_memory<T: WithDType>(elements: Vec<T>) -> Storage {
    Storage::Cpu(T::to_cpu_storage_owned(elements))
}

/// Copies the memory of a tensor as `layout` shows the memory, converted to `dtype`.
pub(crate) fn copied(x: &Tensor, layout: &Layout, dtype: DType) -> Result<Storage> {
    fn copy<S: BackendStorage>(memory: &S, layout: &Layout, dtype: DType) -> Result<S> {
        if layout.shape().elem_count() == 0 && memory.dtype() == dtype {
            // A kernel launch needs at least one element.
            return memory.try_clone(layout);
        }
        memory.to_dtype(layout, dtype)
    }
    match &*x.storage_and_layout().0 {
        Storage::Cpu(memory) => Ok(Storage::Cpu(copy(memory, layout, dtype)?)),
        Storage::Cuda(memory) => Ok(Storage::Cuda(copy(memory, layout, dtype)?)),
        Storage::Metal(_) => bail!("expected a tensor in CPU memory or on a CUDA device"),
    }
}

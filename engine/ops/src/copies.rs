//! Copies of a tensor in another shape, order or type.
//!
//! candle has all of these operations, and the first two do not copy. But candle's operations do
//! not put their inputs on the tape of [`backward`](mod@crate::backward). The tape is worth more
//! than the copy of a small tensor.
//!
//! Cost: each element is read and written once.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, bail};

use crate::backward::apply1;
#[cfg(feature = "cuda")]
use {
    crate::gpu::{Launch, Operand, Source, blocks_of},
    candle_core::CudaStorage,
};

/// Merges all axes but the first into one: `[B, …]` → `[B, n]`.
///
/// The function copies only for the tape: when the tensor carries a gradient and does not have two
/// axes already.
///
/// # Errors
///
/// When there is no first axis.
pub fn flatten(x: &Tensor) -> Result<Tensor> {
    let [batch, others @ ..] = x.dims() else { bail!("flatten: a batch has at least one axis") };
    let shape: Shape = (*batch, others.iter().product::<usize>()).into();
    if x.shape() == &shape {
        return Ok(x.clone());
    }
    if x.track_op() { apply1(&x.contiguous()?, Kind::Shape(shape)) } else { x.reshape(shape) }
}

/// Exchanges rows and columns: `[M, N]` → `[N, M]`, contiguous.
///
/// # Errors
///
/// When there are not two axes.
pub fn transpose(x: &Tensor) -> Result<Tensor> {
    x.dims2()?;
    apply1(x, Kind::Transposed)
}

/// Converts a tensor of any shape to another type, with rounding. The gradient has the type of `x`.
///
/// # Errors
///
/// When the device has no such conversion.
pub fn cast(x: &Tensor, to: DType) -> Result<Tensor> {
    if x.dtype() == to { Ok(x.clone()) } else { apply1(x, Kind::Type(to)) }
}

/// The difference between the tensor and its copy.
enum Kind {
    Shape(Shape),
    Transposed,
    Type(DType),
}

impl Kind {
    fn forward<S: BackendStorage>(&self, x: &S, layout: &Layout) -> Result<(S, Shape)> {
        let (shape, layout, dtype) = match self {
            Self::Shape(shape) => (shape.clone(), layout.clone(), x.dtype()),
            Self::Transposed => {
                let transposed = layout.transpose(0, 1)?;
                (transposed.shape().clone(), transposed, x.dtype())
            }
            Self::Type(dtype) => (layout.shape().clone(), layout.clone(), *dtype),
        };
        Ok((x.to_dtype(&layout, dtype)?, shape))
    }
}

impl CustomOp1 for Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::Shape(_) => "flatten",
            Self::Transposed => "transpose",
            Self::Type(_) => "cast",
        }
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        self.forward(x, layout)
    }

    /// Transposes with our own kernel. candle's copy of a strided tensor first sends shape and
    /// strides to the GPU, from memory that may make the CPU wait until the GPU reaches the copy.
    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        if let (Self::Transposed, &[rows, columns]) = (self, layout.dims())
            && layout.is_contiguous()
            && rows * columns > 0
        {
            let n = rows * columns;
            let y = Launch::new(x.device(), Source::Elementwise, "transpose", x.dtype())
                .count(rows)
                .count(columns)
                .memory(Operand::new(x, layout)?, n)
                .compute(n, blocks_of(n))?;
            return Ok((y, (columns, rows).into()));
        }
        self.forward(x, layout)
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(match self {
            Self::Shape(_) => gradient.reshape(x.shape())?,
            Self::Transposed => gradient.contiguous()?.apply_op1_no_bwd(self)?,
            Self::Type(_) => gradient.to_dtype(x.dtype())?,
        }))
    }
}

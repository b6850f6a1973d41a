//! A tensor once more, in another shape, order or type.
//!
//! candle has all of these, the first two without a copy. But candle's operations do not remember their inputs for
//! [`backward`](mod@crate::backward), which is worth more than a copy of what is small.
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

/// All axes but the first become one: `[B, …]` → `[B, n]`. A copy is made only where there is something to remember: of
/// a tensor that carries a gradient, and has not two axes already.
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

/// Rows become columns: `[M, N]` → `[N, M]`, contiguous.
///
/// # Errors
///
/// When there are not two axes.
pub fn transpose(x: &Tensor) -> Result<Tensor> {
    x.dims2()?;
    apply1(x, Kind::Transposed)
}

/// Rounded to another type; any shape. The gradient is rounded to that of `x`.
///
/// # Errors
///
/// When the device has no such conversion.
pub fn cast(x: &Tensor, to: DType) -> Result<Tensor> {
    if x.dtype() == to { Ok(x.clone()) } else { apply1(x, Kind::Type(to)) }
}

/// What is another in the copy.
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

    /// A transpose has a kernel of ours: candle's copy of a strided tensor sends shape and strides to the GPU first, from
    /// memory that may keep the processor waiting until the GPU is as far.
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

//! Copies of a tensor in another shape, order or type.
//!
//! candle's operations need no copy to flatten and to transpose, but they do not put their inputs on the tape of
//! [`backward`](mod@crate::backward), which is worth more than the copy of a small tensor.

use candle_core::{DType, Result, Shape, Storage, Tensor, bail};

use crate::backward::record;
use crate::element::copied;
#[cfg(feature = "cuda")]
use crate::gpu::{Launch, Source, blocks_of, on_gpu};

/// Merges all axes but the first into one: `[B, …]` → `[B, n]`.
///
/// The function copies only for the tape: when the tensor carries a gradient and does not have two
/// axes already. Fails when there is no first axis.
pub fn flatten(x: &Tensor) -> Result<Tensor> {
    let [batch, others @ ..] = x.dims() else { bail!("flatten: a batch has at least one axis") };
    let shape: Shape = (*batch, others.iter().product::<usize>()).into();
    if x.shape() == &shape {
        return Ok(x.clone());
    }
    if !x.track_op() {
        return x.reshape(shape);
    }
    let (x, x_shape) = (x.contiguous()?, x.shape().clone());
    let copy = copied(&x, x.layout(), x.dtype())?;
    record("flatten", copy, shape, [&x], move |_, dy| Ok([Some(dy.reshape(&x_shape)?)]))
}

/// Exchanges rows and columns: `[M, N]` → `[N, M]`, contiguous. Fails when there are not two axes.
pub fn transpose(x: &Tensor) -> Result<Tensor> {
    let (rows, columns) = x.dims2()?;
    record("transpose", transposed(x)?, (columns, rows), [x], |_, dy| {
        Ok([Some(transpose(&dy.detach().contiguous()?)?)])
    })
}

/// Converts a tensor of any shape to another type, with rounding. The gradient has the type of `x`.
/// Fails when the device has no such conversion.
pub fn cast(x: &Tensor, to: DType) -> Result<Tensor> {
    let from = x.dtype();
    if from == to {
        return Ok(x.clone());
    }
    let copy = copied(x, x.layout(), to)?;
    record("cast", copy, x.shape(), [x], move |_, dy| Ok([Some(dy.to_dtype(from)?)]))
}

fn transposed(x: &Tensor) -> Result<Storage> {
    // candle's copy of a strided tensor first sends shape and strides to the GPU, from memory that
    // may make the CPU wait until the GPU reaches the copy. Our own kernel needs neither.
    #[cfg(feature = "cuda")]
    if let &[rows, columns] = x.dims()
        && x.device().is_cuda()
        && x.is_contiguous()
        && rows * columns > 0
    {
        let n = rows * columns;
        let y = on_gpu([x], |[x]| {
            Launch::new(x.gpu(), Source::Elementwise, "transpose", x.dtype())
                .count(rows)
                .count(columns)
                .memory(x, n)
                .compute(n, blocks_of(n))
        });
        return y.map(Storage::Cuda);
    }
    copied(x, &x.layout().transpose(0, 1)?, x.dtype())
}

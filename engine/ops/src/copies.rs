//! Copies of a tensor in another shape, order or type.
//!
//! candle's operations need no copy to flatten and to transpose, but they do not put their inputs on the tape of
//! [`backward`](mod@crate::backward), which is worth more than the copy of a small tensor.

use candle_core::{DType, Result, Shape, Tensor, bail};

use crate::backward::record;
use crate::kernels::element::copied;
use crate::kernels::gpu;

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
    // candle's copy of a strided tensor first sends shape and strides to the GPU, from memory that may make the CPU wait until
    // the GPU reaches the copy. Our own kernel needs neither.
    let copy = if x.device().is_cuda() && x.is_contiguous() && x.elem_count() > 0 {
        gpu::transpose(x)?
    } else {
        copied(x, &x.layout().transpose(0, 1)?, x.dtype())?
    };
    record("transpose", copy, (columns, rows), [x], |_, dy| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::agreement::{EXACT, MANY, assert_agree, noises};

    #[test]
    fn copies_are_candles_in_every_type() {
        let images = noises([&[3, 5, 4, 4]]);
        assert_agree(&EXACT, &images, &|x| flatten(x[0]), &|x| x[0].flatten_from(1));
        for shape in [[70, 31], [10, 512], [512, 10], [1, 7], [33, 1]] {
            assert_agree(&EXACT, &noises([&shape]), &|x| transpose(x[0]), &|x| x[0].t());
        }
        for to in [DType::F32, DType::F64] {
            assert_agree(
                &MANY,
                &noises([&[70, 31]]),
                &|x| cast(&cast(x[0], to)?, x[0].dtype()),
                &|x| x[0].to_dtype(to)?.to_dtype(x[0].dtype()),
            );
        }
    }
}

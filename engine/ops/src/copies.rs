//! Copies of a tensor in another shape, order or type, and operations on rounded copies.
//!
//! candle flattens and transposes without a copy, but the tape of [`backward`](mod@crate::backward) is worth a small copy.

use candle_core::{DType, Result, Shape, Tensor, bail};

use crate::backward::record;
use crate::kernels::element::copied;
use crate::kernels::gpu;

/// Merges all axes but the first into one: `[B, …]` → `[B, n]`. Only a tensor that carries a gradient and does not have two
/// axes already is copied, for the tape. Fails when there is no first axis.
pub fn flatten(x: &Tensor) -> Result<Tensor> {
    let [batch, others @ ..] = x.dims() else { bail!("flatten: a batch has at least one axis") };
    reshape(x, (*batch, others.iter().product::<usize>()))
}

/// The same elements in another shape. Only a tensor that carries a gradient and has another shape is copied, for the tape.
/// Fails when the shape has another number of elements.
pub fn reshape(x: &Tensor, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    if x.shape() == &shape {
        return Ok(x.clone());
    }
    if !x.track_op() || x.elem_count() != shape.elem_count() {
        return x.reshape(shape);
    }
    let (x, x_shape) = (x.contiguous()?, x.shape().clone());
    let copy = copied(&x, x.layout(), x.dtype())?;
    record("reshape", copy, shape, [&x], move |_, dy| Ok([Some(dy.reshape(&x_shape)?)]))
}

/// Exchanges rows and columns: `[M, N]` → `[N, M]`, contiguous. Fails when there are not two axes.
pub fn transpose(x: &Tensor) -> Result<Tensor> {
    let (rows, columns) = x.dims2()?;
    // candle's copy of a strided tensor first sends shape and strides to the GPU, and the CPU may wait for this.
    let copy = if x.device().is_cuda() && x.is_contiguous() && x.elem_count() > 0 {
        gpu::transpose(x)?
    } else {
        copied(x, &x.layout().transpose(0, 1)?, x.dtype())?
    };
    record("transpose", copy, (columns, rows), [x], |_, dy| {
        Ok([Some(transpose(&dy.detach().contiguous()?)?)])
    })
}

/// Converts a tensor to another type, with rounding. The gradient has the type of `x`. Fails when the device cannot convert.
pub fn cast(x: &Tensor, to: DType) -> Result<Tensor> {
    let from = x.dtype();
    if from == to {
        return Ok(x.clone());
    }
    let copy = copied(x, x.layout(), to)?;
    record("cast", copy, x.shape(), [x], move |_, dy| Ok([Some(dy.to_dtype(from)?)]))
}

/// Whether an operation computes in f32 and rounds: its first operand is bf16 in CPU memory.
pub(crate) fn is_rounded(x: &Tensor) -> bool {
    x.dtype() == DType::BF16 && x.device().is_cpu()
}

/// Applies `operation`, of this `name`, to bf16 operands in f32, and rounds the result to bf16, forward and backward. So do
/// tensor cores: they multiply numbers of eight binary digits, add the products in f32, and round a sum once, when they store
/// it. The emulation saves no time. Fails when an operand is not bf16: a GPU does not mix types either.
pub(crate) fn rounded(
    name: &str,
    operands: &[&Tensor],
    operation: impl FnOnce(&[Tensor]) -> Result<Tensor>,
) -> Result<Tensor> {
    if let Some(other) = operands.iter().find(|operand| operand.dtype() != DType::BF16) {
        let (dtype, dims) = (other.dtype(), other.dims());
        bail!("{name}: operands must be all BF16 or none, got one of {dtype:?} {dims:?}");
    }
    let wide = operands.iter().map(|operand| cast(operand, DType::F32));
    cast(&operation(&wide.collect::<Result<Vec<_>>>()?)?, DType::BF16)
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;
    use crate::tests::agreement::{
        EXACT, MANY, Operation, assert_agree, noise, noises, numbers, variable,
    };
    use crate::{add, add_relu, avg_pool2d, conv2d, conv2d_relu_pool, linear, linear_relu, relu};

    #[test]
    fn copies_are_candles_in_every_type() {
        let images = noises([&[3, 5, 4, 4]]);
        assert_agree(&EXACT, &images, &|x| flatten(x[0]), &|x| x[0].flatten_from(1));
        let shape = (15, 2, 8);
        assert_agree(&EXACT, &images, &|x| reshape(x[0], shape), &|x| x[0].reshape(shape));
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

    fn bf16(name: &str, shape: &[usize]) -> Var {
        variable(name, shape, DType::BF16)
    }

    /// Returns the result and the gradients of an operation. The incoming gradient has bf16 values.
    fn outcome(operands: &[Var], operation: Operation<'_>) -> Vec<Tensor> {
        let y = operation(&operands.iter().map(Var::as_tensor).collect::<Vec<_>>()).unwrap();
        let upstream = bf16("upstream", y.dims()).to_dtype(y.dtype()).unwrap();
        let store = (&y * upstream).unwrap().sum_all().unwrap().backward().unwrap();
        let gradients = operands.iter().map(|operand| store.get(operand).unwrap().clone());
        std::iter::once(y).chain(gradients).collect()
    }

    /// Each bf16 result has the same bits as the f32 result for the same numbers, rounded once.
    #[test]
    fn a_result_and_its_gradients_are_rounded_once() {
        let (x, kernels) = (bf16("x", &[3, 5, 9, 8]), bf16("weight", &[4, 5, 3, 3]));
        let (bias, of_columns) = (bf16("bias", &[4]), bf16("of columns", &[8]));
        let (samples, weight) = (bf16("samples", &[5, 70]), bf16("weight", &[70, 4]));
        let cases: [(&[&Var], Operation<'_>); 7] = [
            (&[&x, &kernels, &bias], &|t| conv2d(t[0], t[1], Some(t[2]), 2, 1)),
            (&[&x, &kernels], &|t| conv2d(t[0], t[1], None, 1, 1)),
            (&[&x], &|t| avg_pool2d(t[0], 2, 2)),
            (&[&x, &of_columns], &|t| add(t[0], t[1])),
            (&[&x, &of_columns], &|t| add_relu(t[0], t[1])),
            (&[&samples, &weight, &bias], &|t| linear(t[0], t[1], t[2])),
            (&[&samples, &weight, &bias], &|t| linear_relu(t[0], t[1], t[2])),
        ];
        for (nth, (operands, operation)) in cases.into_iter().enumerate() {
            let in_type = |dtype| {
                let of = |of: &&Var| of.as_detached_tensor().to_dtype(dtype).unwrap();
                let operands = operands.iter().map(|it| Var::from_tensor(&of(it)).unwrap());
                outcome(&operands.collect::<Vec<_>>(), operation)
            };
            let (found, in_f32) = (in_type(DType::BF16), in_type(DType::F32));
            for (position, (found, in_f32)) in found.iter().zip(&in_f32).enumerate() {
                assert_eq!(found.dtype(), DType::BF16);
                let expected = numbers(&in_f32.to_dtype(DType::BF16).unwrap());
                assert_eq!(numbers(found), expected, "case {nth}, result {position}");
            }
            // If all f32 results were bf16 numbers, the test would not show any rounding.
            assert!(found.iter().zip(&in_f32).any(|(found, wide)| numbers(found) != numbers(wide)));
        }
    }

    #[test]
    fn a_relu_rounds_nothing() {
        let x = bf16("x", &[3, 7]);
        let expected: Vec<f64> = numbers(&x).iter().map(|x| x.max(0.0)).collect();
        assert_eq!(numbers(&relu(&x).unwrap()), expected);
        assert_eq!(relu(&x).unwrap().dtype(), DType::BF16);
    }

    #[test]
    fn a_fused_convolution_is_its_three_operations() {
        let (x, weight, bias) =
            (bf16("x", &[2, 3, 8, 7]), bf16("weight", &[4, 3, 3, 3]), bf16("bias", &[4]));
        let operands = [x, weight, bias];
        let fused = outcome(&operands, &|t| conv2d_relu_pool(t[0], t[1], t[2], 2));
        let apart = outcome(&operands, &|t| {
            avg_pool2d(&relu(&conv2d(t[0], t[1], Some(t[2]), 1, 0)?)?, 2, 2)
        });
        for (fused, apart) in fused.iter().zip(&apart) {
            assert_eq!(numbers(fused), numbers(apart));
        }
    }

    #[test]
    fn types_are_not_mixed() {
        let (x, weight) = (bf16("x", &[2, 3, 8, 7]), noise("weight", &[4, 3, 3, 3]));
        let error = conv2d(&x, &weight, None, 1, 0).unwrap_err().to_string();
        let expected = "conv2d: operands must be all BF16 or none, got one of F64 [4, 3, 3, 3]";
        assert!(error.starts_with(expected), "{error}");
        let weight = weight.to_dtype(DType::BF16).unwrap();
        conv2d(&x.to_dtype(DType::F32).unwrap(), &weight, None, 1, 0).unwrap_err();
    }
}

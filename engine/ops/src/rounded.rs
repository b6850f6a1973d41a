//! bf16 on the CPU, with the rounding of tensor cores.
//!
//! Tensor cores multiply numbers of eight binary digits and add the products with the 24 digits of f32. They round the sum
//! to eight digits once, when they store it. An operation on the CPU gives the same result by computing in f32 and rounding
//! the result, forward and backward. The emulation shows the effect of rounding and saves no time.

use candle_core::{DType, Result, Tensor, bail};

use super::copies::cast;

/// Whether an operation computes in f32 and rounds: its first operand is bf16 in CPU memory.
pub(super) fn is_rounded(x: &Tensor) -> bool {
    x.dtype() == DType::BF16 && x.device().is_cpu()
}

/// Applies `operation`, of this `name`, to bf16 operands in f32, and rounds the result to bf16.
/// Fails when an operand has another type than bf16: a GPU does not mix types either.
pub(super) fn rounded<const N: usize>(
    name: &str,
    operands: [&Tensor; N],
    operation: impl FnOnce([Tensor; N]) -> Result<Tensor>,
) -> Result<Tensor> {
    let mut wide = operands.map(Tensor::clone);
    for operand in &mut wide {
        if operand.dtype() != DType::BF16 {
            let (dtype, dims) = (operand.dtype(), operand.dims());
            bail!("{name}: operands must be all BF16 or none, got one of {dtype:?} {dims:?}");
        }
        *operand = cast(operand, DType::F32)?;
    }
    cast(&operation(wide)?, DType::BF16)
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;
    use crate::tests::agreement::{Operation, noise};
    use crate::{
        add_bias, add_bias_relu, avg_pool2d, conv2d, conv2d_relu_pool, linear, linear_relu, relu,
    };

    fn bf16(name: &str, shape: &[usize]) -> Var {
        Var::from_tensor(&noise(name, shape).to_dtype(DType::BF16).unwrap()).unwrap()
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        let tensor = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
        tensor.to_vec1().unwrap()
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
        let (bias, of_channels) = (bf16("bias", &[4]), bf16("of channels", &[5]));
        let (samples, weight) = (bf16("samples", &[5, 70]), bf16("weight", &[70, 4]));
        let cases: [(&[&Var], Operation<'_>); 7] = [
            (&[&x, &kernels, &bias], &|t| conv2d(t[0], t[1], Some(t[2]), 2, 1)),
            (&[&x, &kernels], &|t| conv2d(t[0], t[1], None, 1, 1)),
            (&[&x], &|t| avg_pool2d(t[0], 2, 2)),
            (&[&x, &of_channels], &|t| add_bias(t[0], t[1])),
            (&[&x, &of_channels], &|t| add_bias_relu(t[0], t[1])),
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
                let expected = values(&in_f32.to_dtype(DType::BF16).unwrap());
                assert_eq!(values(found), expected, "case {nth}, result {position}");
            }
            // If all f32 results were bf16 numbers, the test would not show any rounding.
            assert!(found.iter().zip(&in_f32).any(|(found, wide)| values(found) != values(wide)));
        }
    }

    #[test]
    fn a_relu_rounds_nothing() {
        let x = bf16("x", &[3, 7]);
        let expected: Vec<f32> = values(&x).iter().map(|x| x.max(0.0)).collect();
        assert_eq!(values(&relu(&x).unwrap()), expected);
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
            assert_eq!(values(fused), values(apart));
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

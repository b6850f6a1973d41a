//! The dense layer, with an optional relu after it.
//!
//! | | product | shape | in parallel over |
//! | --- | --- | --- | --- |
//! | output | X · W + b | \[B, I\]·\[I, O\] | groups of samples |
//! | gradient of W | Xᵀ · G | \[I, B\]·\[B, O\] | groups of outputs |
//! | gradient of X | G · Wᵀ | \[B, O\]·\[O, I\] | groups of samples |
//!
//! Cost: 2·B·I·O operations for each product. A task adds bias and relu while its rows are in the cache. One task computes
//! each element of a result, so the number of threads never changes the bits. On a GPU cuBLAS computes the products.

use candle_core::{Result, Shape, Tensor, WithDType, bail};
use rayon::prelude::*;

use crate::backward::{Wanted, record_in_halves};
use crate::copies::{is_rounded, rounded};
use crate::kernels::element::{Element, by_device, cpu_memory, tensor, with_elements};
use crate::kernels::gemm::{Matrix, Panels, gemm, product, runs};
use crate::kernels::gpu;
use crate::kernels::memory::{self, Scratch, excess, parts_of_rows, written_by_task, zeros};
use crate::kernels::simd::vectorised;
use crate::relu::{self, rectified};

/// The number of rows of a task: a multiple of the six rows of `gemm`'s tiles, and so large that reading the other matrix is a
/// small part of the work.
const ROWS: usize = 48;

/// The number of columns of a task of the gradients of weights and bias: those of a tile of `gemm`.
const COLUMNS: usize = 64;

/// The number of samples from which on a copy of the weights saves more time than it takes.
const MANY: usize = 256;

/// The number of samples in a run. The type of the tensors adds up the bias gradients of a run.
const RUN: usize = 256;

/// Computes x · w + b: `[…, in]`, `[in, out]`, `[out]` → `[…, out]`. The leading axes of x are the samples: one axis or more, of
/// any size, also 0. Fails when the shapes do not fit, without inputs or outputs, on a dtype other than f32, f64 and bf16, or
/// when a CPU lacks memory for the output.
pub fn linear(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    multiply(x, weight, bias, false)
}

/// Computes [`linear`](fn@linear) and then [`relu`](fn@crate::relu), with the same bits in one pass, and fails like `linear`.
pub fn linear_relu(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    multiply(x, weight, bias, true)
}

fn multiply(x: &Tensor, weight: &Tensor, bias: &Tensor, with_relu: bool) -> Result<Tensor> {
    let (&[ref samples @ .., inputs], 2..) = (x.dims(), x.rank()) else {
        bail!("linear: a batch […, in] was expected, got {:?}", x.dims());
    };
    let (weight_inputs, outputs) = weight.dims2()?;
    let shape = [samples, &[outputs]].concat();
    if inputs != weight_inputs || bias.dims() != [outputs] {
        let (weight, bias) = (weight.dims(), bias.dims());
        bail!(
            "linear: {inputs} inputs need weights [{inputs}, O] and a bias [O], got {weight:?} and {bias:?}"
        );
    }
    if inputs == 0 || outputs == 0 {
        bail!("linear: inputs and outputs must be at least 1, got weights {:?}", weight.dims());
    }
    if x.device().is_cpu()
        && let Some(excess) = excess(memory::product(&shape), x.dtype())
    {
        bail!("linear: an output {shape:?} {excess}");
    }
    if is_rounded(x) {
        let in_f32 = |of: &[Tensor]| multiply(&of[0], &of[1], &of[2], with_relu);
        return rounded("linear", &[x, weight, bias], in_f32);
    }
    let linear = Linear { inputs, outputs, with_relu };
    let (x, weight, bias) = (&x.contiguous()?, &weight.contiguous()?, &bias.contiguous()?);
    let y = by_device!(
        "linear",
        |x, weight, bias| {
            let product = matrix(x, inputs)?.matmul(&weight.detach())?;
            gpu::add_bias(&product, bias, with_relu)?
        },
        cpu_memory(linear.product_with_bias(x, weight, bias))
    );
    let (of_x, of_weight) = (x.clone(), weight.clone());
    record_in_halves("linear", y, shape, [x, weight, bias], move |y, dy, wanted| {
        linear.backward(&of_x, &of_weight, y, dy, wanted)
    })
}

/// Views a contiguous tensor `[…, columns]` as a matrix, without a gradient.
fn matrix(of: &Tensor, columns: usize) -> Result<Tensor> {
    of.detach().reshape(((), columns))
}

struct Linear {
    inputs: usize,
    outputs: usize,
    with_relu: bool,
}

impl Linear {
    /// Computes the gradients that are wanted: of the input, and of the weight and the bias.
    fn backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        y: &Tensor,
        grad: &Tensor,
        wanted: Wanted,
    ) -> Result<[Option<Tensor>; 3]> {
        if grad.device().is_cuda() {
            let (y, grad) = (matrix(y, self.outputs)?, matrix(grad, self.outputs)?);
            let (grad, dbias) = match (self.with_relu, wanted.weights) {
                // Without a relu the input's gradient needs no pass over the incoming gradient.
                (false, false) => (grad, None),
                _ => {
                    let (grad, dbias) = gpu::bias_gradients(self.with_relu.then_some(&y), &grad)?;
                    (grad, wanted.weights.then_some(dbias))
                }
            };
            let dweight = || matrix(x, self.inputs)?.t()?.matmul(&grad);
            let dx = || grad.matmul(&weight.detach().t()?)?.reshape(x.shape());
            let dweight = wanted.weights.then(dweight).transpose()?;
            let dx = wanted.input.then(dx).transpose()?;
            return Ok([dx, dweight, dbias]);
        }
        let grad = &if self.with_relu { relu::gradient(y, grad)? } else { grad.clone() };
        let (shape, of_weight) = (x.shape(), weight.shape());
        with_elements!("linear", |x, weight, grad| {
            let tensor = |values, shape: &Shape| tensor(cpu_memory(values), shape);
            let input_gradient =
                || rows_of_product(grad, &Panels::transposed(weight, self.outputs), |_| {});
            let dx = wanted.input.then(|| tensor(input_gradient(), shape));
            let of_parameters = wanted.weights.then(|| self.gradients(x, grad));
            let of_parameters = of_parameters.map(|[dweight, dbias]| {
                (tensor(dweight, of_weight), tensor(dbias, &self.outputs.into()))
            });
            let (dweight, dbias) = of_parameters.unzip();
            Ok([dx, dweight, dbias])
        })
    }

    fn product_with_bias<T: Element>(&self, x: &[T], weight: &[T], bias: &[T]) -> Vec<T> {
        let weight = match x.len() / self.inputs {
            ..MANY => Panels::whole(weight, self.outputs),
            MANY.. => Panels::copied(weight, self.outputs),
        };
        rows_of_product(x, &weight, |y| {
            vectorised(
                #[inline(always)]
                || {
                    for row in y.chunks_exact_mut(self.outputs) {
                        for (y, &bias) in row.iter_mut().zip(bias) {
                            let sum = *y + bias;
                            *y = if self.with_relu { rectified(sum) } else { sum };
                        }
                    }
                },
            );
        })
    }

    /// Returns the gradients of weights and bias. A task computes some columns of both.
    fn gradients<T: Element>(&self, x: &[T], grad: &[T]) -> [Vec<T>; 2] {
        let Self { inputs, outputs, .. } = *self;
        let samples = x.len() / inputs;
        // An empty batch has no products to add.
        if samples == 0 {
            return [zeros(inputs * outputs), zeros(outputs)];
        }
        let (x, of_grad) = (Matrix::new(x, samples, inputs), Matrix::new(grad, samples, outputs));
        let (mut dweight, mut dbias) = (zeros(inputs * outputs), zeros(outputs));
        let rows = parts_of_rows(&mut dweight, outputs, COLUMNS).into_par_iter();
        rows.zip(dbias.par_chunks_mut(COLUMNS)).enumerate().for_each(|(task, (rows, dbias))| {
            let columns = task * COLUMNS..task * COLUMNS + dbias.len();
            vectorised(
                #[inline(always)]
                || add_up(grad.chunks_exact(outputs).map(|row| &row[columns.clone()]), dbias),
            );
            // `gemm` copies these columns of the gradient once, into the cache, for all rows.
            let mut sums = Scratch::new(inputs * dbias.len());
            for (run, store) in runs(samples, outputs) {
                let grad = of_grad.rows(run.clone()).columns(columns.clone());
                gemm(x.rows(run).transposed(), grad, &mut sums, store);
            }
            for (row, sums) in rows.into_iter().zip(sums.chunks_exact(dbias.len())) {
                row.copy_from_slice(sums);
            }
        });
        [dweight, dbias]
    }
}

/// Adds up rows: those of a [`RUN`] in `T`, and the runs in f64. A large f32 would lose the digits of small terms.
#[inline(always)]
fn add_up<'a, T: Element>(mut rows: impl ExactSizeIterator<Item = &'a [T]>, to: &mut [T]) {
    let mut sums = [0.0; COLUMNS];
    while rows.len() > 0 {
        let mut of_run = [T::zero(); COLUMNS];
        for row in rows.by_ref().take(RUN) {
            for (sum, &number) in of_run.iter_mut().zip(row) {
                *sum += number;
            }
        }
        for (sum, of_run) in sums.iter_mut().zip(of_run) {
            *sum += WithDType::to_f64(of_run);
        }
    }
    for (to, sum) in to.iter_mut().zip(sums) {
        *to = T::from_f64(sum);
    }
}

/// Multiplies `a`, row by row, by `b`, and passes the rows of each task to `finish`.
fn rows_of_product<T: Element>(
    a: &[T],
    b: &Panels<'_, T>,
    finish: impl Fn(&mut [T]) + Sync + Send,
) -> Vec<T> {
    let (inner, columns) = b.size();
    written_by_task(a.len() / inner * columns, ROWS * columns, false, |task, rows| {
        let a = &a[task * ROWS * inner..];
        let a = &a[..a.len().min(ROWS * inner)];
        let rows = product(Matrix::new(a, a.len() / inner, inner), b, rows);
        finish(rows);
        (rows, ())
    })
    .0
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::backward::backward_from;
    use crate::relu;
    use crate::tests::agreement::{
        MANY, assert_agree, assert_empty_batch_is_nothing, noise, noises,
    };

    #[test]
    fn it_is_its_formula_in_every_type() {
        let formula = |t: &[&Tensor]| t[0].broadcast_matmul(t[1])?.broadcast_add(t[2]);
        for (samples, inputs, outputs) in [
            (&[70][..], 800, 128),
            (&[5], 3, 7),
            (&[7, 10], 80, 12),
            (&[2, 3, 5], 8, 9),
            (&[2, 150], 70, 130),
        ] {
            let x = [samples, &[inputs]].concat();
            let inputs = noises([&x, &[inputs, outputs], &[outputs]]);
            assert_agree(&MANY, &inputs, &|t| linear(t[0], t[1], t[2]), &formula);
            // bf16 may round a sum to the other side of the relu's kink.
            let wide = &MANY[..2];
            assert_agree(wide, &inputs, &|t| linear_relu(t[0], t[1], t[2]), &|t| {
                relu(&formula(t)?)
            });
        }
    }

    #[test]
    fn what_does_not_fit_or_has_no_size_is_refused() {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
        let refusal = |x: &[usize], weight: [usize; 2], bias: usize| {
            linear(&zeros(x), &zeros(&weight), &zeros(&[bias])).unwrap_err().to_string()
        };
        let (many, more) = (1 << 23, 1 << 22);
        let cases: [(&[usize], _, _, _); 7] = [
            (&[2, 3], [3, 4], 3, "3 inputs need weights [3, O] and a bias [O], got [3, 4] and [3]"),
            (&[2, 4], [3, 4], 4, "4 inputs need weights [4, O]"),
            (&[2, 0], [0, 4], 4, "inputs and outputs must be at least 1"),
            (&[2, 3], [3, 0], 0, "inputs and outputs must be at least 1"),
            (&[many, 1], [1, more], more, "an output [8388608, 4194304] needs at least 131072 GiB"),
            (&[3], [3, 4], 4, "a batch […, in] was expected, got [3]"),
            (&[], [3, 4], 4, "a batch […, in] was expected, got []"),
        ];
        for (x, weight, bias, complaint) in cases {
            let error = refusal(x, weight, bias);
            assert!(error.starts_with(&format!("linear: {complaint}")), "{error}");
        }
        assert!(linear(&zeros(&[2, 3]), &zeros(&[3, 4]), &zeros(&[4])).is_ok());
    }

    #[test]
    fn a_bias_gradient_in_f32_keeps_its_digits_over_many_samples() {
        let samples = 1 << 20;
        let ones = |shape: (usize, usize)| Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap();
        let bias = Var::zeros(2, DType::F32, &Device::Cpu).unwrap();
        let y = linear(&ones((samples, 1)), &ones((1, 2)), &bias).unwrap();
        let gradients = backward_from(&y, &(ones((samples, 2)) * 0.1).unwrap()).unwrap();
        let sums = gradients.get(&bias).unwrap().to_vec1::<f32>().unwrap();
        let expected = f64::from(0.1f32) * samples as f64;
        for sum in sums {
            let off = (f64::from(sum) - expected).abs() / expected;
            // A run is off by no more than its 256 roundings.
            assert!(off < 256.0 * f64::from(f32::EPSILON) / 2.0, "{sum}, not {expected}: {off:e}");
        }
    }

    #[test]
    fn an_empty_batch_has_gradients_of_zero() {
        // The layer has more inputs than one task.
        let (weight, bias) = (noise("weight", &[130, 5]), noise("bias", &[5]));
        for with_relu in [false, true] {
            let operation = |x: &Tensor| multiply(x, &weight, &bias, with_relu);
            assert_empty_batch_is_nothing(&[130], &[5], &[&weight, &bias], operation);
            assert_empty_batch_is_nothing(&[7, 130], &[7, 5], &[&weight, &bias], operation);
        }
    }
}

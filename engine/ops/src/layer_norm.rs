//! Layer norm: each row to mean 0 and variance 1, then a scale and a shift for each feature (Ba, Kiros, Hinton, 2016).
//!
//! ```text
//! x̂ = (x − mean) / √(variance + ε)        y = x̂ · weight + bias
//! g = dy · weight                         dx = (g − Σ g / n − x̂ · Σ (g · x̂) / n) / √(variance + ε)
//! ```
//!
//! A row of activations is in the cache during all loops over the row. The gradients of weight and bias are sums over the
//! rows: each task adds up its rows, and one thread adds up the tasks in their order.

use candle_core::{D, DType, Result, Tensor, WithDType, bail};

use crate::backward::{record, record_copy};
use crate::copies::cast;
use crate::kernels::element::{Element, computed_in, cpu_memory, tensor, with_elements};
use crate::kernels::memory::made_by_task;
use crate::kernels::simd::vectorised;
use crate::kernels::sums::{Line, Moments, mean_and_squares, sums};

/// The rows of a task.
const ROWS: usize = 64;

/// Normalises the last axis: `[…, features]` with a weight and a bias `[features]` → `[…, features]`.
///
/// `(x − mean) / √(variance + epsilon) · weight + bias`, with the biased variance, as PyTorch's `layer_norm`. Fails when the
/// shapes or types do not fit, when there are no features, when `epsilon` is not positive, and on dtypes but f32, f64 and
/// bf16. When `x` is bf16, the computation is in f32, and the parameters are bf16 or f32.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, epsilon: f64) -> Result<Tensor> {
    let features = x.dims().last().copied().unwrap_or(0);
    if features == 0 {
        bail!("layer_norm: […, features] with at least one feature expected, got {:?}", x.dims());
    }
    let types = [x.dtype(), computed_in(x.dtype())];
    check_norm("layer_norm", x, [weight, bias], (features, &types), epsilon)?;
    if x.dtype() == DType::BF16 {
        let wide = |of| cast(of, DType::F32);
        let y = layer_norm(&wide(x)?, &wide(weight)?, &wide(bias)?, epsilon)?;
        return cast(&y, DType::BF16);
    }
    let (x, weight, bias) = (&x.contiguous()?, &weight.contiguous()?, &bias.contiguous()?);
    let (of_x, of_weight) = (x.clone(), weight.clone());
    if x.device().is_cuda() {
        let y = normalised_on_gpu(&x.detach(), epsilon)?.0.broadcast_mul(&weight.detach())?;
        let y = y.broadcast_add(&bias.detach())?;
        return record_copy("layer_norm", &y, [x, weight, bias], move |_, dy| {
            gradients_on_gpu([&of_x.detach(), &of_weight.detach(), dy], epsilon)
        });
    }
    let (y, rows) = with_elements!("layer_norm", |x, weight, bias| {
        let (y, rows) = normalise([x, weight, bias], epsilon);
        (cpu_memory(y), rows)
    });
    record("layer_norm", y, x.shape(), [x, weight, bias], move |_, dy| {
        let (x, weight) = (&of_x, &of_weight);
        let [dx, dweight, dbias] = with_elements!("layer_norm", |x, weight, dy| {
            gradients([x, weight, dy], &rows, epsilon).map(cpu_memory)
        });
        let of_parameter = |of| Some(tensor(of, weight.shape()));
        Ok([Some(tensor(dx, x.shape())), of_parameter(dweight), of_parameter(dbias)])
    })
}

impl Moments {
    #[inline(always)]
    fn of_row<T: Element>(x: &[T]) -> Self {
        let (mean, squares) = mean_and_squares(x);
        let variance = squares / x.len() as f64;
        if variance.is_finite() { Self { mean, variance } } else { Self::by_definition(x.iter()) }
    }

    /// Returns the line to mean 0 and variance 1.
    #[inline(always)]
    fn line<T: Element>(self, epsilon: f64) -> Line<T> {
        Line::new(self, T::one(), T::zero(), epsilon)
    }
}

/// Returns the normalised rows, and the moments of each row.
fn normalise<T: Element>([x, weight, bias]: [&[T]; 3], epsilon: f64) -> (Vec<T>, Vec<Moments>) {
    let features = weight.len();
    let (y, rows) = made_by_task(x.len(), ROWS * features, |task, y: &mut [T]| {
        vectorised(
            #[inline(always)]
            || {
                let x = &x[task * ROWS * features..][..y.len()];
                let mut rows = Vec::with_capacity(ROWS);
                for (x, y) in x.chunks_exact(features).zip(y.chunks_exact_mut(features)) {
                    let row = Moments::of_row(x);
                    let line: Line<T> = row.line(epsilon);
                    for (((y, &x), &weight), &bias) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                        *y = line.at(x) * weight + bias;
                    }
                    rows.push(row);
                }
                rows
            },
        )
    });
    (y, rows.concat())
}

/// Returns the gradients of x, of the weight and of the bias.
fn gradients<T: Element>(
    [x, weight, dy]: [&[T]; 3],
    rows: &[Moments],
    epsilon: f64,
) -> [Vec<T>; 3] {
    let features = weight.len();
    let (dx, of_tasks) = made_by_task(x.len(), ROWS * features, |task, dx: &mut [T]| {
        vectorised(
            #[inline(always)]
            || {
                let mut sums = [vec![T::zero(); features], vec![T::zero(); features]];
                let rows = &rows[task * ROWS..];
                for (nth, (dx, &row)) in dx.chunks_exact_mut(features).zip(rows).enumerate() {
                    let start = (task * ROWS + nth) * features;
                    let [x, dy] = [x, dy].map(|of| &of[start..][..features]);
                    row_gradients((row, epsilon), [x, weight, dy], dx, &mut sums);
                }
                sums
            },
        )
    });
    let total = |nth: usize| {
        let mut total = vec![0.0; features];
        for sums in &of_tasks {
            for (total, &sum) in total.iter_mut().zip(&sums[nth]) {
                *total += WithDType::to_f64(sum);
            }
        }
        total.into_iter().map(T::from_f64).collect()
    };
    [dx, total(0), total(1)]
}

/// Computes the gradient of a row of x, and adds the row's terms to the sums of weight and bias.
#[inline(always)]
fn row_gradients<T: Element>(
    (row, epsilon): (Moments, f64),
    [x, weight, dy]: [&[T]; 3],
    dx: &mut [T],
    [of_weight, of_bias]: &mut [Vec<T>; 2],
) {
    let (line, scale) = (row.line(epsilon), row.inverse_deviation(epsilon));
    let [sum, product] = sums(
        [x, weight, dy],
        #[inline(always)]
        |[x, weight, dy]| {
            let g = dy * weight;
            [g, g * line.at(x)]
        },
    );
    let share = scale / x.len() as f64;
    let [scale, push, pull] = [scale, sum * share, product * share].map(T::from_f64);
    let parameters = weight.iter().zip(of_weight).zip(of_bias);
    for (((dx, &x), &dy), ((&weight, of_weight), of_bias)) in
        dx.iter_mut().zip(x).zip(dy).zip(parameters)
    {
        let x = line.at(x);
        *dx = dy * weight * scale - x * pull - push;
        *of_weight += dy * x;
        *of_bias += dy;
    }
}

/// Returns x̂ and 1 / √(variance + ε), on a GPU by candle's operations.
fn normalised_on_gpu(x: &Tensor, epsilon: f64) -> Result<(Tensor, Tensor)> {
    let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
    let scale = (variance + epsilon)?.sqrt()?.recip()?;
    Ok((centred.broadcast_mul(&scale)?, scale))
}

fn gradients_on_gpu([x, weight, dy]: [&Tensor; 3], epsilon: f64) -> Result<[Option<Tensor>; 3]> {
    let (normalised, scale) = normalised_on_gpu(x, epsilon)?;
    let g = dy.broadcast_mul(weight)?;
    let pull = normalised.broadcast_mul(&(&g * &normalised)?.mean_keepdim(D::Minus1)?)?;
    let dx = (g.broadcast_sub(&g.mean_keepdim(D::Minus1)?)? - pull)?.broadcast_mul(&scale)?;
    let over_rows = |of: &Tensor| of.reshape(((), weight.dim(0)?))?.sum(0);
    Ok([Some(dx), Some(over_rows(&(dy * &normalised)?)?), Some(over_rows(dy)?)])
}

/// Fails when the weight or the bias of a `norm` does not have this number of features and one of the `types`, and when `epsilon`
/// is not positive.
pub(crate) fn check_norm(
    norm: &str,
    x: &Tensor,
    [weight, bias]: [&Tensor; 2],
    (features, types): (usize, &[DType]),
    epsilon: f64,
) -> Result<()> {
    for (name, parameter) in [("weight", weight), ("bias", bias)] {
        if parameter.dims() != [features] || !types.contains(&parameter.dtype()) {
            let ((dtype, dims), found) = ((x.dtype(), x.dims()), parameter.dtype());
            bail!(
                "{norm}: {dtype:?} {dims:?} needs a {name} {:?} [{features}], got {found:?} {:?}",
                types[0],
                parameter.dims()
            );
        }
    }
    // The comparison also refuses a NaN.
    if epsilon.partial_cmp(&0.0) != Some(std::cmp::Ordering::Greater) {
        bail!("{norm}: epsilon must be above 0, got {epsilon}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::backward::is_recorded;
    use crate::tests::agreement::{
        MANY, assert_agree, assert_empty_batch_is_nothing, noise, noises, numbers,
    };

    fn formula(t: &[&Tensor]) -> Result<Tensor> {
        let (normalised, _) = normalised_on_gpu(t[0], 1e-5)?;
        normalised.broadcast_mul(t[1])?.broadcast_add(t[2])
    }

    #[test]
    fn it_is_its_formula_in_every_type() {
        // Fewer features than lanes, whole vectors, and a rest. More rows than a task has.
        for shape in
            [&[7][..], &[3, 4], &[5, 7], &[2, 67, 33], &[5, 67, 37], &[3, 5, 48], &[1, 2, 131]]
        {
            let features = shape[shape.len() - 1];
            let inputs = noises([shape, &[features], &[features]]);
            let ours = |t: &[&Tensor]| layer_norm(t[0], t[1], t[2], 1e-5);
            assert_agree(&MANY, &inputs, &ours, &formula);
        }
        let inputs = noises([&[6, 31], &[6], &[2, 6]]);
        let ours = |t: &[&Tensor]| layer_norm(&t[0].t()?, t[1], &t[2].get(1)?, 1e-5);
        assert_agree(&MANY, &inputs, &ours, &|t| formula(&[&t[0].t()?, t[1], &t[2].get(1)?]));
        let [x, weight, bias] = [&[2, 3][..], &[3], &[3]].map(|shape| noise("of the tape", shape));
        assert!(is_recorded(&layer_norm(&x, &weight, &bias, 1e-5).unwrap()));
    }

    #[test]
    fn a_mean_far_from_zero_and_large_numbers_lose_no_digits() {
        let parameters = [1f32, 0.0].map(|of| Tensor::full(of, 40, &Device::Cpu).unwrap());
        let of = |x: &[f32]| {
            let x = Tensor::new(x, &Device::Cpu).unwrap();
            numbers(&layer_norm(&x, &parameters[0], &parameters[1], 1e-5).unwrap())
        };
        let steps = |centre: f32, step: f32| (0..40).map(|n| centre + n as f32 * step).collect();
        let near: Vec<f32> = steps(0.0, 1.0);
        for far in [steps(1e6, 1.0), steps(-3e5, 1.0), steps(0.0, 1e30)] {
            for (near, far) in of(&near).iter().zip(of(&far)) {
                assert!((near - far).abs() < 1e-5, "{near} and {far}");
            }
        }
    }

    #[test]
    fn an_empty_batch_has_gradients_of_zero() {
        let (weight, bias) = (noise("weight", &[5]), noise("bias", &[5]));
        let operation = |x: &Tensor| layer_norm(x, &weight, &bias, 1e-5);
        assert_empty_batch_is_nothing(&[3, 5], &[3, 5], &[&weight, &bias], operation);
    }

    #[test]
    fn what_does_not_fit_is_refused_in_words() {
        let cases: [([&[usize]; 3], _, _); 5] = [
            ([&[2, 3], &[2], &[3]], 1.0, "F64 [2, 3] needs a weight F64 [3], got F64 [2]"),
            ([&[2, 3], &[3], &[3, 1]], 1.0, "needs a bias F64 [3], got F64 [3, 1]"),
            ([&[2, 0], &[0], &[0]], 1.0, "at least one feature expected, got [2, 0]"),
            ([&[]; 3], 1.0, "at least one feature expected, got []"),
            ([&[2]; 3], 0.0, "epsilon must be above 0, got 0"),
        ];
        for (shapes, epsilon, complaint) in cases {
            let [x, weight, bias] = noises(shapes);
            let error = layer_norm(&x, &weight, &bias, epsilon).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
    }
}

//! Adds two tensors, with an optional relu after the sum: a residual stream and a layer's output, a bias after a sum over
//! devices, or learned positions.
//!
//! The second tensor has the last axes of the first, and is repeated over the other axes. Its gradient is the sum over the
//! repetitions, which one task adds up in their order, in f64. Cost: each element is read and written once. After a relu,
//! backward also reads the result.

use candle_core::{Result, Tensor, WithDType, bail};
use rayon::prelude::*;

use crate::backward::{Accumulator, Kind, record_node};
use crate::copies::{is_rounded, rounded};
use crate::kernels::element::{Element, by_device, cpu_memory, tensor, with_elements};
use crate::kernels::elementwise::by_element;
use crate::kernels::gpu;
use crate::kernels::memory::made_by_row;
use crate::relu::{gradient, gradient_of_sum, rectified};

/// Computes x + y: `[…, n]` or `[…, m, n]` and so on, with y of the last axes of x, such as `[n]` or `[m, n]`. Fails when y has
/// other axes or another type, and on other types than f32, f64 and bf16.
pub fn add(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    added([x, x, y], false)
}

/// Computes [`add`] and then [`relu`](fn@crate::relu), in one pass over memory. Backward adds up two incoming gradients in the
/// pass that masks them.
pub fn add_relu(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    added([x, x, y], true)
}

/// Computes `sum` + y, where `sum` is the sum of x and of other devices' terms: the result of an all-reduce of x.
///
/// Backward, x gets the gradient of the sum, and y that of [`add`]. The graph keeps x and the result, and not `sum`. Fails as
/// [`add`] does, and when `sum` has another shape or type than x.
pub fn add_reduced(x: &Tensor, sum: &Tensor, y: &Tensor) -> Result<Tensor> {
    added([x, sum, y], false)
}

fn added([x, sum, y]: [&Tensor; 3], with_relu: bool) -> Result<Tensor> {
    let is_like_x = sum.shape() == x.shape() && sum.dtype() == x.dtype();
    if !x.dims().ends_with(y.dims()) || x.dtype() != y.dtype() || !is_like_x {
        let (a, of_a, b, of_b) = (sum.dtype(), sum.dims(), y.dtype(), y.dims());
        bail!("add: {a:?} {of_a:?} and {b:?} {of_b:?} cannot be added");
    }
    if is_rounded(x) {
        return rounded("add", &[x, sum, y], |of| added([&of[0], &of[1], &of[2]], with_relu));
    }
    let (sum, y) = (&sum.contiguous()?, &y.contiguous()?);
    let (of_x, of_y) = (x.shape().clone(), y.shape().clone());
    let (repeated, numbers) = (x.shape() != y.shape(), y.elem_count());
    // Where y is repeated, x is a matrix with a row for each repetition.
    let rows = move |of: &Tensor| of.detach().reshape((of.elem_count() / numbers.max(1), numbers));
    let result = match (repeated, with_relu) {
        (false, false) => by_element!(gpu::SUM, [sum, y], |[sum, y]| sum + y),
        (false, true) => by_element!(gpu::ADD_RELU, [sum, y], |[sum, y]| rectified(sum + y)),
        (true, _) => by_device!(
            "add",
            |sum, y| gpu::add_bias(&rows(sum)?, &y.flatten_all()?, with_relu)?,
            cpu_memory(sums(sum, y, with_relu))
        ),
    };
    let inputs = [x, y];
    record_node("add", (result, x.shape()), &inputs, Kind::Operation, move |result, grad, _| {
        if repeated && result.device().is_cuda() {
            let (result, grad) = (rows(result)?, rows(&grad.sum()?)?);
            let (dx, dy) = gpu::bias_gradients(with_relu.then_some(&result), &grad)?;
            return Ok([Some(dx.reshape(&of_x)?), Some(dy.reshape(&of_y)?)]);
        }
        let grad = match grad {
            Accumulator::Two([a, b]) if with_relu => gradient_of_sum(result, [&a, &b])?,
            grad if with_relu => gradient(result, &grad.sum()?)?,
            grad => grad.sum()?,
        };
        let dy = if repeated {
            let grad = &grad;
            let sums = with_elements!("add", |grad| cpu_memory(sums_of_rows(grad, numbers)));
            tensor(sums, &of_y)
        } else {
            grad.clone()
        };
        Ok([Some(grad), Some(dy)])
    })
}

fn sums<T: Element>(x: &[T], y: &[T], with_relu: bool) -> Vec<T> {
    made_by_row(x.len() / y.len().max(1), y.len(), |row, sums| {
        let x = &x[row * y.len()..];
        for ((sum, &x), &y) in sums.iter_mut().zip(x).zip(y) {
            *sum = if with_relu { rectified(x + y) } else { x + y };
        }
    })
}

/// Adds up rows of so many numbers, in f64: f32 would lose digits.
fn sums_of_rows<T: Element>(rows: &[T], numbers: usize) -> Vec<T> {
    /// The neighbouring numbers of a task.
    const NUMBERS: usize = 64;
    let mut sums = vec![0.0; numbers];
    sums.par_chunks_mut(NUMBERS).enumerate().for_each(|(task, sums)| {
        for row in rows.chunks_exact(numbers) {
            for (sum, &number) in sums.iter_mut().zip(&row[task * NUMBERS..]) {
                *sum += WithDType::to_f64(number);
            }
        }
    });
    sums.into_iter().map(T::from_f64).collect()
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::backward::{backward_from, is_recorded};
    use crate::relu;
    use crate::tests::agreement::{
        FEW, assert_agree, assert_empty_batch_is_nothing, has, noise, noises, there, whole,
    };

    /// Shapes of both tensors: of one shape, repeated, in several tasks, a row longer than a task, a single number.
    const SHAPES: [[&[usize]; 2]; 9] = [
        [&[3, 5, 7], &[3, 5, 7]],
        [&[3, 5, 7], &[5, 7]],
        [&[3, 5, 7], &[7]],
        [&[5, 37], &[37]],
        [&[700, 130], &[130]],
        [&[2, 17_000], &[17_000]],
        [&[1, 300], &[300]],
        [&[8197, 1], &[1]],
        [&[4], &[]],
    ];

    #[test]
    fn it_is_its_formula_in_every_type() {
        let formula = |t: &[&Tensor]| t[0].broadcast_add(t[1]);
        for shapes in SHAPES {
            let inputs = noises(shapes);
            for inputs in [inputs.to_vec(), whole(&inputs)] {
                assert_agree(&FEW, &inputs, &|t| add(t[0], t[1]), &formula);
                assert_agree(&FEW, &inputs, &|t| add_relu(t[0], t[1]), &|t| relu(&formula(t)?));
            }
        }
        // A tensor may be added to itself.
        assert_agree(&FEW, &noises([&[3, 7]]), &|t| add(t[0], t[0]), &|t| t[0] + t[0]);
        // The views begin in the middle of their memory, and one is transposed.
        let inputs = noises([&[6, 3, 3], &[2, 3]]);
        let agree = |view: fn(&Tensor) -> Result<Tensor>| {
            let ours = |t: &[&Tensor]| add(&view(t[0])?, &t[1].get(1)?);
            assert_agree(&FEW, &inputs, &ours, &|t| formula(&[&view(t[0])?, &t[1].get(1)?]));
        };
        agree(|x| x.narrow(0, 2, 3));
        agree(|x| x.transpose(1, 2));
    }

    #[test]
    fn half_way_bf16_is_rounded_to_even_on_a_gpu_too() {
        if !has(DType::BF16) {
            return;
        }
        let numbers =
            |values: &[f64]| there(&Tensor::new(values, &Device::Cpu).unwrap(), DType::BF16);
        // 1 + 1/256 lies halfway between 1 and 1 + 2/256, and 1 + 3/256 halfway between 1 + 2/256 and
        // 1 + 4/256. bf16 rounds both to the even neighbour.
        let ones = numbers(&[1.0, 1.0]).reshape((1, 2)).unwrap();
        let y = add(&ones, &numbers(&[1.0 / 256.0, 3.0 / 256.0])).unwrap();
        let y = y.to_dtype(DType::F64).unwrap().to_vec2::<f64>().unwrap();
        assert_eq!(y, [[1.0, 1.0 + 4.0 / 256.0]]);
    }

    #[test]
    fn a_gradient_in_f32_keeps_its_digits_over_many_terms() {
        let x = Tensor::zeros((1 << 16, 16, 1), DType::F32, &Device::Cpu).unwrap();
        let bias = Var::zeros(1, DType::F32, &Device::Cpu).unwrap();
        let upstream = (x.ones_like().unwrap() * 0.1).unwrap();
        let gradients = backward_from(&add(&x, &bias).unwrap(), &upstream).unwrap();
        let sum = gradients.get(&bias).unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(sum, [(f64::from(0.1f32) * f64::from(1 << 20)) as f32]);
    }

    /// The other devices have twice the term of this one.
    #[test]
    fn after_an_all_reduce_the_term_has_the_gradient_and_the_graph_has_no_sum() {
        let reduced = |x: &Tensor| x.detach() * 3.0;
        for shapes in SHAPES {
            let formula = |t: &[&Tensor]| (t[0] + (t[0].detach() * 2.0)?)?.broadcast_add(t[1]);
            let ours = |t: &[&Tensor]| add_reduced(t[0], &reduced(t[0])?, t[1]);
            assert_agree(&FEW, &noises(shapes), &ours, &formula);
        }
        let (x, y) = (noise("x", &[3, 5]), noise("y", &[5]));
        let sum = reduced(&x).unwrap();
        let result = add_reduced(&x, &sum, &y).unwrap();
        let graph = result.sorted_nodes();
        let has = |tensor: &Tensor| graph.iter().any(|it| it.id() == tensor.id());
        assert_eq!([&x, &y, &sum].map(has), [true, true, false]);
    }

    #[test]
    fn it_is_on_the_tape_and_an_empty_batch_adds_nothing() {
        let (x, y) = (noise("x", &[3, 5]), noise("y", &[5]));
        for of in [add, add_relu] {
            assert!(is_recorded(&of(&x, &y).unwrap()));
            assert_empty_batch_is_nothing(&[4, 5], &[4, 5], &[&y], |x| of(x, &y));
        }
        for (shape, numbers) in [([2, 0, 4], 4), ([2, 4, 0], 0)] {
            let (x, y) = (noise("x", &shape), noise("y", &[numbers]));
            let result = add(&x, &y).unwrap();
            assert_eq!(result.dims(), shape);
            let gradients = result.sum_all().unwrap().backward().unwrap();
            let dy = gradients.get(&y).unwrap().to_vec1::<f64>().unwrap();
            assert_eq!(dy, vec![0.0; numbers]);
        }
    }

    #[test]
    fn what_cannot_be_added_is_refused() {
        for of in [add, add_relu] {
            let error = of(&noise("x", &[3, 7]), &noise("y", &[3])).unwrap_err().to_string();
            assert!(error.starts_with("add: F64 [3, 7] and F64 [3] cannot be added"), "{error}");
        }
        let (x, sum, y) = (noise("x", &[3, 7]), noise("sum", &[7]), noise("y", &[7]));
        let error = add_reduced(&x, &sum, &y).unwrap_err().to_string();
        assert!(error.starts_with("add: F64 [7] and F64 [7] cannot be added"), "{error}");
    }
}

//! Adds two tensors: a residual stream and a layer's output, a bias after a sum over devices, or learned positions.
//!
//! The second tensor has the last axes of the first, and is repeated over the other axes. Its gradient is the sum over the
//! repetitions, which one task adds up in their order, in f64. Cost: each element is read and written once.

use candle_core::{Result, Tensor, WithDType, bail};
use rayon::prelude::*;

use crate::BLOCK;
use crate::backward::record;
use crate::copies::{is_rounded, rounded};
use crate::kernels::element::{Element, copied, cpu_memory, tensor, with_elements};
use crate::kernels::elementwise::by_element;
use crate::kernels::gpu;
use crate::kernels::memory::zeros;

/// Computes x + y: `[…, n]` or `[…, m, n]` and so on, with y of the last axes of x, such as `[n]` or `[m, n]`. Fails when y has
/// other axes or another type, and on other types than f32, f64 and bf16.
pub fn add(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    add_reduced(x, x, y)
}

/// Computes `sum` + y, where `sum` is the sum of x and of other devices' terms: the result of an all-reduce of x.
///
/// Backward, x gets the gradient of the sum, and y that of [`add`]. The graph keeps x and the result, and not `sum`. Fails as
/// [`add`] does, and when `sum` has another shape or type than x.
pub fn add_reduced(x: &Tensor, sum: &Tensor, y: &Tensor) -> Result<Tensor> {
    let is_like_x = sum.shape() == x.shape() && sum.dtype() == x.dtype();
    if !x.dims().ends_with(y.dims()) || x.dtype() != y.dtype() || !is_like_x {
        let (a, of_a, b, of_b) = (sum.dtype(), sum.dims(), y.dtype(), y.dims());
        bail!("add: {a:?} {of_a:?} and {b:?} {of_b:?} cannot be added");
    }
    if is_rounded(x) {
        return rounded("add", &[x, sum, y], |of| add_reduced(&of[0], &of[1], &of[2]));
    }
    let (sum, y, repeated) = (&sum.contiguous()?, &y.contiguous()?, x.shape() != y.shape());
    let result = match (repeated, x.device().is_cuda()) {
        (false, _) => by_element!(gpu::SUM, [sum, y], |[sum, y]| sum + y),
        (true, true) => {
            let result = sum.detach().broadcast_add(&y.detach())?;
            copied(&result, result.layout(), result.dtype())?
        }
        (true, false) => with_elements!("add", |sum, y| cpu_memory(sums(sum, y))),
    };
    let of_y = y.shape().clone();
    record("add", result, x.shape(), [x, y], move |_, grad| {
        let of_repeated = if !repeated {
            grad.clone()
        } else if grad.device().is_cuda() {
            grad.reshape(((), of_y.elem_count()))?.sum(0)?.reshape(&of_y)?
        } else {
            let grad = &grad.contiguous()?;
            let sums = with_elements!("add", |grad| cpu_memory(gradient(grad, of_y.elem_count())));
            tensor(sums, &of_y)
        };
        Ok([Some(grad.clone()), Some(of_repeated)])
    })
}

fn sums<T: Element>(x: &[T], y: &[T]) -> Vec<T> {
    let (row, mut sums) = (y.len().max(1), zeros(x.len()));
    let task = (BLOCK / row).max(1) * row;
    sums.par_chunks_mut(task).zip(x.par_chunks(task)).for_each(|(sums, x)| {
        for (sums, x) in sums.chunks_exact_mut(row).zip(x.chunks_exact(row)) {
            for ((sum, &x), &y) in sums.iter_mut().zip(x).zip(y) {
                *sum = x + y;
            }
        }
    });
    sums
}

/// Adds up rows of so many elements.
fn gradient<T: Element>(grad: &[T], row: usize) -> Vec<T> {
    /// The neighbouring elements of a task.
    const NUMBERS: usize = 64;
    let mut sums = vec![0.0; row];
    sums.par_chunks_mut(NUMBERS).enumerate().for_each(|(task, sums)| {
        for grad in grad.chunks_exact(row) {
            for (sum, &grad) in sums.iter_mut().zip(&grad[task * NUMBERS..]) {
                *sum += WithDType::to_f64(grad);
            }
        }
    });
    sums.into_iter().map(T::from_f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backward::is_recorded;
    use crate::tests::agreement::{
        FEW, assert_agree, assert_empty_batch_is_nothing, noise, noises,
    };

    /// Shapes of both tensors: of one shape, repeated, in several tasks, and a row longer than a task.
    const SHAPES: [[&[usize]; 2]; 6] = [
        [&[3, 5, 7], &[3, 5, 7]],
        [&[3, 5, 7], &[5, 7]],
        [&[3, 5, 7], &[7]],
        [&[700, 130], &[130]],
        [&[2, 17_000], &[17_000]],
        [&[4], &[]],
    ];

    #[test]
    fn it_is_its_formula_in_every_type() {
        for shapes in SHAPES {
            let formula = |t: &[&Tensor]| t[0].broadcast_add(t[1]);
            assert_agree(&FEW, &noises(shapes), &|t| add(t[0], t[1]), &formula);
        }
        // A tensor may be added to itself.
        assert_agree(&FEW, &noises([&[3, 7]]), &|t| add(t[0], t[0]), &|t| t[0] + t[0]);
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
        assert!(is_recorded(&add(&x, &y).unwrap()));
        assert_empty_batch_is_nothing(&[4, 5], &[4, 5], &[&y], |x| add(x, &y));
    }

    #[test]
    fn what_cannot_be_added_is_refused() {
        let error = add(&noise("x", &[3, 7]), &noise("y", &[3])).unwrap_err().to_string();
        assert!(error.starts_with("add: F64 [3, 7] and F64 [3] cannot be added"), "{error}");
        let (x, sum, y) = (noise("x", &[3, 7]), noise("sum", &[7]), noise("y", &[7]));
        let error = add_reduced(&x, &sum, &y).unwrap_err().to_string();
        assert!(error.starts_with("add: F64 [7] and F64 [7] cannot be added"), "{error}");
    }
}

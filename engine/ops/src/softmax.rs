//! Softmax over the last axis. Cost: an exponential for each element, one pass over memory forward, and one backward.

use candle_core::{D, DType, Result, Tensor, WithDType};

use crate::backward::{record, record_copy};
use crate::copies::rounded;
use crate::kernels::element::{Element, cpu_memory, tensor, with_elements};
use crate::kernels::functions::exp;
use crate::kernels::memory::made_by_row;
use crate::kernels::simd::vectorised;
use crate::kernels::sums::{largest, sums};

/// `exp(x) / Σ exp(x)` over the last axis, of any shape. Fails when there is no axis, and on dtypes but f32, f64 and bf16.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    if x.dtype() == DType::BF16 {
        return rounded("softmax", &[x], |of| softmax(&of[0]));
    }
    let x = &x.contiguous()?;
    if x.device().is_cuda() && x.elem_count() > 0 {
        return record_copy("softmax", &formula(&x.detach())?, [x], |y, dy| {
            let y = y.detach();
            let product = (&y * dy)?.sum_keepdim(D::Minus1)?;
            Ok([Some((y * dy.broadcast_sub(&product)?)?)])
        });
    }
    let y = with_elements!("softmax", |x| cpu_memory(values(x, width)));
    record("softmax", y, x.shape(), [x], move |y, dy| {
        let dx = with_elements!("softmax", |y, dy| cpu_memory(gradients(y, dy, width)));
        Ok([Some(tensor(dx, dy.shape()))])
    })
}

fn values<T: Element>(x: &[T], width: usize) -> Vec<T> {
    made_by_row(x.len() / width.max(1), width, |row, y| {
        vectorised(
            #[inline(always)]
            || {
                let x = &x[row * width..][..width];
                // The largest of a row with a NaN does not matter: the sum is a NaN.
                let largest = largest(x);
                for (y, &x) in y.iter_mut().zip(x) {
                    *y = exp(x - largest);
                }
                let [sum] = sums([y], |of| of);
                let share: T = WithDType::from_f64(1.0 / sum);
                y.iter_mut().for_each(|y| *y *= share);
            },
        );
    })
}

/// Computes the softmax by candle's operations.
fn formula(x: &Tensor) -> Result<Tensor> {
    let powers = x.broadcast_sub(&x.detach().max_keepdim(D::Minus1)?)?.exp()?;
    powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)
}

/// dx = y · (dy − Σ y · dy) over each row.
fn gradients<T: Element>(y: &[T], dy: &[T], width: usize) -> Vec<T> {
    made_by_row(y.len() / width.max(1), width, |row, dx| {
        vectorised(
            #[inline(always)]
            || {
                let [y, dy] = [y, dy].map(|of| &of[row * width..][..width]);
                let [product] = sums([y, dy], |[y, dy]| [y * dy]);
                let product: T = WithDType::from_f64(product);
                for ((dx, &y), &dy) in dx.iter_mut().zip(y).zip(dy) {
                    *dx = y * (dy - product);
                }
            },
        );
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BLOCK;
    use crate::backward::is_recorded;
    use crate::tests::agreement::{MANY, assert_agree, noise, noises, numbers, there};

    #[test]
    fn it_is_its_formula_in_every_type() {
        // Rows shorter than a vector, with a rest, and longer than a task.
        for shape in [&[7][..], &[5, 1], &[3, 5, 7], &[70, 67], &[2, BLOCK + 5]] {
            let x = noises([shape]);
            assert_agree(&MANY, &x, &|x| softmax(x[0]), &|x| formula(x[0]));
        }
        let x = noises([&[70, 31]]);
        assert_agree(&MANY, &x, &|x| softmax(&x[0].t()?), &|x| formula(&x[0].t()?));
        assert!(is_recorded(&softmax(&noise("x", &[2, 3])).unwrap()));
    }

    #[test]
    fn large_numbers_and_impossible_classes_have_probabilities_in_every_type() {
        for (dtype, bound) in MANY.into_iter().filter(|&(it, _)| crate::tests::agreement::has(it)) {
            let rows = [1000.0, 1000.0, f64::NEG_INFINITY, -1000.0, -1000.0, -1200.0];
            let x = Tensor::new(&rows, &candle_core::Device::Cpu).unwrap().reshape((2, 3)).unwrap();
            let y = numbers(&softmax(&there(&x, dtype)).unwrap());
            for (found, expected) in y.iter().zip([0.5, 0.5, 0.0, 0.5, 0.5, 0.0]) {
                assert!((found - expected).abs() <= bound, "{dtype:?}: {found}");
            }
        }
    }

    #[test]
    fn nothing_is_refused_but_a_scalar() {
        for shape in [&[0][..], &[0, 3], &[3, 0]] {
            assert_eq!(softmax(&noise("x", shape)).unwrap().dims(), shape);
        }
        assert!(softmax(&noise("x", &[])).is_err());
    }
}

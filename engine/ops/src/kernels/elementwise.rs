//! Operations by element: each element of a result depends on the operands' elements at one index. Cost: each operand is read
//! once, and the result is written once.

use candle_core::{DType, Result, Tensor};

use super::element::{Element, computed_in, tensor};
use super::gpu::SUM;
use super::memory::{filled, written_by_task};
use super::simd::vectorised;
use crate::BLOCK;

/// Computes an operation by element of contiguous tensors of one shape and type, as a [`Storage`](candle_core::Storage): by the
/// kernel on a GPU, and by the closure on the CPU, in f32 or f64, with an array of one element of each tensor.
macro_rules! by_element {
    ($kernel:expr, $tensors:expr, $of:expr) => {{
        let tensors = $tensors;
        if tensors[0].device().is_cuda() {
            $kernel.of(tensors)?
        } else {
            $crate::kernels::element::for_dtype!(tensors[0].dtype(), $kernel.0, T => {
                let locked = $crate::kernels::element::lock(&tensors);
                let results = $crate::kernels::elementwise::map::<T, _>(locked.elements()?, $of);
                $crate::kernels::element::cpu_memory(results)
            })
        }
    }};
}
pub(crate) use by_element;

/// Applies `of` to the elements of slices of the same length. The loops are compiled for the widest vectors.
pub(crate) fn map<T: Element, const N: usize>(
    operands: [&[T]; N],
    of: impl Fn([T; N]) -> T + Sync + Send,
) -> Vec<T> {
    // Outside of any pool, such as in DDP's thread for buckets, rayon would start a pool of all cores.
    let alone = rayon::current_thread_index().is_none();
    let results = written_by_task(operands[0].len(), BLOCK, alone, |task, results| {
        vectorised(
            #[inline(always)]
            || {
                // These slices are values of this closure, so the compiler knows that no result overwrites them.
                let operands = operands.map(|operand| &operand[task * BLOCK..][..results.len()]);
                let results = filled(
                    results,
                    #[inline(always)]
                    |place| of(operands.map(|operand| operand[place])),
                );
                (results, ())
            },
        )
    });
    results.0
}

/// Computes a + b by element, without a gradient. Fails when shapes or types differ.
///
/// The threads of the device add, and a caller outside of them adds in its own thread, such as DDP's thread for buckets. In
/// candle all devices share these threads, and on a GPU its first addition waits for many kernels: nine seconds on an H200.
pub fn sum(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let ours = if a.device().is_cuda() { computed_in(a.dtype()) } else { a.dtype() };
    if !matches!(ours, DType::F32 | DType::F64) || a.shape() != b.shape() || a.dtype() != b.dtype()
    {
        return a.detach() + b.detach();
    }
    let sum = by_element!(SUM, [&a.contiguous()?, &b.contiguous()?], |[a, b]| a + b);
    Ok(tensor(sum, a.shape()))
}

#[cfg(test)]
mod tests {
    use itertools::Itertools as _;

    use super::*;
    use crate::tests::agreement::{EXACT, assert_close, has, noise, noises, on, there};

    #[test]
    fn by_element_is_the_same_on_one_thread_and_on_several() {
        for len in [0, 1, 2 * BLOCK - 1, 2 * BLOCK, 3 * BLOCK + 5] {
            let [a, b, c] =
                [3, 5, 7].map(|by| (0..len).map(|i| (i * by) as f64).collect::<Vec<_>>());
            for threads in [1, 2] {
                let (one, two, three) = on(threads, || {
                    let two = map([&a, &b], |[a, b]| a - b);
                    (map([&a], |[a]| -a), two, map([&a, &b, &c], |[a, b, c]| a * b - c))
                });
                let expected =
                    |of: fn(f64) -> f64| (0..len).map(|i| of(i as f64)).collect::<Vec<_>>();
                assert_eq!(one, expected(|i| -3.0 * i));
                assert_eq!(two, expected(|i| 3.0 * i - 5.0 * i));
                assert_eq!(three, expected(|i| 3.0 * i * (5.0 * i) - 7.0 * i));
            }
        }
    }

    #[test]
    fn a_thread_beside_a_devices_works_alone() {
        let numbers = vec![1.0; 3 * BLOCK];
        let me = std::thread::current().id();
        let mine = |[a, b]: [f64; 2]| {
            assert_eq!(std::thread::current().id(), me);
            a + b
        };
        assert_eq!(map([&numbers, &numbers], mine), vec![2.0; 3 * BLOCK]);
        let three = map([numbers.as_slice(); 3], |[a, b, c]| mine([a, b]) + c);
        assert_eq!(three, vec![3.0; 3 * BLOCK]);
    }

    #[test]
    fn sums_are_candles_to_the_last_bit_in_every_type() {
        // Enough elements for several threads, vectors only, and a partial vector.
        for (shape, (dtype, _)) in
            [[BLOCK, 5], [5, 68], [5, 67]].into_iter().cartesian_product(EXACT)
        {
            if !has(dtype) {
                continue;
            }
            let [a, b] = noises([&shape[..]; 2]).map(|tensor| tensor.to_dtype(dtype).unwrap());
            // One tensor is transposed.
            for b in [b.clone(), b.t().unwrap().contiguous().unwrap().t().unwrap()] {
                let found = sum(&there(&a, dtype), &there(&b, dtype)).unwrap();
                assert_eq!((found.dims(), found.dtype()), (a.dims(), dtype));
                assert_close("sum", &found, &(&a + &b).unwrap(), 0.0);
            }
        }
    }

    #[test]
    fn a_type_that_operations_round_to_is_added_too() {
        let ones = Tensor::ones((2, 3), DType::BF16, &candle_core::Device::Cpu).unwrap();
        let twos = sum(&ones, &ones).unwrap();
        assert_eq!((twos.dims(), twos.dtype()), ([2, 3].as_slice(), DType::BF16));
        let total = twos.to_dtype(DType::F64).unwrap().sum_all().unwrap();
        assert_eq!(total.to_scalar::<f64>().unwrap(), 12.0);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let error = sum(&noise("a", &[2, 3]), &noise("b", &[3])).unwrap_err().to_string();
        assert!(error.contains("shape mismatch"), "{error}");
    }
}

//! Memory for results, initialised by all threads.
//!
//! Safe Rust initialises a vector before the vector is used. If one thread writes the initial
//! values, the remaining threads wait. The share of this time grows with the number of threads
//! (Amdahl's law). Therefore all threads write. [`zeros`] writes zeros for operations that compute
//! their results in another order. [`made`] writes the results of element-wise operations directly,
//! so memory is written only once.

use std::ops::Range;

use rayon::prelude::*;

use super::{BLOCK, Element};

/// The number of neighbouring elements that one call of `make` computes.
const RUN: usize = 256;

/// Allocates memory for `len` numbers, filled with zeros.
pub(crate) fn zeros<T: Element>(len: usize) -> Vec<T> {
    if len < BLOCK { vec![T::zero(); len] } else { made(len, |_, _| {}) }
}

/// Computes `len` numbers in parallel. `make` gets the indices of a run of neighbouring numbers and
/// the run's memory, which holds zeros. `make` overwrites the zeros with the results.
pub(crate) fn made<T: Element>(
    len: usize,
    make: impl Fn(Range<usize>, &mut [T]) + Sync + Send,
) -> Vec<T> {
    let runs = (0..len.div_ceil(RUN)).into_par_iter().with_min_len(BLOCK / RUN);
    let runs = runs.map(|nth| {
        let mut run = [T::zero(); RUN];
        let places = nth * RUN..len.min((nth + 1) * RUN);
        let count = places.len();
        make(places, &mut run[..count]);
        run
    });
    let mut numbers = runs.collect::<Vec<_>>().into_flattened();
    numbers.truncate(len);
    numbers
}

/// Whether the calling thread alone computes an element-wise result of `len` numbers.
///
/// A single thread can append results to a growing vector. The vector needs no initial values, and
/// no work goes to other threads. This pays for short vectors and for pools of one thread. A thread
/// outside of any device's pool also works alone. Otherwise rayon would start its global pool for
/// this thread, with as many threads as the machine has cores.
fn is_for_one_thread(len: usize) -> bool {
    len < 2 * BLOCK || rayon::current_thread_index().is_none() || rayon::current_num_threads() == 1
}

/// Applies `of` to each pair of elements of two slices of the same length.
pub(crate) fn of_two<T: Element>(a: &[T], b: &[T], of: impl Fn(T, T) -> T + Sync + Send) -> Vec<T> {
    if is_for_one_thread(a.len()) {
        return a.iter().zip(b).map(|(&a, &b)| of(a, b)).collect();
    }
    made(a.len(), |places, results| {
        for ((result, &a), &b) in results.iter_mut().zip(&a[places.clone()]).zip(&b[places]) {
            *result = of(a, b);
        }
    })
}

/// Applies `of` to the elements of three slices of the same length.
pub(crate) fn of_three<T: Element>(
    a: &[T],
    b: &[T],
    c: &[T],
    of: impl Fn(T, T, T) -> T + Sync + Send,
) -> Vec<T> {
    if is_for_one_thread(a.len()) {
        return a.iter().zip(b).zip(c).map(|((&a, &b), &c)| of(a, b, c)).collect();
    }
    made(a.len(), |places, results| {
        let (b, c) = (&b[places.clone()], &c[places.clone()]);
        for (((result, &a), &b), &c) in results.iter_mut().zip(&a[places]).zip(b).zip(c) {
            *result = of(a, b, c);
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn by_element_is_the_same_on_one_thread_and_on_several() {
        for len in [0, 1, 2 * BLOCK - 1, 2 * BLOCK, 3 * BLOCK + 5] {
            let [a, b, c] =
                [3, 5, 7].map(|by| (0..len).map(|i| (i * by) as f64).collect::<Vec<_>>());
            for threads in [1, 2] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let (two, three) = pool.install(|| {
                    (of_two(&a, &b, |a, b| a - b), of_three(&a, &b, &c, |a, b, c| a * b - c))
                });
                let expected =
                    |of: fn(f64) -> f64| (0..len).map(|i| of(i as f64)).collect::<Vec<_>>();
                assert_eq!(two, expected(|i| 3.0 * i - 5.0 * i));
                assert_eq!(three, expected(|i| 3.0 * i * (5.0 * i) - 7.0 * i));
            }
        }
    }

    #[test]
    fn a_thread_beside_a_devices_works_alone() {
        let numbers = vec![1.0; 3 * BLOCK];
        let me = std::thread::current().id();
        let mine = |a: f64, b: f64| {
            assert_eq!(std::thread::current().id(), me);
            a + b
        };
        assert_eq!(of_two(&numbers, &numbers, mine), vec![2.0; 3 * BLOCK]);
        let three = of_three(&numbers, &numbers, &numbers, |a, b, c| mine(a, b) + c);
        assert_eq!(three, vec![3.0; 3 * BLOCK]);
    }

    #[test]
    fn every_number_is_made_once_at_its_place() {
        for len in [0, 1, RUN - 1, RUN, RUN + 1, 3 * BLOCK + 5] {
            let count = AtomicUsize::new(0);
            let numbers = made::<f64>(len, |places, numbers| {
                assert_eq!(places.len(), numbers.len());
                count.fetch_add(places.len(), Ordering::Relaxed);
                for (place, number) in places.zip(numbers) {
                    *number += place as f64;
                }
            });
            assert_eq!(numbers, (0..len).map(|place| place as f64).collect::<Vec<_>>());
            assert_eq!(count.into_inner(), len);
            assert_eq!(zeros::<f32>(len), vec![0.0; len]);
        }
    }
}

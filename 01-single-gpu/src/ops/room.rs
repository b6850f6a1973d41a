//! Memory for results, written by all threads.
//!
//! A vector of safe Rust has contents from the beginning on. If one thread writes them, the others wait, and the more of
//! them there are, the larger is its share of the time (Amdahl's law). So all write them: zeros where a result is then
//! made in some order of its own, and the result itself where it is made by element, which goes through memory once.

use std::ops::Range;

use rayon::prelude::*;

use super::{BLOCK, Element};

/// Neighbouring numbers that are made together.
const RUN: usize = 256;

/// Memory for `len` numbers that holds zeros.
pub(crate) fn room<T: Element>(len: usize) -> Vec<T> {
    if len < BLOCK { vec![T::zero(); len] } else { made(len, |_, _| {}) }
}

/// `len` numbers. For each run of neighbours `make` is given their places, and zeros to write them over.
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

/// `of` by element of two tensors of one size.
pub(crate) fn of_two<T: Element>(a: &[T], b: &[T], of: impl Fn(T, T) -> T + Sync + Send) -> Vec<T> {
    made(a.len(), |places, results| {
        for ((result, &a), &b) in results.iter_mut().zip(&a[places.clone()]).zip(&b[places]) {
            *result = of(a, b);
        }
    })
}

/// The same of three.
pub(crate) fn of_three<T: Element>(
    a: &[T],
    b: &[T],
    c: &[T],
    of: impl Fn(T, T, T) -> T + Sync + Send,
) -> Vec<T> {
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
            assert_eq!(room::<f32>(len), vec![0.0; len]);
        }
    }
}

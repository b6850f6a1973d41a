//! What no all-reduce between two ranks can beat: adding the two tensors and writing the sum to two places,
//! by two threads that know nothing of each other.

use std::convert::Infallible;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::Barrier;
use std::thread;

use super::all_reduce::{SIZES, calls, timed_together};
use super::{Answer, Arguments, in_seconds};

/// Seconds for every size, as an all-reduce is measured.
pub(super) fn measure(arguments: &Arguments) -> Answer {
    in_seconds(SIZES.map(|(name, numbers)| (name, add_and_copy(numbers, arguments.repetitions))))
}

/// The seconds of one of the two threads: each adds one half, and writes it twice.
fn add_and_copy(numbers: usize, repetitions: NonZeroUsize) -> Vec<f64> {
    let together = Barrier::new(2);
    let half = |numbers: usize| {
        let (a, b) = (vec![1.0_f32; numbers], vec![2.0_f32; numbers]);
        let (mut first, mut second) = (vec![0.0_f32; numbers], vec![0.0_f32; numbers]);
        let begin = || {
            together.wait();
            Ok::<_, Infallible>(())
        };
        let work = || {
            let (a, b) = black_box((&a, &b));
            let sums = a.iter().zip(b).map(|(a, b)| a + b);
            for ((sum, first), second) in sums.zip(&mut first).zip(&mut second) {
                (*first, *second) = (sum, sum);
            }
            black_box((&first, &second));
            Ok(())
        };
        timed_together(repetitions, calls(numbers), begin, work)
            .unwrap_or_else(|never| match never {})
    };
    thread::scope(|scope| {
        scope.spawn(|| half(numbers / 2));
        half(numbers - numbers / 2)
    })
}

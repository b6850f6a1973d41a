//! Sums over neighbouring numbers: in [`LANES`] interleaved sums, which a processor keeps in one or a few vector registers, and
//! then over the lanes as a tree. Norms need two of them: the moments of numbers, which a line takes to mean 0 and variance 1.

use candle_core::WithDType;

use super::element::Element;
use super::simd::{LANES, Simd};

/// Adds up `N` terms of the elements at each place of slices.
#[inline(always)]
pub(crate) fn sums<T: Element, const P: usize, const N: usize>(
    slices: [&[T]; P],
    terms: impl Fn([T; P]) -> [T; N],
) -> [f64; N] {
    let (mut lanes, mut last) = ([[T::zero(); LANES]; N], [T::zero(); N]);
    let slices = slices.map(<[T]>::as_chunks::<LANES>);
    for nth in 0..slices[0].0.len() {
        let rows = slices.map(|(rows, _)| &rows[nth]);
        for lane in 0..LANES {
            let terms = terms(rows.map(|row| row[lane]));
            for n in 0..N {
                lanes[n][lane] += terms[n];
            }
        }
    }
    for place in 0..slices[0].1.len() {
        let terms = terms(slices.map(|(_, rest)| rest[place]));
        for n in 0..N {
            last[n] += terms[n];
        }
    }
    std::array::from_fn(|n| total(lanes[n], last[n]))
}

/// Adds up all lanes as a tree, and then `rest`, the sum of the elements after the last whole row.
#[inline(always)]
fn total<T: Element>(lanes: Simd<T>, rest: T) -> f64 {
    // The sums go through memory: otherwise the compiler shuffles the vectors in every iteration.
    let sum = joined(std::hint::black_box(lanes), |a, b| a + b);
    WithDType::to_f64(sum) + WithDType::to_f64(rest)
}

/// Joins each lane with another, until one is left. The number of lanes is a power of two.
#[inline(always)]
pub(crate) fn joined<T: Copy, const N: usize>(mut lanes: [T; N], of: impl Fn(T, T) -> T) -> T {
    let mut left = N;
    while left > 1 {
        left /= 2;
        for lane in 0..left {
            lanes[lane] = of(lanes[lane], lanes[lane + left]);
        }
    }
    lanes[0]
}

/// Returns the mean of numbers and the sum of squared distances from the mean. The second pass corrects the rounding of the
/// first (Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983): with K near the mean, Σ(x − K)² −
/// (Σ(x − K))² / n loses no digits, however far the mean is from zero.
#[inline(always)]
pub(crate) fn mean_and_squares<T: Element>(x: &[T]) -> (f64, f64) {
    let share = 1.0 / x.len() as f64;
    let [sum] = sums([x], |of| of);
    let near: T = WithDType::from_f64(sum * share);
    let [first, squares] = sums([x], |[x]| {
        let distance = x - near;
        [distance, distance * distance]
    });
    let squares = squares - first * first * share;
    // Rounding can make the sum negative. A NaN stays a NaN.
    let squares = if squares < 0.0 { 0.0 } else { squares };
    (WithDType::to_f64(near) + first * share, squares)
}

/// Returns `factor` times the rounding error of a mean, `centre` − `mean`, or 0 if the mean or the factor is infinite: zero
/// times infinity would be a NaN, and the other terms of the sum are infinite already.
#[inline(always)]
pub(crate) fn correction<T: Element>(centre: T, mean: f64, factor: f64) -> f64 {
    if centre.is_finite() && factor.is_finite() {
        (WithDType::to_f64(centre) - mean) * factor
    } else {
        0.0
    }
}

/// Mean and variance of some numbers, such as a channel or a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moments {
    pub(crate) mean: f64,
    pub(crate) variance: f64,
}

impl Moments {
    /// Computes both number by number in f64. In f32 the squares of [`mean_and_squares`] overflow for numbers above 1e19, and an
    /// infinite variance would turn all normalised numbers into zeros.
    #[cold]
    pub(crate) fn by_definition<'a, T: Element>(
        numbers: impl Iterator<Item = &'a T> + Clone,
    ) -> Self {
        let values = || numbers.clone().map(|&x| WithDType::to_f64(x));
        let (count, mean) = (values().count() as f64, values().sum::<f64>());
        let mean = mean / count;
        Self { mean, variance: values().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count }
    }

    #[inline(always)]
    pub(crate) fn inverse_deviation(self, epsilon: f64) -> f64 {
        1.0 / (self.variance + epsilon).sqrt()
    }
}

/// y = (x − centre) · scale + shift.
#[derive(Clone, Copy)]
pub(crate) struct Line<T> {
    centre: T,
    scale: T,
    shift: T,
}

impl<T: Element> Line<T> {
    /// Builds (x − mean) / √(variance + ε) · weight + bias. The mean is rounded to `T`, and the shift takes the rounding
    /// error, so no digits are lost when the mean is much larger than the deviations.
    #[inline(always)]
    pub(crate) fn new(moments: Moments, weight: T, bias: T, epsilon: f64) -> Self {
        let centre: T = WithDType::from_f64(moments.mean);
        let scale = WithDType::to_f64(weight) * moments.inverse_deviation(epsilon);
        let shift = WithDType::to_f64(bias) + correction(centre, moments.mean, scale);
        Self { centre, scale: WithDType::from_f64(scale), shift: WithDType::from_f64(shift) }
    }

    #[inline(always)]
    pub(crate) fn at(self, x: T) -> T {
        (x - self.centre) * self.scale + self.shift
    }
}

/// Returns the largest of some numbers that are no NaN, or −∞ if there are none.
#[inline(always)]
pub(crate) fn largest<T: Element>(x: &[T]) -> T {
    #[inline(always)]
    fn larger<T: Element>(a: T, b: T) -> T {
        if b > a { b } else { a }
    }
    let (rows, rest) = x.as_chunks::<LANES>();
    let mut lanes = [T::neg_infinity(); LANES];
    for row in rows {
        for lane in 0..LANES {
            lanes[lane] = larger(lanes[lane], row[lane]);
        }
    }
    std::hint::black_box(lanes).iter().chain(rest).copied().fold(T::neg_infinity(), larger)
}

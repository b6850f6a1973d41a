//! The loops over one plane.
//!
//! A loop adds up a plane in [`LANES`] interleaved sums, which a processor keeps in one or a few
//! vector registers, and then the lanes as a tree. The sums of planes are added in f64.

use candle_core::WithDType;

use crate::Element;
use crate::kernels::simd::{LANES, Simd};
use crate::relu;

/// Adds up all lanes as a tree, and then `rest`, the sum of the elements after the last whole row.
#[inline(always)]
fn total<T: Element>(lanes: Simd<T>, rest: T) -> f64 {
    let (mut eight, mut four) = ([T::zero(); 8], [T::zero(); 4]);
    for lane in 0..8 {
        eight[lane] = lanes[lane] + lanes[lane + 8];
    }
    for lane in 0..4 {
        four[lane] = eight[lane] + eight[lane + 4];
    }
    // The sums go through memory: otherwise the compiler shuffles the vectors in every iteration.
    let [a, b, c, d] = std::hint::black_box(four);
    WithDType::to_f64((a + c) + (b + d)) + WithDType::to_f64(rest)
}

#[inline(always)]
fn sum<T: Element>(x: &[T]) -> f64 {
    let (mut lanes, mut last) = ([T::zero(); LANES], T::zero());
    let (rows, rest) = x.as_chunks::<LANES>();
    for row in rows {
        for lane in 0..LANES {
            lanes[lane] += row[lane];
        }
    }
    for &x in rest {
        last += x;
    }
    total(lanes, last)
}

/// Returns the mean of a plane and the sum of squared distances from the mean. The second pass corrects the rounding of the
/// first (Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983): with K near the mean, Σ(x − K)² −
/// (Σ(x − K))² / n loses no digits, however far the mean is from zero.
#[inline(always)]
pub(super) fn mean_and_squares<T: Element>(x: &[T]) -> (f64, f64) {
    let share = 1.0 / x.len() as f64;
    let near: T = WithDType::from_f64(sum(x) * share);
    let (mut firsts, mut squares) = ([T::zero(); LANES], [T::zero(); LANES]);
    let (mut last_first, mut last_square) = (T::zero(), T::zero());
    let (rows, rest) = x.as_chunks::<LANES>();
    for row in rows {
        for lane in 0..LANES {
            let distance = row[lane] - near;
            firsts[lane] += distance;
            squares[lane] += distance * distance;
        }
    }
    for &x in rest {
        let distance = x - near;
        last_first += distance;
        last_square += distance * distance;
    }
    let (first, squares) = (total(firsts, last_first), total(squares, last_square));
    let squares = squares - first * first * share;
    // Rounding can make the sum negative. A NaN stays a NaN.
    let squares = if squares < 0.0 { 0.0 } else { squares };
    (WithDType::to_f64(near) + first * share, squares)
}

/// Returns the gradient that passes the relu with output `y`, or all of `grad` without a relu.
#[inline(always)]
fn passed<T: Element, const RELU: bool>(y: T, grad: T) -> T {
    if RELU { relu::passed(y, grad) } else { grad }
}

/// y = (x − centre) · scale + shift over a plane, followed by max(y, 0) if `RELU`.
#[derive(Clone, Copy)]
pub(super) struct Line<T> {
    centre: T,
    scale: T,
    shift: T,
}

impl<T: Element> Line<T> {
    /// Builds (x − mean) · scale + bias. The mean is rounded to `T`, and the shift takes the
    /// rounding error, so no digits are lost when the mean is much larger than the deviations.
    pub(super) fn new(mean: f64, scale: f64, bias: f64) -> Self {
        let centre = centre::<T>(mean);
        Self {
            centre,
            scale: WithDType::from_f64(scale),
            shift: WithDType::from_f64(bias + correction(centre, mean, scale)),
        }
    }

    #[inline(always)]
    pub(super) fn draw(self, relu: bool, x: &[T], y: &mut [T]) {
        if relu { self.loop_over::<true>(x, y) } else { self.loop_over::<false>(x, y) }
    }

    #[inline(always)]
    fn loop_over<const RELU: bool>(self, x: &[T], y: &mut [T]) {
        for (y, &x) in y.iter_mut().zip(x) {
            let value = (x - self.centre) * self.scale + self.shift;
            *y = if RELU { relu::rectified(value) } else { value };
        }
    }
}

/// Rounds a mean to the type in which the loops subtract it.
#[inline(always)]
pub(super) fn centre<T: Element>(mean: f64) -> T {
    WithDType::from_f64(mean)
}

/// Returns `factor` times the rounding error of a mean, `centre` − `mean`. An infinite mean has no
/// rounding error. An infinite factor gives 0: zero times infinity would be a NaN, and the other
/// terms of the sum are infinite already.
#[inline(always)]
pub(super) fn correction<T: Element>(centre: T, mean: f64, factor: f64) -> f64 {
    if centre.is_finite() && factor.is_finite() {
        (WithDType::to_f64(centre) - mean) * factor
    } else {
        0.0
    }
}

/// Returns Σ dy and Σ dy · (x − centre) over a plane, for the dy that passes the relu.
#[inline(always)]
pub(super) fn gradient_sums<T: Element>(relu: bool, of: [&[T]; 3], centre: T) -> (f64, f64) {
    if relu { sums_of::<T, true>(of, centre) } else { sums_of::<T, false>(of, centre) }
}

#[inline(always)]
fn sums_of<T: Element, const RELU: bool>([x, y, grad]: [&[T]; 3], centre: T) -> (f64, f64) {
    let (mut firsts, mut products) = ([T::zero(); LANES], [T::zero(); LANES]);
    let (mut last_first, mut last_product) = (T::zero(), T::zero());
    let (x_rows, x_rest) = x.as_chunks::<LANES>();
    let (y_rows, y_rest) = y.as_chunks::<LANES>();
    let (grad_rows, grad_rest) = grad.as_chunks::<LANES>();
    for ((x, y), grad) in x_rows.iter().zip(y_rows).zip(grad_rows) {
        for lane in 0..LANES {
            let grad = passed::<T, RELU>(y[lane], grad[lane]);
            firsts[lane] += grad;
            products[lane] += grad * (x[lane] - centre);
        }
    }
    for ((&x, &y), &grad) in x_rest.iter().zip(y_rest).zip(grad_rest) {
        let grad = passed::<T, RELU>(y, grad);
        last_first += grad;
        last_product += grad * (x - centre);
    }
    (total(firsts, last_first), total(products, last_product))
}

/// dx = dy · slope − (x − centre) · pull − push over a plane, for the dy that passes the relu.
#[derive(Clone, Copy)]
pub(super) struct GradientLine<T> {
    centre: T,
    slope: T,
    pull: T,
    push: T,
    /// Whether the statistics are constants; then pull and push are zero.
    constant: bool,
    /// A weight that is not finite. It multiplies the line of a weight of 1, because ∞ · dy − ∞ ·
    /// Σdy / n would be a NaN.
    weight: Option<T>,
}

impl<T: Element> GradientLine<T> {
    /// Builds dy · slope − (x − mean) · pull − push, with the mean rounded as in [`Line::new`].
    /// Pull and push are the gradient through the statistics, or `None` if these are constants.
    /// `weight` multiplies the result, if there is one.
    pub(super) fn new(
        mean: f64,
        slope: f64,
        pull_and_push: Option<(f64, f64)>,
        weight: Option<f64>,
    ) -> Self {
        let centre = centre::<T>(mean);
        let (pull, push) = pull_and_push.unwrap_or((0.0, 0.0));
        Self {
            centre,
            slope: WithDType::from_f64(slope),
            pull: WithDType::from_f64(pull),
            push: WithDType::from_f64(push + correction(centre, mean, pull)),
            constant: pull_and_push.is_none(),
            weight: weight.map(WithDType::from_f64),
        }
    }

    #[inline(always)]
    pub(super) fn draw(self, relu: bool, of: [&[T]; 3], dx: &mut [T]) {
        match (relu, self.constant) {
            (true, true) => self.loop_over::<true, true>(of, dx),
            (true, false) => self.loop_over::<true, false>(of, dx),
            (false, true) => self.loop_over::<false, true>(of, dx),
            (false, false) => self.loop_over::<false, false>(of, dx),
        }
        if let Some(weight) = self.weight {
            dx.iter_mut().for_each(|dx| *dx *= weight);
        }
    }

    #[inline(always)]
    fn loop_over<const RELU: bool, const CONSTANT: bool>(self, of: [&[T]; 3], dx: &mut [T]) {
        let [x, y, grad] = of;
        for (((dx, &x), &y), &grad) in dx.iter_mut().zip(x).zip(y).zip(grad) {
            let grad = passed::<T, RELU>(y, grad);
            let distance = x - self.centre;
            // An infinity times a pull of zero would be a NaN.
            let distance = if CONSTANT && !distance.is_finite() { T::zero() } else { distance };
            *dx = grad * self.slope - distance * self.pull - self.push;
        }
    }
}

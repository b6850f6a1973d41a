//! The loops over one plane, and the numbers of a channel that they compute and use.
//!
//! A sum over a plane is added up in [`LANES`] interleaved sums, which a processor keeps in one or a few vector registers,
//! and then the lanes as a tree. The sums of planes are added in f64.

use candle_core::WithDType;

use crate::Element;
use crate::kernels::simd::{LANES, Simd};
use crate::relu;

/// Compiles an expression for a flag that is `true` and for one that is `false`, so its loops have no branches for the flag.
macro_rules! unswitched {
    ($flag:ident => $body:expr) => {
        if $flag {
            let $flag = true;
            $body
        } else {
            let $flag = false;
            $body
        }
    };
}

/// Mean and variance of a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments {
    pub(super) mean: f64,
    pub(super) variance: f64,
}

impl Moments {
    #[inline(always)]
    pub(super) fn inverse_deviation(self, epsilon: f64) -> f64 {
        1.0 / (self.variance + epsilon).sqrt()
    }
}

/// Σ dy and Σ dy·x̂ of a channel: the gradients of its bias and of its weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    pub(super) bias: f64,
    pub(super) weight: f64,
}

/// Adds up `N` terms of the elements at each place of planes.
#[inline(always)]
fn sums<T: Element, const P: usize, const N: usize>(
    planes: [&[T]; P],
    terms: impl Fn([T; P]) -> [T; N],
) -> [f64; N] {
    let (mut lanes, mut last) = ([[T::zero(); LANES]; N], [T::zero(); N]);
    let planes = planes.map(<[T]>::as_chunks::<LANES>);
    for nth in 0..planes[0].0.len() {
        let rows = planes.map(|(rows, _)| &rows[nth]);
        for lane in 0..LANES {
            let terms = terms(rows.map(|row| row[lane]));
            for n in 0..N {
                lanes[n][lane] += terms[n];
            }
        }
    }
    for place in 0..planes[0].1.len() {
        let terms = terms(planes.map(|(_, rest)| rest[place]));
        for n in 0..N {
            last[n] += terms[n];
        }
    }
    std::array::from_fn(|n| total(lanes[n], last[n]))
}

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

/// Returns the mean of a plane and the sum of squared distances from the mean. The second pass corrects the rounding of the
/// first (Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983): with K near the mean, Σ(x − K)² −
/// (Σ(x − K))² / n loses no digits, however far the mean is from zero.
#[inline(always)]
pub(super) fn mean_and_squares<T: Element>(x: &[T]) -> (f64, f64) {
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

/// Returns the gradient that passes the relu with output `y`, or all of `grad` without a relu.
#[inline(always)]
fn passed<T: Element>(relu: bool, y: T, grad: T) -> T {
    if relu { relu::passed(y, grad) } else { grad }
}

/// Returns Σ dy and Σ dy · (x − centre) over a plane, for the dy that passes the relu.
#[inline(always)]
pub(super) fn gradient_sums<T: Element>(relu: bool, of: [&[T]; 3], centre: T) -> [f64; 2] {
    unswitched!(relu => sums(of, |[x, y, grad]| {
        let grad = passed(relu, y, grad);
        [grad, grad * (x - centre)]
    }))
}

/// Returns `factor` times the rounding error of a mean, `centre` − `mean`, or 0 if the mean or the factor is infinite: zero
/// times infinity would be a NaN, and the other terms of the sum are infinite already.
#[inline(always)]
pub(super) fn correction<T: Element>(centre: T, mean: f64, factor: f64) -> f64 {
    if centre.is_finite() && factor.is_finite() {
        (WithDType::to_f64(centre) - mean) * factor
    } else {
        0.0
    }
}

/// y = (x − centre) · scale + shift over a plane, followed by max(y, 0) if a relu follows.
#[derive(Clone, Copy)]
pub(super) struct Line<T> {
    centre: T,
    scale: T,
    shift: T,
}

impl<T: Element> Line<T> {
    /// Builds (x − mean) / √(variance + ε) · weight + bias. The mean is rounded to `T`, and the shift takes the rounding
    /// error, so no digits are lost when the mean is much larger than the deviations.
    #[inline(always)]
    pub(super) fn new(moments: Moments, weight: T, bias: T, epsilon: f64) -> Self {
        let centre: T = WithDType::from_f64(moments.mean);
        let scale = WithDType::to_f64(weight) * moments.inverse_deviation(epsilon);
        let shift = WithDType::to_f64(bias) + correction(centre, moments.mean, scale);
        Self { centre, scale: WithDType::from_f64(scale), shift: WithDType::from_f64(shift) }
    }

    #[inline(always)]
    pub(super) fn draw(self, relu: bool, x: &[T], y: &mut [T]) {
        unswitched!(relu => for (y, &x) in y.iter_mut().zip(x) {
            let value = (x - self.centre) * self.scale + self.shift;
            *y = if relu { relu::rectified(value) } else { value };
        });
    }
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
    /// A weight that is not finite. It multiplies the line of a weight of 1, because ∞ · dy − ∞ · Σdy / n would be a NaN.
    weight: Option<T>,
}

impl<T: Element> GradientLine<T> {
    /// Builds the line of a channel, with the mean rounded as in [`Line::new`]. Pull and push are the gradient through the
    /// statistics of `count` values, or zero if `count` is `None`: then the statistics are constants.
    #[inline(always)]
    pub(super) fn new(
        moments: Moments,
        sums: Sums,
        weight: f64,
        count: Option<usize>,
        epsilon: f64,
    ) -> Self {
        let centre: T = WithDType::from_f64(moments.mean);
        let inverse = moments.inverse_deviation(epsilon);
        let (weight, last) = if weight.is_finite() { (weight, None) } else { (1.0, Some(weight)) };
        let slope = weight * inverse;
        let (pull, push) = count.map_or((0.0, 0.0), |count| {
            let share = slope / count as f64;
            (sums.weight * share * inverse, sums.bias * share)
        });
        Self {
            centre,
            slope: WithDType::from_f64(slope),
            pull: WithDType::from_f64(pull),
            push: WithDType::from_f64(push + correction(centre, moments.mean, pull)),
            constant: count.is_none(),
            weight: last.map(WithDType::from_f64),
        }
    }

    #[inline(always)]
    pub(super) fn draw(self, relu: bool, [x, y, grad]: [&[T]; 3], dx: &mut [T]) {
        let constant = self.constant;
        unswitched!(relu => unswitched!(constant => {
            for (((dx, &x), &y), &grad) in dx.iter_mut().zip(x).zip(y).zip(grad) {
                let distance = x - self.centre;
                // An infinity times a pull of zero would be a NaN.
                let distance = if constant && !distance.is_finite() { T::zero() } else { distance };
                *dx = passed(relu, y, grad) * self.slope - distance * self.pull - self.push;
            }
        }));
        if let Some(weight) = self.weight {
            dx.iter_mut().for_each(|dx| *dx *= weight);
        }
    }
}

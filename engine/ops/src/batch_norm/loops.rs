//! The loops over one plane, and the numbers of a channel that they compute and use.
//!
//! The sums of planes are added in f64.

use candle_core::WithDType;

use crate::Element;
use crate::kernels::sums::{Line, Moments, correction, sums};
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

/// Σ dy and Σ dy·x̂ of a channel: the gradients of its bias and of its weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    pub(super) bias: f64,
    pub(super) weight: f64,
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

impl<T: Element> Line<T> {
    /// Draws the line over a plane: y = (x − centre) · scale + shift, followed by max(y, 0) if a relu follows.
    #[inline(always)]
    pub(super) fn draw(self, relu: bool, x: &[T], y: &mut [T]) {
        unswitched!(relu => for (y, &x) in y.iter_mut().zip(x) {
            let value = self.at(x);
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

//! The exponential, as a formula without branches, which the compiler vectorises.
//!
//! Call it within [`vectorised`](super::simd::vectorised): elsewhere [`Float::mul_add`], a product and a sum with one rounding,
//! may be a slow call. It has the same bits on every processor.
//!
//! The coefficients minimise the largest error relative to the value, by Remez' algorithm.

use num_traits::{Float, FloatConst};

/// A type with the coefficients of the exponential.
pub(crate) trait Functions: Float + FloatConst + 'static {
    /// An exponential of a number below the first bound is 0, and above the second it is infinite.
    const BOUNDS: [Self; 2];
    /// A number that rounds the numbers that are added to it: a unit is its last digit.
    const ROUNDING: Self;
    /// ln 2 as a sum: the first term has few digits, and its products with exponents are exact.
    const LOGARITHM: [Self; 2];
    /// exp(r) for |r| ≤ ln 2 / 2 as a polynomial, from the highest power to the lowest.
    const POWERS: &'static [Self];

    /// Returns 2ⁿ for the number [`ROUNDING`](Self::ROUNDING) + n: n becomes the exponent.
    fn two_to(rounded: Self) -> Self;
}

#[rustfmt::skip]
impl Functions for f32 {
    const BOUNDS: [Self; 2] = [-88.0, 89.0];
    const ROUNDING: Self = 12_582_912.0;
    const LOGARITHM: [Self; 2] = [0.693_359_4, -2.121_944_4e-4];
    const POWERS: &'static [Self] = &[
        1.383_674_2e-3, 8.374_899e-3, 4.166_823_3e-2, 1.666_642e-1, 4.999_999e-1, 1.0, 1.0,
    ];

    #[inline(always)]
    fn two_to(rounded: Self) -> Self {
        Self::from_bits((rounded.to_bits() << 23).wrapping_add(1f32.to_bits()))
    }
}

#[rustfmt::skip]
impl Functions for f64 {
    const BOUNDS: [Self; 2] = [-709.0, 710.0];
    const ROUNDING: Self = 6_755_399_441_055_744.0;
    const LOGARITHM: [Self; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];
    const POWERS: &'static [Self] = &[
        2.499_418_944_242_079_3e-8, 2.763_244_279_587_087e-7, 2.755_762_374_402_686_3e-6, 2.480_148_611_944_981_7e-5,
        1.984_126_943_022_575e-4, 1.388_888_895_159_698e-3, 8.333_333_333_561_082e-3, 4.166_666_666_649_138e-2,
        1.666_666_666_666_616_3e-1, 5.000_000_000_000_018e-1, 1.0, 1.0,
    ];

    #[inline(always)]
    fn two_to(rounded: Self) -> Self {
        Self::from_bits((rounded.to_bits() << 52).wrapping_add(1f64.to_bits()))
    }
}

/// Evaluates a polynomial, from the highest power to the lowest.
#[inline(always)]
fn polynomial<T: Float>(coefficients: &[T], x: T) -> T {
    coefficients[1..].iter().fold(coefficients[0], |sum, &next| sum.mul_add(x, next))
}

/// Returns eˣ: of a NaN a NaN. The smallest numbers of a type, those with fewer digits, become 0. In f32 eˣ is infinite from
/// 88.4 on, and in f64 from 709.5 on.
#[inline(always)]
pub(crate) fn exp<T: Functions>(x: T) -> T {
    let [lowest, highest] = T::BOUNDS;
    // The comparisons leave a NaN as it is.
    let x = if x < lowest { lowest } else { x };
    let x = if x > highest { highest } else { x };
    let rounded = x.mul_add(T::LOG2_E(), T::ROUNDING);
    let exponent = rounded - T::ROUNDING;
    let rest = (-exponent).mul_add(T::LOGARITHM[0], x);
    let rest = (-exponent).mul_add(T::LOGARITHM[1], rest);
    polynomial(T::POWERS, rest) * T::two_to(rounded)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the largest relative error of `found` beside `truth` over numbers of an interval, in units of the last place.
    fn error<T: Functions>(from: f64, to: f64, found: fn(T) -> T, truth: fn(f64) -> f64) -> f64 {
        let numbers = (0..=100_000).map(|nth| from + (to - from) * f64::from(nth) / 1e5);
        let errors = numbers.map(|x| {
            let x = T::from(x).unwrap();
            let truth = truth(x.to_f64().unwrap());
            (found(x).to_f64().unwrap() / truth - 1.0).abs() / T::epsilon().to_f64().unwrap()
        });
        errors.fold(0.0, f64::max)
    }

    #[test]
    fn exponentials_are_right_to_two_units_in_the_last_place() {
        assert!(error::<f32>(-87.3, 88.3, exp, f64::exp) < 2.0);
        assert!(error::<f64>(-708.0, 709.0, exp, f64::exp) < 2.0);
        for (x, power) in
            [(f32::NEG_INFINITY, 0.0), (-90.0, 0.0), (0.0, 1.0), (89.0, f32::INFINITY)]
        {
            assert_eq!(exp(x), power, "{x}");
        }
        assert_eq!([-1e9, 0.0, 1e9].map(exp::<f64>), [0.0, 1.0, f64::INFINITY]);
        assert_eq!(exp(f64::INFINITY), f64::INFINITY);
        assert!(exp(f32::NAN).is_nan() && exp(f64::NAN).is_nan());
    }
}

//! The exponential and the normal distribution, as formulas without branches, which the compiler vectorises.
//!
//! Call them within [`vectorised`](super::simd::vectorised): elsewhere [`Float::mul_add`], a product and a sum with one rounding,
//! may be a slow call. It has the same bits on every processor.
//!
//! The coefficients minimise the largest error: relative to the value for the exponential, by Remez' algorithm, and for the
//! normal distribution relative in f64 and absolute in f32, by a least-squares fit with Lawson's weights in 40 digits.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use num_traits::{Float, FloatConst};

/// A type with both functions.
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

    /// Returns Φ(x), the probability that a normal number is below x.
    fn below(x: Self) -> Self;

    /// Returns the derivative of x · Φ(x), which is Φ(x) + x · exp(−x² / 2) / √2π.
    fn gelu_slope(x: Self) -> Self;
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

    #[inline(always)]
    fn below(x: Self) -> Self {
        from_half([
            &[2.219_399_8e-8, 6.354_787_7e-6, 1.733_574_3e-4, 4.704_261_7e-3, 3.432_595_7e-2, 3.989_422_3e-1],
            &[1.181_513e-6, 7.495_292e-5, 1.910_165e-3, 2.891_158_9e-2, 2.527_081_4e-1, 1.0],
        ], 5.6, x)
    }

    #[inline(always)]
    fn gelu_slope(x: Self) -> Self {
        let slope = from_half([
            &[1.863_329_8e-8, 1.115_082_9e-6, 3.415_629e-5, 2.739_422_8e-4, 1.370_629_4e-2, -1.843_741_5e-2, 7.978_845e-1],
            &[1.371_523_7e-9, 3.933_379e-7, 1.125_037_8e-5, 2.633_918_5e-4, 4.175_171e-3, 4.558_821_4e-2, 3.102_249e-1, 1.0],
        ], 6.2, x);
        // The formula has the product of an infinite x and 0, a NaN.
        x.mul_add(0.0, slope)
    }
}

/// Returns 1/2 + x · f(x²), where f is a fraction of polynomials, and from ±`end` on the limits 0 and 1. The error is at most
/// 1e-8, and that of rounding.
#[inline(always)]
fn from_half([above, below]: [&[f32]; 2], end: f32, x: f32) -> f32 {
    let square = x * x;
    let found = x.mul_add(polynomial(above, square) / polynomial(below, square), 0.5);
    let found = if x < -end { 0.0 } else { found };
    if x > end { 1.0 } else { found }
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

    #[inline(always)]
    fn below(x: Self) -> Self {
        normal(x).0
    }

    #[inline(always)]
    fn gelu_slope(x: Self) -> Self {
        let (below, bell) = normal(x);
        below + x * (bell * (FRAC_2_SQRT_PI * FRAC_1_SQRT_2 / 2.0))
    }
}

/// exp(x² / 2) · Φ(−x) for 0 ≤ x ≤ 39 as a fraction of polynomials. From 39 on Φ(−x) is 0.
#[rustfmt::skip]
const TAIL: [&[f64]; 2] = [
    &[
        1.385_353_211_536_014_6e-6, 3.724_658_574_866_455e-5, 4.903_358_883_026_81e-4, 4.088_760_257_650_338e-3,
        2.361_985_812_881_626_7e-2, 9.769_104_791_399_716e-2, 2.893_143_292_432_656e-1, 5.940_208_897_627_17e-1,
        7.748_566_002_208_117e-1, 0.5,
    ],
    &[
        3.472_565_530_397_357_2e-6, 9.336_334_496_893_37e-5, 1.232_562_367_415_674_3e-3, 1.034_236_540_378_789e-2,
        6.042_834_932_485_772e-2, 2.549_374_065_344_528e-1, 7.819_864_724_480_076e-1, 1.714_296_363_572_943_6,
        2.561_153_788_198_095_7, 2.347_597_761_244_479, 1.0,
    ],
];

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

/// Returns Φ(x) and exp(−x² / 2). The smaller of Φ(x) and Φ(−x) has a small relative error, which the f32 formula does not need.
#[inline(always)]
fn normal(x: f64) -> (f64, f64) {
    let bell = exp(-(x * x) / 2.0);
    let away = if x.abs() > 39.0 { 39.0 } else { x.abs() };
    let tail = bell * (polynomial(TAIL[0], away) / polynomial(TAIL[1], away));
    (if x > 0.0 { 1.0 - tail } else { tail }, bell)
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

    #[test]
    fn the_normal_distribution_is_right_where_its_values_are_known() {
        // √(1 / 2π) · ∫ exp(−t² / 2) from −∞ to x, by arithmetic of 50 digits.
        for (x, truth) in PROBABILITIES {
            let found = f64::below(x);
            assert!((found / truth - 1.0).abs() < 1e-14, "{x}: {found}");
            assert!((f64::from(f32::below(x as f32)) - truth).abs() < 1.5e-7, "{x}");
        }
        for x in (-8000..8000).map(|nth| f64::from(nth) / 1024.0) {
            let [below, slope] = [f64::below(x), f64::gelu_slope(x)];
            assert!((f64::from(f32::below(x as f32)) - below).abs() < 1.5e-7, "{x}");
            assert!((f64::from(f32::gelu_slope(x as f32)) - slope).abs() < 3e-7, "{x}");
        }
        let limits = [f64::NEG_INFINITY, -1e300, 0.0, 1e300, f64::INFINITY];
        assert_eq!(limits.map(f64::below), [0.0, 0.0, 0.5, 1.0, 1.0]);
        assert_eq!(limits.map(|x| f32::below(x as f32)), [0.0, 0.0, 0.5, 1.0, 1.0]);
        assert_eq!([-1e30, 0.0, 1e30].map(f32::gelu_slope), [0.0, 0.5, 1.0]);
        for x in [f32::NEG_INFINITY, f32::INFINITY, f32::NAN] {
            assert!(f32::gelu_slope(x).is_nan() && f64::gelu_slope(x.into()).is_nan(), "{x}");
        }
        assert!(f32::below(f32::NAN).is_nan() && f64::below(f64::NAN).is_nan());
    }

    #[rustfmt::skip]
    const PROBABILITIES: [(f64, f64); 14] = [
        (-8.0, 6.220_960_574_271_784e-16), (-5.5, 1.898_956_246_588_771_8e-08), (-3.0, 0.001_349_898_031_630_094_6),
        (-2.0, 0.022_750_131_948_179_21), (-1.25, 0.105_649_773_666_855_25), (-0.75, 0.226_627_352_376_868_2),
        (-0.5, 0.308_537_538_725_986_9), (-0.125, 0.450_261_775_169_887_1), (0.125, 0.549_738_224_830_112_9),
        (0.5, 0.691_462_461_274_013_1), (1.0, 0.841_344_746_068_542_9), (2.5, 0.993_790_334_674_223_8),
        (4.0, 0.999_968_328_758_166_9), (7.0, 0.999_999_999_998_720_1),
    ];
}

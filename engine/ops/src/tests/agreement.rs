//! Test helpers that compare an operation with the same operation composed of candle's.

use approx::assert_abs_diff_eq;
use candle_core::{DType, Device, Result, Tensor, Var};

use crate::difference::relative_difference;
use harness::random;
use rand_distr::{Distribution as _, StandardNormal};

/// The numbers that are not finite.
pub(crate) const NOT_FINITE: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

/// Returns a variable of noise from N(0, 1) in f64. The same name gives the same noise.
pub(crate) fn noise(name: &str, shape: &[usize]) -> Var {
    let mut generator = random::generator(7, &format!("weights/{name}"));
    let count = shape.iter().product();
    let values: Vec<f64> = StandardNormal.sample_iter(&mut generator).take(count).collect();
    Var::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// Checks that two functions of the same variables have the same value and the same gradients.
pub(crate) fn assert_agree(
    inputs: &[&Var],
    ours: impl Fn() -> Result<Tensor>,
    composed: impl Fn() -> Result<Tensor>,
) {
    let (ours, composed) = (ours().unwrap(), composed().unwrap());
    assert_abs_diff_eq!(relative_difference(&composed, &ours).unwrap(), 0.0, epsilon = 1e-12);
    let upstream = noise("upstream", ours.dims());
    let gradients =
        |output: &Tensor| (output * upstream.as_detached_tensor())?.sum_all()?.backward();
    let (ours, composed) = (gradients(&ours).unwrap(), gradients(&composed).unwrap());
    for input in inputs {
        let (ours, composed) = (ours.get(input).unwrap(), composed.get(input).unwrap());
        assert_abs_diff_eq!(relative_difference(composed, ours).unwrap(), 0.0, epsilon = 1e-12);
    }
}

/// Asserts NaN where the truth is NaN, the same infinity where the truth is infinite, and otherwise
/// numbers that differ by at most `bound` of the largest number, or of 1: where the formula's sum has
/// no terms, Winograd's sums cancel up to rounding.
pub(crate) fn assert_same_kind(name: &str, found: &[f64], truth: &[f64], bound: f64) {
    assert_eq!(found.len(), truth.len(), "{name}");
    let finite = truth.iter().filter(|truth| truth.is_finite());
    let largest = finite.fold(1f64, |largest, truth| largest.max(truth.abs()));
    for (place, (found, truth)) in found.iter().zip(truth).enumerate() {
        let same = match truth {
            truth if truth.is_nan() => found.is_nan(),
            truth if truth.is_infinite() => found == truth,
            _ => (found - truth).abs() <= bound * largest,
        };
        assert!(same, "{name}, element {place}: {found:e} for {truth:e}");
    }
}

/// Checks an operation on an empty batch: an empty output, and zero gradients of the parameters.
///
/// `image` and `output` are shapes without the batch's axis.
pub(crate) fn assert_empty_batch_is_nothing(
    image: &[usize],
    output: &[usize],
    parameters: &[&Var],
    operation: impl Fn(&Tensor) -> Result<Tensor>,
) {
    let none_of = |shape: &[usize]| [&[0], shape].concat();
    let x = Tensor::zeros(none_of(image), DType::F64, &Device::Cpu).unwrap();
    let x = Var::from_tensor(&x).unwrap();
    let y = operation(&x).unwrap();
    assert_eq!(y.dims(), none_of(output));
    let gradients = y.sum_all().unwrap().backward().unwrap();
    assert_eq!(gradients.get(&x).unwrap().dims(), x.dims());
    for parameter in parameters {
        let gradient = gradients.get(parameter).unwrap();
        assert_eq!(gradient.dims(), parameter.dims());
        let values = gradient.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        assert!(values.iter().all(|&value| value == 0.0), "{values:?}");
    }
}

//! Checks of gradients against finite differences.
//!
//! The check moves one element x of a tensor by a small step h, up and down, and computes the loss L
//! both times:
//!
//! ```text
//! dL/dx ≈ (L(x + h) − L(x − h)) / 2h
//! ```
//!
//! The estimate has two errors. The curvature of L causes an error of about h². Rounding in f64
//! causes an error of about 1e-16 · |L| / h. With h = 1e-5, both errors are near 1e-10. In f32 the
//! rounding error would be near 1e-2, so the check needs f64. The check also needs a loss that is
//! smooth within h: the input of a relu must not change its sign.

use candle_core::{Result, Tensor, Var};

use model_state::parameters::Parameters;
use ops::backward::backward;

// ANCHOR: gradient_errors
/// The step h.
pub const STEP: f64 = 1e-5;

/// The difference between one parameter's gradient and finite differences.
#[derive(Clone, Debug)]
pub struct GradientError {
    /// The parameter's name.
    pub name: String,
    /// The largest |gradient| of the parameter's elements.
    pub largest_gradient: f64,
    /// The largest |gradient − finite difference| of the checked elements, divided by
    /// `largest_gradient` unless that is 0.
    pub relative_error: f64,
}

/// Compares the gradients of the backward pass with finite differences, parameter by parameter.
///
/// `loss` computes a scalar in f64 from the current values of the `parameters`. The function checks
/// `elements` elements of each parameter, or all elements of a smaller parameter. Each checked
/// element costs two forward passes. Fails when `loss` fails, is not in f64, or does not depend on
/// a parameter.
pub fn gradient_errors(
    parameters: &Parameters,
    elements: usize,
    loss: impl Fn() -> Result<Tensor>,
) -> Result<Vec<GradientError>> {
    let gradients = parameters.gradients(&backward(&loss()?)?)?;
    let mut errors = Vec::new();
    for (parameter, gradient) in parameters.iter().zip(&gradients) {
        let gradient = gradient.flatten_all()?.to_vec1::<f64>()?;
        let checked = spread(elements, gradient.len());
        let differences = finite_differences(&parameter.value, &checked, &loss)?;
        let errors_of_elements =
            checked.iter().zip(differences).map(|(&element, slope)| gradient[element] - slope);
        let error = largest(errors_of_elements);
        let largest_gradient = largest(gradient.iter().copied());
        errors.push(GradientError {
            name: parameter.name.clone(),
            largest_gradient,
            relative_error: if largest_gradient == 0.0 { error } else { error / largest_gradient },
        });
    }
    Ok(errors)
}
// ANCHOR_END: gradient_errors

// ANCHOR: finite_differences
/// Estimates the derivatives of a loss with respect to some elements of `x`.
///
/// The index of an element counts row by row from 0.
///
/// The function restores the values of `x` before it returns. Fails when `loss` fails, or when
/// `loss` or `x` is not in f64.
pub fn finite_differences(
    x: &Var,
    elements: &[usize],
    loss: impl Fn() -> Result<Tensor>,
) -> Result<Vec<f64>> {
    let original = x.flatten_all()?.to_vec1::<f64>()?;
    let loss_at = |element: usize, offset: f64| {
        let mut values = original.clone();
        values[element] += offset;
        x.set(&Tensor::from_vec(values, x.shape(), x.device())?)?;
        loss()?.to_scalar::<f64>()
    };
    let slope =
        |&element: &usize| Ok((loss_at(element, STEP)? - loss_at(element, -STEP)?) / (2.0 * STEP));
    let slopes = elements.iter().map(slope).collect();
    x.set(&Tensor::from_vec(original, x.shape(), x.device())?)?;
    slopes
}
// ANCHOR_END: finite_differences

// ANCHOR: elements
/// Chooses `wanted` of `count` elements: element 5, and then every 7919th element. At the end of the
/// tensor, the count goes on at element 0.
fn spread(wanted: usize, count: usize) -> Vec<usize> {
    if wanted >= count {
        return (0..count).collect();
    }
    (0..wanted).map(|n| (n * 7919 + 5) % count).collect()
}

/// Returns the largest absolute value, or NaN if a value is NaN. `f64::max` would ignore the NaN.
fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.map(f64::abs).fold(0.0, |a, b| if a.is_nan() || b <= a { a } else { b })
}
// ANCHOR_END: elements

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use model_state::parameters::Parameter;
    use ops::avg_pool2d;

    fn parameters(name: &str, shape: &[usize]) -> Parameters {
        let x = crate::init::normal(name, shape, 1.0, 1, DType::F64, &Device::Cpu).unwrap();
        Parameters::new(vec![x]).unwrap()
    }

    #[test]
    fn a_wrong_gradient_is_found_and_a_right_one_passes() {
        // LeNet's second pooling, 9×9 → 4×4.
        let image = parameters("image", &[1, 1, 9, 9]);
        let x = &image[0].value;
        let before = x.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        #[expect(clippy::disallowed_methods, reason = "this one is wrong")]
        let candles = gradient_errors(&image, 81, || x.avg_pool2d(2)?.sqr()?.sum_all()).unwrap();
        assert!(candles[0].relative_error > 0.1, "{candles:?}");
        let ours = gradient_errors(&image, 81, || avg_pool2d(x, 2, 2)?.sqr()?.sum_all()).unwrap();
        assert!(ours[0].relative_error < 1e-8, "{ours:?}");
        assert_eq!(ours[0].name, "image");
        assert_eq!(x.flatten_all().unwrap().to_vec1::<f64>().unwrap(), before);
    }

    #[test]
    fn a_nan_is_no_small_error() {
        let w = Parameter {
            name: "w".to_owned(),
            value: Var::new(&[1f64, -1.0, 2.0], &Device::Cpu).unwrap(),
        };
        let parameters = Parameters::new(vec![w]).unwrap();
        let w = &parameters[0].value;
        // The logarithm of a negative number.
        let errors = gradient_errors(&parameters, 3, || w.log()?.sum_all()).unwrap();
        assert!(errors[0].relative_error.is_nan(), "{errors:?}");
    }

    #[test]
    fn some_elements_of_a_large_tensor_are_checked_and_all_of_a_small_one() {
        assert_eq!(spread(16, 3), [0, 1, 2]);
        let mut elements = spread(16, 102_400);
        elements.sort_unstable();
        elements.dedup();
        assert_eq!(elements.len(), 16);
        assert!(elements[0] < 12_800 && elements[15] > 89_600, "{elements:?}");
    }
}

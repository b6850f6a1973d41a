//! Differences between two tensors, or between two sets of weights.

use candle_core::{DType, Result, Tensor, bail};

/// Returns the largest [`relative_difference`] over all tensors of two sets of weights.
/// The difference of a tensor is relative to the tensor's largest entry, because small entries carry the rounding errors of
/// the large ones. Fails when the two sets do not hold tensors of the same names and shapes, in the same order.
pub fn largest_difference(a: &[(String, Tensor)], b: &[(String, Tensor)]) -> Result<f64> {
    if a.len() != b.len() {
        bail!("{} tensors cannot be compared with {}", a.len(), b.len());
    }
    a.iter().zip(b).try_fold(0.0, |largest, ((name, a), (other, b))| {
        if name != other {
            bail!("{name} cannot be compared with {other}");
        }
        Ok(larger(largest, relative_difference(a, b)?))
    })
}

/// Returns a NaN if there is one, which `f64::max` would ignore, and otherwise the larger number.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// Returns max |a − b| / max |b| of two tensors, or max |a − b| if `b` is zero. Fails when the shapes differ.
pub fn relative_difference(a: &Tensor, b: &Tensor) -> Result<f64> {
    let values = |tensor: &Tensor| tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    if a.shape() != b.shape() {
        bail!("{:?} cannot be compared with {:?}", a.dims(), b.dims());
    }
    let (mut apart, mut size) = (0.0, 0.0);
    for (a, b) in values(a)?.into_iter().zip(values(b)?) {
        apart = larger(apart, (a - b).abs());
        size = f64::max(size, b.abs());
    }
    Ok(if size == 0.0 { apart } else { apart / size })
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn weights(values: &[f64]) -> Vec<(String, Tensor)> {
        vec![("w".to_owned(), Tensor::new(values, &Device::Cpu).unwrap())]
    }

    #[test]
    fn differences_are_relative_to_the_largest_entry() {
        let d = |a: &[f64], b: &[f64]| largest_difference(&weights(a), &weights(b)).unwrap();
        assert_eq!(d(&[1.0, 4.0], &[1.0, 4.0]), 0.0);
        assert_eq!(d(&[1.0, 4.0], &[2.0, 4.0]), 0.25);
        assert_eq!(d(&[0.5], &[0.0]), 0.5);
        assert!(d(&[f64::NAN], &[0.0]).is_nan());
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        assert!(largest_difference(&weights(&[1.0]), &weights(&[1.0, 2.0])).is_err());
        assert!(largest_difference(&weights(&[1.0]), &[]).is_err());
    }
}

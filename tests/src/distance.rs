//! How far tensors are apart as a whole, where single elements may differ by much.

use candle_core::{DType, Device, Tensor};

/// All elements, in order.
/// Panics when the device fails.
#[expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]
pub fn values(tensor: &Tensor) -> Vec<f64> {
    let tensor = tensor.to_device(&Device::Cpu).unwrap().to_dtype(DType::F64).unwrap();
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// ‖a − b‖ / ‖b‖ of all elements of some tensors.
/// Panics when they have not as many.
pub fn distance<'a>(
    a: impl IntoIterator<Item = &'a Tensor>,
    b: impl IntoIterator<Item = &'a Tensor>,
) -> f64 {
    let a: Vec<f64> = a.into_iter().flat_map(values).collect();
    let b: Vec<f64> = b.into_iter().flat_map(values).collect();
    assert_eq!(a.len(), b.len());
    length(a.iter().zip(&b).map(|(a, b)| a - b)) / length(b)
}

/// √Σ of squares.
fn length(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().map(|value| value * value).sum::<f64>().sqrt()
}

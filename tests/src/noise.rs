//! Dense noise that needs no file: the same formula here and in the PyTorch script.

use candle_core::{Result, Shape, Tensor};

use crate::device;

/// Uniform noise in [−1, 1), f64, that depends on the flat index and a salt alone.
///
/// The generator is SplitMix64's finaliser (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", 2014) over `(index + 1) · 0x9E3779B97F4A7C15 + salt · 0xD1B54A32D192ED03`, of which the
/// highest 53 bits count. It lies on the test's [`device`](fn@crate::device).
pub fn noise(shape: impl Into<Shape>, salt: u64) -> Result<Tensor> {
    let shape = shape.into();
    let values = (1..).take(shape.elem_count()).map(|position: u64| {
        let mut z = position
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .wrapping_add(salt.wrapping_mul(0xD1B5_4A32_D192_ED03));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        (z >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0
    });
    Tensor::from_vec(values.collect::<Vec<f64>>(), shape, &device())
}

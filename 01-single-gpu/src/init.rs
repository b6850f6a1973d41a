//! Initial values of parameters.
//!
//! An initial weight depends on the parameter's name and the seed alone. Every device can therefore
//! draw its own weights, for a whole replica or for a part of the model. The weights are those of
//! one device with the whole model.

use candle_core::{DType, Device, Result, Tensor, Var};
use rand_distr::{Distribution, StandardNormal};

use harness::random;
use model_state::parameters::Parameter;

// ANCHOR: init
/// Draws a parameter from N(0, std²).
///
/// The numbers are drawn in f64 and rounded to `dtype`, so an f32 model starts as close to the f64
/// model as f32 allows. Fails when the tensor cannot be made on `device`.
pub fn normal(
    name: &str,
    shape: &[usize],
    std: f64,
    seed: u64,
    dtype: DType,
    device: &Device,
) -> Result<Parameter> {
    let mut generator = random::generator(seed, &format!("weights/{name}"));
    let values: Vec<f64> = (0..shape.iter().product())
        .map(|_| {
            let standard: f64 = StandardNormal.sample(&mut generator);
            std * standard
        })
        .collect();
    // Rounded on the CPU, because some devices do not convert f64.
    let value = Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?;
    Ok(Parameter { name: name.to_owned(), value: Var::from_tensor(&value.to_device(device)?)? })
}

/// Makes a parameter of zeros. Fails when the tensor cannot be made on `device`.
pub fn zeros(name: &str, shape: &[usize], dtype: DType, device: &Device) -> Result<Parameter> {
    Ok(Parameter { name: name.to_owned(), value: Var::zeros(shape, dtype, device)? })
}
// ANCHOR_END: init

#[cfg(test)]
mod tests {
    use super::*;

    fn values(name: &str, shape: &[usize], seed: u64) -> Vec<f64> {
        let parameter = normal(name, shape, 0.01, seed, DType::F64, &Device::Cpu).unwrap();
        parameter.value.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn a_weight_depends_on_its_name_and_the_seed() {
        assert_eq!(values("W1", &[20, 9], 1), values("W1", &[20, 9], 1));
        assert_ne!(values("W1", &[20, 9], 1), values("W1", &[20, 9], 2));
        assert_ne!(values("W1", &[20, 9], 1), values("W2", &[20, 9], 1));
    }

    #[test]
    fn the_spread_is_as_asked() {
        let values = values("W3", &[800, 128], 1);
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let std = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt();
        // 102,400 draws: the mean strays by 0.01/√n ≈ 3e-5, the deviation by less.
        approx::assert_abs_diff_eq!(mean, 0.0, epsilon = 2e-4);
        approx::assert_abs_diff_eq!(std, 0.01, epsilon = 2e-4);
    }
}

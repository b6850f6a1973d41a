//! Initial values of a network's tensors, which depend on a name and a seed alone.
//!
//! candle draws all tensors from one stream of random numbers. Here each tensor has its own stream, named after the tensor. So
//! a network that is replicated, or split over devices, starts from the same values as the whole network on one device.

use candle_core::{DType, Device, Error, Result, Shape, Tensor, bail};
use candle_nn::init::{Init, NormalOrUniform};
use harness::random;
use ops::memory::{excess, product};
use rand::distr::{Distribution, Uniform};
use rand_distr::Normal;

// ANCHOR: initial
/// Draws the initial value of a tensor, in CPU memory.
///
/// The numbers are drawn in f64 and rounded to `dtype`, so networks in f32 and f64 start from the same values up to
/// rounding. Fails when the distribution does not exist, such as one with a negative deviation or an empty range, and when
/// the numbers need more memory than the machine has.
pub fn value(name: &str, shape: &Shape, init: Init, seed: u64, dtype: DType) -> Result<Tensor> {
    if let Some(excess) = excess(product(shape.dims()), DType::F64) {
        bail!("{name} {shape:?} {excess}");
    }
    match init {
        Init::Const(value) => Tensor::full(value, shape, &Device::Cpu)?.to_dtype(dtype),
        Init::Randn { mean, stdev } => drawn(Normal::new(mean, stdev), name, shape, seed, dtype),
        Init::Uniform { lo, up } => drawn(Uniform::new(lo, up), name, shape, seed, dtype),
        // He et al., "Delving deep into rectifiers", 2015.
        Init::Kaiming { dist, fan, non_linearity } => {
            let std = non_linearity.gain() / (fan.for_shape(shape) as f64).sqrt();
            let bound = 3f64.sqrt() * std;
            match dist {
                NormalOrUniform::Normal => drawn(Normal::new(0.0, std), name, shape, seed, dtype),
                NormalOrUniform::Uniform => {
                    drawn(Uniform::new(-bound, bound), name, shape, seed, dtype)
                }
            }
        }
    }
}

fn drawn<D: Distribution<f64>, E: std::fmt::Display>(
    distribution: std::result::Result<D, E>,
    name: &str,
    shape: &Shape,
    seed: u64,
    dtype: DType,
) -> Result<Tensor> {
    let refused = |error| Error::Msg(format!("{name} cannot be drawn: {error}"));
    let distribution = distribution.map_err(refused)?;
    let mut generator = random::generator(seed, &format!("weights/{name}"));
    let values: Vec<f64> =
        (0..shape.elem_count()).map(|_| distribution.sample(&mut generator)).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)
}
// ANCHOR_END: initial

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_beyond_the_machines_memory_is_refused() {
        for shape in [vec![1 << 30, 1 << 30], vec![usize::MAX, 3], vec![1 << 50]] {
            for init in [Init::Const(1.0), Init::Randn { mean: 0.0, stdev: 1.0 }] {
                let shape = Shape::from(shape.clone());
                let error = value("w", &shape, init, 0, DType::F32).unwrap_err().to_string();
                assert!(error.starts_with(&format!("w {shape:?} needs at least")), "{error}");
            }
        }
    }
}

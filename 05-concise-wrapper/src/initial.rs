//! Initial values of a network's tensors, as its layers ask for them.
//!
//! `candle_nn`'s layers say which distribution they want; candle draws from one stream of numbers for all
//! of them. Here each tensor has a stream of its own, named after it. So a value depends on its name and
//! the seed alone, and a network that is replicated, split over devices or cut into a pipeline starts from
//! the same values as the whole on one device.

use candle_core::{DType, Device, Result, Shape, Tensor, bail};
use candle_nn::init::{Init, NormalOrUniform};
use harness::random;
use rand::distr::{Distribution, Uniform};
use rand_distr::Normal;

/// The initial value of a tensor, in CPU memory.
///
/// Drawn in f64 and rounded to `dtype`, so that networks in f32 and f64 start from the same values as
/// nearly as f32 allows.
///
/// # Errors
///
/// When the distribution makes no sense: a negative deviation, an empty range.
pub fn value(name: &str, shape: &Shape, init: Init, seed: u64, dtype: DType) -> Result<Tensor> {
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
    let distribution = match distribution {
        Ok(distribution) => distribution,
        Err(error) => bail!("{name} cannot be drawn: {error}"),
    };
    let mut generator = random::generator(seed, &format!("weights/{name}"));
    let values: Vec<f64> =
        (0..shape.elem_count()).map(|_| distribution.sample(&mut generator)).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)
}

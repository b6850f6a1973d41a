//! Stochastic gradient descent.

use candle_core::{Result, Tensor, bail};
use tracing::info_span;

use crate::parameters::{Parameter, Parameters};
use crate::report::trace::COMPUTE;

/// parameter −= learning_rate · gradient / batch_size, for every parameter.
///
/// `gradients` are *sums* over the samples of the whole batch, in the order of `parameters`, and
/// `batch_size` counts the whole batch: all devices' samples, not one shard's. This is the only place
/// that divides.
///
/// # Errors
///
/// When the gradients do not fit the parameters, or `batch_size` is 0.
pub fn sgd(
    parameters: &Parameters,
    gradients: &[Tensor],
    learning_rate: f64,
    batch_size: usize,
) -> Result<()> {
    if gradients.len() != parameters.len() {
        bail!("{} gradients for {} parameters", gradients.len(), parameters.len());
    }
    if batch_size == 0 {
        bail!("an update needs at least one sample");
    }
    let _span = info_span!(target: COMPUTE, "update").entered();
    let step = learning_rate / batch_size as f64;
    for (Parameter { value, .. }, gradient) in parameters.iter().zip(gradients) {
        value.set(&value.as_detached_tensor().sub(&(gradient * step)?)?)?;
    }
    Ok(())
}

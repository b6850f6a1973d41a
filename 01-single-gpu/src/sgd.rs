//! Stochastic gradient descent, the update of a training step.

use candle_core::{Result, Tensor, bail};
use tracing::info_span;

use harness::report::trace::COMPUTE;
use model_state::parameters::{Parameter, Parameters};

use ops::update::sgd_step_all;

// ANCHOR: sgd
/// Updates every parameter in place: parameter −= learning_rate · gradient / batch_size.
///
/// `gradients` are *sums* over the samples of the whole batch, in the order of `parameters`.
/// `batch_size` counts the whole batch: the samples of all devices, not of one shard. The
/// gradients are divided here and nowhere else.
///
/// Tensors that share memory with a parameter see the update. A [snapshot](Parameters::snapshot)
/// does not. Fails when [`check_gradients`] does: then no parameter was changed.
pub fn sgd(
    parameters: &Parameters,
    gradients: &[Tensor],
    learning_rate: f64,
    batch_size: usize,
) -> Result<()> {
    let named =
        parameters.iter().map(|Parameter { name, value }| (name.as_str(), value.as_tensor()));
    check_gradients(named, gradients, batch_size)?;
    let _span = info_span!(target: COMPUTE, "update").entered();
    let step = learning_rate / batch_size as f64;
    let values = parameters.iter().map(|parameter| parameter.value.as_tensor());
    sgd_step_all(values.zip(gradients), step)
}

/// Checks, before anything is changed, that `gradients` fit the named `parameters` and that there
/// are `samples` to divide by. Fails when there are no samples, or when a gradient is missing or
/// differs in shape or dtype from its parameter. The message names the first such parameter.
pub fn check_gradients<'a>(
    parameters: impl ExactSizeIterator<Item = (&'a str, &'a Tensor)>,
    gradients: &[Tensor],
    samples: usize,
) -> Result<()> {
    if gradients.len() != parameters.len() {
        bail!("{} gradients for {} parameters", gradients.len(), parameters.len());
    }
    if samples == 0 {
        bail!("an update needs at least one sample");
    }
    for ((name, value), gradient) in parameters.zip(gradients) {
        if value.shape() != gradient.shape() || value.dtype() != gradient.dtype() {
            bail!(
                "parameter {name} is {:?} {:?}, its gradient {:?} {:?}",
                value.dtype(),
                value.dims(),
                gradient.dtype(),
                gradient.dims()
            );
        }
    }
    Ok(())
}
// ANCHOR_END: sgd

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use rayon::ThreadPoolBuilder;

    use super::*;
    use crate::init;
    use ops::update::overwrite;

    fn formula(value: &Tensor, gradient: &Tensor, step: f64) -> Result<()> {
        overwrite(value, &value.detach().sub(&(gradient * step)?)?)
    }

    fn parameters(shape: &[usize], dtype: DType) -> Parameters {
        Parameters::new(vec![init::normal("w", shape, 1.0, 1, dtype, &Device::Cpu).unwrap()])
            .unwrap()
    }

    fn bits(parameters: &Parameters) -> Vec<u64> {
        let value = parameters[0].value.to_dtype(DType::F64).unwrap();
        let values = value.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        values.into_iter().map(f64::to_bits).collect()
    }

    #[test]
    fn in_place_is_the_formula_to_the_last_bit() {
        // More than two blocks, the last one not full; a gradient that is not contiguous.
        let shape = [181, 211];
        for dtype in [DType::F32, DType::F64] {
            let gradient = init::normal("g", &[211, 181], 3.0, 2, dtype, &Device::Cpu).unwrap();
            let gradient = gradient.value.as_detached_tensor().t().unwrap();
            let expected = parameters(&shape, dtype);
            formula(&expected[0].value, &gradient, 0.1 / 7.0).unwrap();
            for threads in 1..=4 {
                let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let updated = parameters(&shape, dtype);
                let before = bits(&updated);
                let gradients = [gradient.clone()];
                pool.install(|| sgd(&updated, &gradients, 0.1, 7)).unwrap();
                assert_eq!(bits(&updated), bits(&expected), "{threads} threads, {dtype:?}");
                assert_ne!(bits(&updated), before);
            }
        }
    }

    #[test]
    fn a_snapshot_keeps_what_it_saw() {
        let parameters = parameters(&[3], DType::F64);
        let before = bits(&parameters);
        let snapshot = parameters.snapshot().unwrap();
        let gradient = Tensor::ones(3, DType::F64, &Device::Cpu).unwrap();
        sgd(&parameters, &[gradient], 0.5, 1).unwrap();
        let kept = snapshot[0].1.to_vec1::<f64>().unwrap();
        assert_eq!(kept.into_iter().map(f64::to_bits).collect::<Vec<_>>(), before);
    }

    #[test]
    fn gradients_that_do_not_fit_are_refused_by_name() {
        let parameters = parameters(&[2, 3], DType::F32);
        let before = bits(&parameters);
        let ones = |shape: &[usize], dtype| Tensor::ones(shape, dtype, &Device::Cpu).unwrap();
        for wrong in [ones(&[3, 2], DType::F32), ones(&[3], DType::F32), ones(&[2, 3], DType::F64)]
        {
            let error = sgd(&parameters, &[wrong], 0.1, 1).unwrap_err().to_string();
            assert!(error.contains("parameter w") && error.contains("[2, 3]"), "{error}");
        }
        assert!(sgd(&parameters, &[], 0.1, 1).is_err());
        assert!(sgd(&parameters, &[ones(&[2, 3], DType::F32)], 0.1, 0).is_err());
        assert_eq!(bits(&parameters), before);
    }

    #[test]
    fn a_wrong_gradient_leaves_the_parameters_before_it_as_they_were() {
        let parameter =
            |name| init::normal(name, &[2, 3], 1.0, 1, DType::F32, &Device::Cpu).unwrap();
        let parameters = Parameters::new(vec![parameter("w"), parameter("b")]).unwrap();
        let before = bits(&parameters);
        let ones = |shape: &[usize]| Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap();
        let error = sgd(&parameters, &[ones(&[2, 3]), ones(&[3])], 0.1, 1).unwrap_err().to_string();
        assert!(error.contains("parameter b"), "{error}");
        assert_eq!(bits(&parameters), before);
    }
}

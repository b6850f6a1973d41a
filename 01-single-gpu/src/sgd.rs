//! Stochastic gradient descent.
//!
//! A parameter is updated where it lies, in one walk over it and its gradient: 12 bytes of memory traffic and two
//! operations for each element in f32. As a formula of tensors the same update
//! makes two temporary tensors and a copy, four times the traffic, and fresh memory each time.

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, CudaStorage, InplaceOp2, Layout, Result, Tensor, WithDType, bail};
use rayon::prelude::*;
use tracing::info_span;

use crate::ops::element::cpu_elements;
use crate::ops::gpu::{self, Operand};
use crate::ops::simd::vectorised;
use crate::ops::{BLOCK, Element};
use crate::parameters::{Parameter, Parameters};
use crate::report::trace::COMPUTE;

/// parameter −= learning_rate · gradient / batch_size, for every parameter.
///
/// `gradients` are *sums* over the samples of the whole batch, in the order of `parameters`, and
/// `batch_size` counts the whole batch: all devices' samples, not one shard's. The update divides by it, and
/// nothing before the update divides.
///
/// Whatever shares a parameter's memory sees the update; a
/// [snapshot](Parameters::snapshot) does not.
///
/// # Errors
///
/// Those of [`check_gradients`]; then no parameter was changed.
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
    // ANCHOR: update
    let step = learning_rate / batch_size as f64;
    for (Parameter { value, .. }, gradient) in parameters.iter().zip(gradients) {
        descend(value, gradient, step)?;
    }
    // ANCHOR_END: update
    Ok(())
}

/// Makes sure, before anything is changed, that an update can be made: there is a gradient for each of the
/// `parameters`, named, of its shape and dtype, and there are `samples` to divide by.
///
/// # Errors
///
/// When not: the message names the first parameter that has no fitting gradient.
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
        if !are_alike(value, gradient) {
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

fn are_alike(a: &Tensor, b: &Tensor) -> bool {
    a.shape() == b.shape() && a.dtype() == b.dtype()
}

/// value −= step · direction, in place.
///
/// # Errors
///
/// When the two differ in shape or dtype.
pub fn descend(value: &Tensor, direction: &Tensor, step: f64) -> Result<()> {
    if !are_alike(value, direction) {
        bail!(
            "sgd: {:?} {:?} cannot descend along {:?} {:?}",
            value.dtype(),
            value.dims(),
            direction.dtype(),
            direction.dims()
        );
    }
    value.inplace_op2(&direction.contiguous()?, &Descend(step))
}

/// velocity ← momentum · velocity + (share · gradient + decay · value), in place, for tensors on a GPU: what momentum
/// asks of it, as storage with layouts. `constants` are momentum, share and decay.
///
/// # Errors
///
/// When they are not contiguous, not of one type and size, or not on one GPU.
pub fn accelerate_on_gpu(
    velocity: (&mut CudaStorage, &Layout),
    (gradient, gradient_layout): (&CudaStorage, &Layout),
    (value, value_layout): (&CudaStorage, &Layout),
    constants: [f64; 3],
) -> Result<()> {
    let (gpu, gradient) = (gradient.device(), Operand::new(gradient, gradient_layout)?);
    gpu::update::accelerate(gpu, velocity, gradient, Operand::new(value, value_layout)?, constants)
}

/// value −= gradient · step, in place.
struct Descend(f64);

impl InplaceOp2 for Descend {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn cpu_fwd(
        &self,
        value: &mut CpuStorage,
        value_layout: &Layout,
        gradient: &CpuStorage,
        gradient_layout: &Layout,
    ) -> Result<()> {
        let Some((start, end)) = value_layout.contiguous_offsets() else {
            bail!("sgd: a parameter must be contiguous, got strides {:?}", value_layout.stride());
        };
        match value {
            CpuStorage::F32(value) => walk(
                &mut value[start..end],
                cpu_elements(gradient, gradient_layout)?,
                WithDType::from_f64(self.0),
            ),
            CpuStorage::F64(value) => {
                walk(&mut value[start..end], cpu_elements(gradient, gradient_layout)?, self.0)
            }
            _ => bail!("sgd: works on f32 and f64"),
        }
        Ok(())
    }

    fn cuda_fwd(
        &self,
        value: &mut CudaStorage,
        value_layout: &Layout,
        gradient: &CudaStorage,
        gradient_layout: &Layout,
    ) -> Result<()> {
        let (gpu, gradient) = (gradient.device(), Operand::new(gradient, gradient_layout)?);
        gpu::update::descend(gpu, (value, value_layout), gradient, self.0)
    }
}

/// The product is rounded before it is subtracted, as in a formula of tensors: both give the same bits.
fn walk<T: Element>(value: &mut [T], gradient: &[T], step: T) {
    let blocks = value.par_chunks_mut(BLOCK).zip(gradient.par_chunks(BLOCK));
    blocks.for_each(|(value, gradient)| {
        vectorised(
            #[inline(always)]
            || {
                for (value, &gradient) in value.iter_mut().zip(gradient) {
                    *value -= gradient * step;
                }
            },
        );
    });
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use rayon::ThreadPoolBuilder;

    use super::*;
    use crate::init;
    use crate::parameters::overwrite;

    fn formula(value: &Tensor, gradient: &Tensor, step: f64) -> Result<()> {
        overwrite(value, &value.detach().sub(&(gradient * step)?)?)
    }

    fn parameters(shape: &[usize], dtype: DType) -> Parameters {
        Parameters::new(vec![init::normal("w", shape, 1.0, 1, dtype, &Device::Cpu).unwrap()])
            .unwrap()
    }

    fn bits(parameters: &Parameters) -> Vec<u64> {
        let value = parameters.get("w").unwrap().to_dtype(DType::F64).unwrap();
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
            formula(expected.get("w").unwrap(), &gradient, 0.1 / 7.0).unwrap();
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

    #[test]
    fn a_direction_of_another_shape_or_dtype_is_refused() {
        let parameters = parameters(&[2, 3], DType::F32);
        let before = bits(&parameters);
        let ones = |shape: &[usize], dtype| Tensor::ones(shape, dtype, &Device::Cpu).unwrap();
        for wrong in [ones(&[3], DType::F32), ones(&[3, 2], DType::F32), ones(&[2, 3], DType::F64)]
        {
            let error = descend(parameters.get("w").unwrap(), &wrong, 0.1).unwrap_err();
            assert!(error.to_string().contains("F32 [2, 3] cannot descend along"), "{error}");
        }
        assert_eq!(bits(&parameters), before);
    }
}

//! Updates of tensors in place: the kernels of stochastic gradient descent.
//!
//! A kernel updates a tensor in place, in one pass over its elements and its gradient. In f32 this costs 12 bytes of memory
//! traffic for each element, a quarter of a formula of tensors. On a GPU eight tensors share one launch.

use candle_core::{CpuStorage, InplaceOp2, InplaceOp3, Layout, Result, Tensor, WithDType, bail};
use rayon::prelude::*;

use crate::element::cpu_elements;
use crate::simd::vectorised;
use crate::{BLOCK, Element};

/// Updates one tensor in place: value −= step · direction.
pub fn sgd_step(value: &Tensor, direction: &Tensor, step: f64) -> Result<()> {
    sgd_step_all([(value, direction)], step)
}

/// Updates several tensors in place, each with its direction: value −= step · direction. Fails when
/// a value and its direction differ in shape or dtype; then no value was changed. Also fails when a
/// value is on another device than the first value, or when the device fails.
pub fn sgd_step_all<'a>(
    pairs: impl IntoIterator<Item = (&'a Tensor, &'a Tensor)>,
    step: f64,
) -> Result<()> {
    let pairs: Vec<_> = pairs.into_iter().collect();
    for (value, direction) in &pairs {
        if value.shape() != direction.shape() || value.dtype() != direction.dtype() {
            bail!(
                "sgd: {:?} {:?} cannot step along {:?} {:?}",
                value.dtype(),
                value.dims(),
                direction.dtype(),
                direction.dims()
            );
        }
    }
    #[cfg(feature = "cuda")]
    if pairs.iter().any(|(value, _)| value.device().is_cuda()) {
        return crate::gpu::update::sgd_step(&pairs, step);
    }
    pairs.iter().try_for_each(|(value, direction)| {
        value.inplace_op2(&direction.contiguous()?, &SgdStep(step))
    })
}

/// Updates all triples of velocity, value and gradient in place.
///
/// First velocity ← momentum · velocity + (share · gradient + decay · value), then value ← value −
/// rate · velocity. `constants` are momentum, share, decay and rate. A momentum or a decay of 0 has
/// no term, as in PyTorch, even where 0 · ∞ would be a NaN. Fails when the three tensors differ in
/// type, size or device.
pub fn momentum_step(slots: &[[&Tensor; 3]], constants: [f64; 4]) -> Result<()> {
    #[cfg(feature = "cuda")]
    if slots.iter().flatten().any(|tensor| tensor.device().is_cuda()) {
        return crate::gpu::update::momentum_step(slots, constants);
    }
    let [momentum, share, decay, rate] = constants;
    slots.iter().try_for_each(|[velocity, value, gradient]| {
        let accelerate = Accelerate([momentum, share, decay]);
        velocity.inplace_op3(&gradient.contiguous()?, &value.detach(), &accelerate)?;
        sgd_step(value, velocity, rate)
    })
}

/// The operation velocity ← momentum · velocity + (share · gradient + decay · value), in place.
struct Accelerate([f64; 3]);

impl Accelerate {
    fn walk<T: WithDType>(&self, velocity: &mut [T], gradient: &[T], value: &[T]) {
        let [momentum, share, decay] = self.0.map(T::from_f64);
        let term = |factor: T, of: T| if factor == T::zero() { T::zero() } else { of * factor };
        let blocks = velocity.par_chunks_mut(BLOCK).zip(gradient.par_chunks(BLOCK));
        blocks.zip(value.par_chunks(BLOCK)).for_each(|((velocity, gradient), value)| {
            for ((velocity, &gradient), &value) in velocity.iter_mut().zip(gradient).zip(value) {
                *velocity = term(momentum, *velocity) + (gradient * share + term(decay, value));
            }
        });
    }
}

impl InplaceOp3 for Accelerate {
    fn name(&self) -> &'static str {
        "momentum"
    }

    fn cpu_fwd(
        &self,
        velocity: &mut CpuStorage,
        velocity_layout: &Layout,
        gradient: &CpuStorage,
        gradient_layout: &Layout,
        value: &CpuStorage,
        value_layout: &Layout,
    ) -> Result<()> {
        let Some((start, end)) = velocity_layout.contiguous_offsets() else {
            bail!("momentum: a velocity must be contiguous");
        };
        match velocity {
            CpuStorage::F32(velocity) => self.walk(
                &mut velocity[start..end],
                cpu_elements(gradient, gradient_layout)?,
                cpu_elements(value, value_layout)?,
            ),
            CpuStorage::F64(velocity) => self.walk(
                &mut velocity[start..end],
                cpu_elements(gradient, gradient_layout)?,
                cpu_elements(value, value_layout)?,
            ),
            _ => bail!("momentum: works on f32 and f64"),
        }
        Ok(())
    }
}

/// The operation value −= gradient · step, in place.
struct SgdStep(f64);

impl InplaceOp2 for SgdStep {
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
}

/// Updates one value. The product is rounded first, as in a formula of tensors.
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

    use super::*;
    use crate::tests::agreement::noise;

    #[test]
    fn a_direction_of_another_shape_or_dtype_is_refused() {
        let value = noise("w", &[2, 3]).to_dtype(DType::F32).unwrap();
        let before = value.to_vec2::<f32>().unwrap();
        let ones = |shape: &[usize], dtype| Tensor::ones(shape, dtype, &Device::Cpu).unwrap();
        for wrong in [ones(&[3], DType::F32), ones(&[3, 2], DType::F32), ones(&[2, 3], DType::F64)]
        {
            let error = sgd_step(&value, &wrong, 0.1).unwrap_err();
            assert!(error.to_string().contains("F32 [2, 3] cannot step along"), "{error}");
        }
        assert_eq!(value.to_vec2::<f32>().unwrap(), before);
    }

    #[test]
    fn a_momentum_step_is_its_formula() {
        let [momentum, share, decay, rate] = [0.9, 0.25, 1e-2, 0.1];
        for dtype in [DType::F32, DType::F64] {
            let tensors = ["v", "w", "g"].map(|name| noise(name, &[3, 7]).to_dtype(dtype).unwrap());
            let [v, w, g] = &tensors;
            let pull = ((g * share).unwrap() + (w * decay).unwrap()).unwrap();
            let velocity = ((v * momentum).unwrap() + pull).unwrap();
            let value = (w - (&velocity * rate).unwrap()).unwrap();
            momentum_step(&[[v, w, g]], [momentum, share, decay, rate]).unwrap();
            for (found, expected) in [(v, &velocity), (w, &value)] {
                let bits = |tensor: &Tensor| {
                    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>()
                };
                assert_eq!(bits(found).unwrap(), bits(expected).unwrap(), "{dtype:?}");
            }
        }
    }
}

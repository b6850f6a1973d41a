//! Stochastic gradient descent with momentum and weight decay, and the learning rate's course.
//!
//! With g the gradient of the *mean* loss over the global batch, w a parameter, v its velocity:
//!
//! ```text
//! v ← momentum · v + g + decay · w
//! w ← w − rate · v
//! ```
//!
//! PyTorch's convention: v starts as the first g + decay · w, nothing is damped, and the rate is applied
//! to v, so that a change of the rate acts at once (Sutskever et al. 2013 put it inside v).

mod arguments;
mod schedule;

use candle_core::{CpuStorage, InplaceOp3, Layout, Result, Tensor, WithDType, bail};
use devices::move_view;
use harness::report::trace::COMPUTE;
use ops::BLOCK;
use ops::sgd_step::{momentum_step_on_gpu, sgd_step, sgd_step_all};
use rayon::prelude::*;
use serde::Serialize;
use single_gpu::sgd::check_gradients;
use tracing::info_span;

pub use arguments::OptimiserArguments;
pub use schedule::Schedule;

use crate::weights::{Named, Weights};

/// What is constant during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Momentum {
    /// The share of the velocity that is kept from step to step, 0 to 1.
    pub momentum: f64,
    /// How strongly weights are pulled towards 0.
    pub weight_decay: f64,
}

/// What stage 1's options leave open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Extras {
    /// Momentum and weight decay.
    pub constants: Momentum,
    /// Steps over which the learning rate rises.
    pub warm_up: usize,
}

/// The optimiser of one replica.
#[derive(Debug)]
pub struct Sgd {
    constants: Momentum,
    /// In the order of the parameters; empty before the first step, and always where both constants are 0.
    velocities: Vec<Tensor>,
}

impl Sgd {
    /// An optimiser at rest.
    pub fn new(constants: Momentum) -> Self {
        Self { constants, velocities: Vec::new() }
    }

    /// One update. `gradients` are *sums* over the `samples` of the global batch, in the order of the
    /// parameters. The update divides by `samples`, and nothing before it does.
    ///
    /// # Errors
    ///
    /// Those of [`check_gradients`], and when the optimiser has velocities that do not fit the weights: then nothing was
    /// changed.
    pub fn step(
        &mut self,
        weights: &Weights,
        gradients: &[Tensor],
        rate: f64,
        samples: usize,
    ) -> Result<()> {
        let parameters = weights.parameters.iter();
        let named = parameters.map(|Named { name, tensor }| (name.as_str(), tensor));
        check_gradients(named, gradients, samples)?;
        let _span = info_span!(target: COMPUTE, "update").entered();
        self.begin(weights)?;
        let Momentum { momentum, weight_decay } = self.constants;
        let share = 1.0 / samples as f64;
        let values = weights.parameters.iter().map(|named| &named.tensor);
        if self.velocities.is_empty() {
            return sgd_step_all(values.zip(gradients), rate * share);
        }
        let slots = values.zip(gradients).zip(&self.velocities);
        if self.velocities.iter().any(|velocity| velocity.device().is_cuda()) {
            let slots: Vec<_> = slots.map(|((w, gradient), v)| [v, w, gradient]).collect();
            return momentum_step_on_gpu(&slots, [momentum, share, weight_decay, rate]);
        }
        let accelerate = Accelerate { momentum, share, weight_decay };
        for ((tensor, gradient), velocity) in slots {
            accelerate.apply(velocity, gradient, tensor)?;
            sgd_step(tensor, velocity, rate)?;
        }
        Ok(())
    }

    /// Makes the velocities, at rest, if there are to be any and they are missing.
    ///
    /// # Errors
    ///
    /// When there is no memory for them, or when they do not fit the weights: as many, of the same shapes and types.
    pub(crate) fn begin(&mut self, weights: &Weights) -> Result<()> {
        if self.velocities.is_empty() && self.constants != Momentum::default() {
            let zeros = weights.parameters.iter().map(|named| named.tensor.detach().zeros_like());
            self.velocities = zeros.collect::<Result<_>>()?;
        }
        let (mine, theirs) = (&self.velocities, &weights.parameters);
        let all_fit = mine.len() == theirs.len()
            && mine.iter().zip(theirs).all(|(velocity, named)| fits(velocity, named));
        if !mine.is_empty() && !all_fit {
            bail!(
                "this optimiser's velocities do not fit: it has made steps of another network, and each needs its own"
            );
        }
        Ok(())
    }

    /// The state between two steps, by name: what a checkpoint has to keep.
    pub fn velocities(&self, weights: &Weights) -> Vec<(String, Tensor)> {
        let named = weights.parameters.iter().zip(&self.velocities);
        named.map(|(parameter, velocity)| (parameter.name.clone(), velocity.clone())).collect()
    }

    /// Puts a state back: all velocities, or none for an optimiser at rest.
    ///
    /// # Errors
    ///
    /// When they are not one for each parameter, of its shape and type.
    pub fn set_velocities(
        &mut self,
        weights: &Weights,
        velocities: &[(String, Tensor)],
    ) -> Result<()> {
        if velocities.is_empty() {
            self.velocities.clear();
            return Ok(());
        }
        let find = |named: &Named| {
            let found = velocities.iter().find(|(name, _)| *name == named.name);
            match found {
                Some((_, velocity)) if fits(velocity, named) => {
                    move_view(&velocity.force_contiguous()?, named.tensor.device())
                }
                _ => bail!("there is no velocity for parameter {}", named.name),
            }
        };
        if velocities.len() != weights.parameters.len() {
            bail!("{} velocities for {} parameters", velocities.len(), weights.parameters.len());
        }
        self.velocities = weights.parameters.iter().map(find).collect::<Result<_>>()?;
        Ok(())
    }
}

/// Whether a velocity is of the parameter's shape and type.
fn fits(velocity: &Tensor, Named { tensor, .. }: &Named) -> bool {
    (velocity.shape(), velocity.dtype()) == (tensor.shape(), tensor.dtype())
}

/// velocity ← momentum · velocity + share · gradient + decay · value, in place.
struct Accelerate {
    momentum: f64,
    share: f64,
    weight_decay: f64,
}

impl Accelerate {
    fn apply(&self, velocity: &Tensor, gradient: &Tensor, value: &Tensor) -> Result<()> {
        let (gradient, value) = (gradient.contiguous()?, value.detach());
        velocity.inplace_op3(&gradient, &value, self)
    }

    fn walk<T: WithDType>(&self, velocity: &mut [T], gradient: &[T], value: &[T]) {
        let [momentum, share, decay] =
            [self.momentum, self.share, self.weight_decay].map(T::from_f64);
        let blocks = velocity.par_chunks_mut(BLOCK).zip(gradient.par_chunks(BLOCK));
        blocks.zip(value.par_chunks(BLOCK)).for_each(|((velocity, gradient), value)| {
            for ((velocity, &gradient), &value) in velocity.iter_mut().zip(gradient).zip(value) {
                *velocity = *velocity * momentum + (gradient * share + value * decay);
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
        let range = |layout: &Layout| match layout.contiguous_offsets() {
            Some((start, end)) => Ok(start..end),
            None => bail!("momentum: a contiguous tensor was expected"),
        };
        let [own, of_gradient, of_value] =
            [range(velocity_layout)?, range(gradient_layout)?, range(value_layout)?];
        match (velocity, gradient, value) {
            (CpuStorage::F32(velocity), CpuStorage::F32(gradient), CpuStorage::F32(value)) => {
                self.walk(&mut velocity[own], &gradient[of_gradient], &value[of_value]);
            }
            (CpuStorage::F64(velocity), CpuStorage::F64(gradient), CpuStorage::F64(value)) => {
                self.walk(&mut velocity[own], &gradient[of_gradient], &value[of_value]);
            }
            _ => bail!("momentum: works on f32 and f64"),
        }
        Ok(())
    }
}

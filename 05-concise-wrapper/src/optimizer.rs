//! SGD with momentum and weight decay, AdamW, and the learning rate's schedule. All formulas are PyTorch's.
//!
//! An optimizer belongs to one replica. Its gradients are *sums* over the samples of a global batch, and its update divides by
//! the number of samples, once.

use candle_core::{Result, Tensor, bail};
use clap::Args;
use devices::move_view;
use harness::cli::{number, whole};
use harness::report::trace::COMPUTE;
use ops::update::{momentum_step, overwrite, sgd_step_all};
use single_gpu::sgd::check_gradients;
use tracing::info_span;

use crate::weights::{Named, Weights};

/// The constants of SGD.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq)]
#[command(next_help_heading = "What to train")]
pub struct Momentum {
    /// The share of the velocity that is kept from step to step
    #[arg(long, hide_short_help = true, default_value_t = 0.0, value_name = "SHARE",
          value_parser = number(0.0..1.0, "momentum is a share from 0 to below 1, such as 0.9"))]
    pub momentum: f64,

    /// How strongly weights are pulled towards 0
    #[arg(long, hide_short_help = true, default_value_t = 0.0, value_name = "DECAY",
          value_parser = number(0.0..=1.0, "weight decay is a number from 0 to 1, such as 0.0005"))]
    pub weight_decay: f64,
}

/// The flags of an update with momentum and a warm-up.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq)]
#[command(next_help_heading = "What to train")]
pub struct Extras {
    /// Momentum and weight decay.
    #[command(flatten)]
    pub constants: Momentum,

    /// Steps over which the learning rate rises to its full height
    #[arg(long, hide_short_help = true, default_value = "0", value_name = "STEPS",
          value_parser = whole::<usize>(0..=u32::MAX.into()))]
    pub warm_up: usize,
}

// ANCHOR: sgd
/// A learning rate that rises in equal steps to its full height, and stays there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The full rate.
    pub rate: f64,
    /// The number of steps until the full rate. 0 and 1 make the rate constant.
    pub warm_up: usize,
}

impl Schedule {
    /// The rate of a step, counted from 0 over the whole run.
    pub fn rate(&self, step: usize) -> f64 {
        let rises = step + 1 < self.warm_up;
        if rises { self.rate * (step + 1) as f64 / self.warm_up as f64 } else { self.rate }
    }
}

/// The linear scaling rule: k times the batch, k times the rate (Goyal et al., "Accurate, Large Minibatch SGD", 2017). The rule
/// holds while the gradients hardly change over k small steps.
pub fn scaled_rate(rate: f64, batch: usize, reference_batch: usize) -> f64 {
    rate * batch as f64 / reference_batch as f64
}

/// Stochastic gradient descent with momentum and weight decay.
///
/// With g the gradient of the *mean* loss over the global batch, w a parameter and v its velocity:
///
/// ```text
/// v ← momentum · v + g + decay · w
/// w ← w − rate · v
/// ```
///
/// The rate is outside of v, so a new rate acts at once. Sutskever et al. (2013) put the rate inside v.
#[derive(Debug)]
pub struct Sgd {
    constants: Momentum,
    /// In the order of the parameters. Empty before the first step, and always if both constants are 0.
    velocities: Vec<Tensor>,
}

impl Sgd {
    /// An optimizer without velocities.
    pub fn new(constants: Momentum) -> Self {
        Self { constants, velocities: Vec::new() }
    }

    /// Makes velocities of zeros, if the constants need some. Fails when there are velocities that do not fit the weights.
    pub(crate) fn begin(&mut self, weights: &Weights) -> Result<()> {
        let is_plain = self.constants == Momentum::default() && self.velocities.is_empty();
        if is_plain { Ok(()) } else { begin(&mut self.velocities, weights) }
    }

    /// The velocities by the names of their parameters: the state that a checkpoint saves. They share their memory.
    pub fn velocities(&self, weights: &Weights) -> Vec<(String, Tensor)> {
        let names = weights.parameters.iter().map(|parameter| parameter.name.clone());
        names.zip(self.velocities.iter().cloned()).collect()
    }

    /// Restores all velocities, or removes them if the list is empty. Fails when there is not one velocity for each
    /// parameter, of its shape and type.
    pub fn set_velocities(&mut self, weights: &Weights, all: &[(String, Tensor)]) -> Result<()> {
        let parameters = if all.is_empty() { &[][..] } else { &weights.parameters };
        if all.len() != parameters.len() {
            bail!("{} velocities for {} parameters", all.len(), parameters.len());
        }
        let restored = parameters.iter().map(|parameter| {
            let fits = |(name, v): &&(_, _)| *name == parameter.name && fits((v, parameter));
            match all.iter().find(fits) {
                Some((_, v)) => move_view(&v.force_contiguous()?, parameter.tensor.device()),
                None => bail!("there is no velocity for parameter {}", parameter.name),
            }
        });
        self.velocities = restored.collect::<Result<_>>()?;
        Ok(())
    }
    // ANCHOR_END: sgd

    // ANCHOR: step
    /// Updates the weights. `gradients` are sums over `samples` samples, in the order of the parameters. Fails when the
    /// gradients or the velocities do not fit the weights. Then no weight was changed.
    pub fn step(
        &mut self,
        weights: &Weights,
        gradients: &[Tensor],
        rate: f64,
        samples: usize,
    ) -> Result<()> {
        check(weights, gradients, samples)?;
        let _span = info_span!(target: COMPUTE, "update").entered();
        self.begin(weights)?;
        let share = 1.0 / samples as f64;
        let values = weights.parameters.iter().map(|named| &named.tensor);
        if self.velocities.is_empty() {
            return sgd_step_all(values.zip(gradients), rate * share);
        }
        let slots = values.zip(gradients).zip(&self.velocities);
        let slots: Vec<_> = slots.map(|((w, gradient), v)| [v, w, gradient]).collect();
        let Momentum { momentum, weight_decay } = self.constants;
        momentum_step(&slots, [momentum, share, weight_decay, rate])
    }
    // ANCHOR_END: step
}

// ANCHOR: adamw
/// Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019).
///
/// With g the gradient of the *mean* loss over the global batch, w a parameter, and t the number of the step, from 1:
///
/// ```text
/// w ← w − rate · decay · w
/// m ← β₁ · m + (1 − β₁) · g
/// v ← β₂ · v + (1 − β₂) · g²
/// w ← w − rate · (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)
/// ```
///
/// The default has PyTorch's constants, and has made no step.
#[derive(Clone, Debug)]
pub struct AdamW {
    /// β₁ and β₂: the shares of m and of v that are kept from step to step.
    pub betas: [f64; 2],
    /// ε keeps the denominator above 0.
    pub epsilon: f64,
    /// How strongly weights are pulled towards 0. Without decay, AdamW is Adam.
    pub weight_decay: f64,
    /// The number of steps so far.
    pub steps: u32,
    /// m and v of each parameter, in the order of the parameters. Empty before the first step.
    pub means: [Vec<Tensor>; 2],
}

impl Default for AdamW {
    fn default() -> Self {
        let (betas, means) = ([0.9, 0.999], Default::default());
        Self { betas, epsilon: 1e-8, weight_decay: 0.01, steps: 0, means }
    }
}

impl AdamW {
    /// Updates the weights, like [`Sgd::step`].
    pub fn step(
        &mut self,
        weights: &Weights,
        gradients: &[Tensor],
        rate: f64,
        samples: usize,
    ) -> Result<()> {
        check(weights, gradients, samples)?;
        let _span = info_span!(target: COMPUTE, "update").entered();
        self.means.iter_mut().try_for_each(|means| begin(means, weights))?;
        self.steps += 1;
        let ([beta1, beta2], [means, squares]) = (self.betas, &mut self.means);
        let corrected = |beta: f64| 1.0 - beta.powf(self.steps.into());
        let slots = weights.parameters.iter().zip(gradients).zip(means).zip(squares);
        for (((Named { tensor: w, .. }, gradient), m), v) in slots {
            let g = (gradient / samples as f64)?;
            *m = ((&*m * beta1)? + (&g * (1.0 - beta1))?)?;
            *v = ((&*v * beta2)? + (g.sqr()? * (1.0 - beta2))?)?;
            let deviation = (&*v / corrected(beta2))?.sqrt()?;
            let direction = ((&*m / corrected(beta1))? / (deviation + self.epsilon)?)?;
            let decayed = (w.detach() * (1.0 - rate * self.weight_decay))?;
            overwrite(w, &(decayed - (direction * rate)?)?)?;
        }
        Ok(())
    }
}

fn check(weights: &Weights, gradients: &[Tensor], samples: usize) -> Result<()> {
    let named = weights.parameters.iter().map(|named| (named.name.as_str(), &named.tensor));
    check_gradients(named, gradients, samples)
}

/// Makes a state of zeros before the first step. Fails when the state does not fit the parameters.
fn begin(state: &mut Vec<Tensor>, weights: &Weights) -> Result<()> {
    if state.is_empty() {
        let zeros = weights.parameters.iter().map(|named| named.tensor.detach().zeros_like());
        *state = zeros.collect::<Result<_>>()?;
    }
    if state.len() != weights.parameters.len() || !state.iter().zip(&weights.parameters).all(fits) {
        bail!("this optimizer's state is of another network: each network needs its own optimizer");
    }
    Ok(())
}

/// Whether a tensor of the state has the shape and the type of its parameter.
fn fits((state, Named { tensor, .. }): (&Tensor, &Named)) -> bool {
    (state.shape(), state.dtype()) == (tensor.shape(), tensor.dtype())
}
// ANCHOR_END: adamw

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;

    #[test]
    fn a_rate_rises_in_equal_steps_and_stays() {
        let rates = |warm_up| {
            (0..6).map(move |step| Schedule { rate: 0.8, warm_up }.rate(step)).collect::<Vec<_>>()
        };
        assert_eq!(rates(4), [0.2, 0.4, 0.8 * 3.0 / 4.0, 0.8, 0.8, 0.8]);
        assert_eq!(rates(0), [0.8; 6]);
        assert_eq!(rates(1), [0.8; 6]);
    }

    #[test]
    fn twice_the_batch_twice_the_rate() {
        assert_eq!(scaled_rate(0.1, 512, 256), 0.2);
    }

    /// The weights of the fixtures, as two parameters.
    fn weights() -> Weights {
        let parameter = |name: &str, values: &[f64]| {
            let tensor = Tensor::new(values, &Device::Cpu).unwrap();
            Named { name: name.to_owned(), tensor: Var::from_tensor(&tensor).unwrap().into_inner() }
        };
        let parameters = vec![parameter("a", &[0.5, -1.25]), parameter("b", &[2.0])];
        Weights { parameters, buffers: Vec::new(), precision: DType::F64.into() }
    }

    fn values(weights: &Weights) -> Vec<f64> {
        let values = weights.parameters.iter().map(|named| named.tensor.to_vec1::<f64>().unwrap());
        values.flatten().collect()
    }

    fn gradients([first, second, third]: [f64; 3]) -> Vec<Tensor> {
        let tensor = |values: &[f64]| Tensor::new(values, &Device::Cpu).unwrap();
        vec![tensor(&[first, second]), tensor(&[third])]
    }

    /// Sums over four samples, step by step.
    const SUMS: [[f64; 3]; 3] = [[2.0, -4.0, 0.5], [-1.0, 3.0, 0.25], [4.0, 1.0, -8.0]];

    /// PyTorch's formula, in 40 decimal digits, with a rate of 0.1 and the default options.
    const ADAMW: [[f64; 3]; 3] = [
        [0.399_500_002, -1.148_750_001, 1.898_000_007_999_999_5],
        [0.372_466_798_705_846_15, -1.138_668_750_359_535_4, 1.802_884_053_545_268_2],
        [0.306_283_172_876_383_8, -1.143_297_585_096_303_6, 1.859_788_974_016_176_4],
    ];

    fn assert_close(found: &[f64], expected: &[f64]) {
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-14 * b.abs();
        assert!(found.iter().zip(expected).all(close), "{found:?} is not {expected:?}");
    }

    #[test]
    fn adamw_follows_pytorchs_formula() {
        let weights = weights();
        let mut adamw = AdamW::default();
        for (sums, expected) in SUMS.into_iter().zip(ADAMW) {
            adamw.step(&weights, &gradients(sums), 0.1, 4).unwrap();
            assert_close(&values(&weights), &expected);
        }
    }

    /// With one gradient in all steps, the corrected means are g and g².
    #[test]
    fn under_a_constant_gradient_adam_moves_by_the_rate() {
        let (weights, before) = (weights(), values(&weights()));
        let mut adam = AdamW { epsilon: 0.0, weight_decay: 0.0, ..AdamW::default() };
        for step in 1..=50 {
            adam.step(&weights, &gradients([3.0, -0.001, 700.0]), 0.01, 7).unwrap();
            let moved = 0.01 * f64::from(step);
            let expected = [before[0] - moved, before[1] + moved, before[2] - moved];
            let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
            assert!(values(&weights).iter().zip(&expected).all(close), "step {step}");
        }
    }

    #[test]
    fn adamw_goes_on_from_its_state() {
        let weights = weights();
        let mut first = AdamW::default();
        first.step(&weights, &gradients(SUMS[0]), 0.1, 4).unwrap();
        let (steps, means) = (first.steps, first.means.clone());
        let mut second = AdamW { steps, means, ..AdamW::default() };
        second.step(&weights, &gradients(SUMS[1]), 0.1, 4).unwrap();
        assert_close(&values(&weights), &ADAMW[1]);
        for mean in [0, 1] {
            let mut other = first.clone();
            other.means[mean].pop();
            let error = other.step(&weights, &gradients(SUMS[1]), 0.1, 4).unwrap_err().to_string();
            assert!(error.contains("this optimizer's state is of another network"), "{error}");
            assert_close(&values(&weights), &ADAMW[1]);
        }
    }

    #[test]
    fn sgd_goes_on_from_its_velocities() {
        let constants = Momentum { momentum: 0.9, weight_decay: 0.1 };
        let (plain, resumed) = (weights(), weights());
        let mut whole = Sgd::new(constants);
        for sums in SUMS {
            whole.step(&plain, &gradients(sums), 0.1, 4).unwrap();
        }
        let mut first = Sgd::new(constants);
        first.step(&resumed, &gradients(SUMS[0]), 0.1, 4).unwrap();
        let velocities = first.velocities(&resumed);
        let mut second = Sgd::new(constants);
        second.set_velocities(&resumed, &velocities).unwrap();
        for sums in &SUMS[1..] {
            second.step(&resumed, &gradients(*sums), 0.1, 4).unwrap();
        }
        assert_eq!(values(&resumed), values(&plain));
        // v is 0.5 + 0.1 · 0.5 after the first step.
        assert_close(&velocities[0].1.to_vec1().unwrap()[..1], &[0.55]);
        let error = second.set_velocities(&resumed, &velocities[..1]).unwrap_err().to_string();
        assert!(error.contains("1 velocities for 2 parameters"), "{error}");
        let other = [velocities[0].clone(), ("c".to_owned(), velocities[1].1.clone())];
        let error = second.set_velocities(&resumed, &other).unwrap_err().to_string();
        assert!(error.contains("there is no velocity for parameter b"), "{error}");
    }
}

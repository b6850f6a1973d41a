//! Optimizers: SGD with momentum and weight decay, and AdamW. The schedule of the learning rate. All formulas are PyTorch's.
//!
//! An optimizer belongs to one replica. Its gradients are *sums* over the samples of a global batch, and its update divides by
//! the number of samples, once.

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Shape, Tensor, bail};
use clap::Args;
use devices::move_view;
use harness::cli::{number, whole};
use harness::report::trace::COMPUTE;
use ops::update::{Adam, adamw, momentum_step, sgd_step_all};
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

// ANCHOR: optimizer
/// Updates parameters, and keeps the state of each by its name. A step of some parameters uses and changes no other state, so
/// a model may be updated part by part.
pub trait Optimizer {
    /// Updates the parameters. `sums` are the gradients, summed over `count` samples, in the order of the parameters. Fails
    /// when the gradients or the state do not fit the parameters. Then no parameter was changed.
    fn step(&mut self, weights: &Weights, sums: &[Tensor], rate: f64, count: usize) -> Result<()>;

    /// Returns the state of the parameters by name, such as `velocity/conv1.weight`: zeros before the first step. The tensors
    /// may share the memory of the state. Fails when the state does not fit the parameters.
    fn state(&self, weights: &Weights) -> Result<Vec<(String, Tensor)>>;

    /// Keeps these tensors as the state of their parameters.
    fn keep(&mut self, state: Vec<(String, Tensor)>);

    /// Returns the settings that decide the numbers of a run, by name. A checkpoint of other settings is refused.
    fn settings(&self) -> Vec<(&'static str, f64)>;

    /// Replaces the state of the parameters by a copy. Fails when the names, shapes or types are not those of
    /// [`state`](Self::state). Then nothing was changed.
    fn restore(&mut self, weights: &Weights, state: &[(String, Tensor)]) -> Result<()> {
        let mut own = self.state(weights)?;
        if !state.iter().map(kind).eq(own.iter().map(kind)) {
            bail!("{FOREIGN}");
        }
        for ((_, own), (_, given)) in own.iter_mut().zip(state) {
            *own = move_view(&given.force_contiguous()?, own.device())?;
        }
        self.keep(own);
        Ok(())
    }
}

const FOREIGN: &str =
    "this optimizer's state is of another network: each network needs its own optimizer";

/// Returns the name and the tensor of a parameter's state: zeros before the first step. Fails when the tensor has another
/// shape or type than `like`.
fn slot(
    state: &HashMap<String, Tensor>,
    (kind, like): (&str, &Tensor),
    parameter: &Named,
) -> Result<(String, Tensor)> {
    let name = format!("{kind}/{}", parameter.name);
    let tensor = state.get(&name).cloned().map_or_else(|| like.detach().zeros_like(), Ok)?;
    let fits = (tensor.shape(), tensor.dtype()) == (like.shape(), like.dtype());
    if fits { Ok((name, tensor)) } else { bail!("{FOREIGN}") }
}

fn kind((name, tensor): &(String, Tensor)) -> (&str, &Shape, DType) {
    (name, tensor.shape(), tensor.dtype())
}

fn check(weights: &Weights, sums: &[Tensor], count: usize) -> Result<()> {
    let named = weights.parameters.iter().map(|named| (named.name.as_str(), &named.tensor));
    check_gradients(named, sums, count)
}
// ANCHOR_END: optimizer

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
    /// Empty before the first step, and always if both constants are 0.
    velocities: HashMap<String, Tensor>,
}

impl Sgd {
    /// An optimizer without velocities.
    pub fn new(constants: Momentum) -> Self {
        Self { constants, velocities: HashMap::new() }
    }
}
// ANCHOR_END: sgd

// ANCHOR: step
impl Optimizer for Sgd {
    fn step(&mut self, weights: &Weights, sums: &[Tensor], rate: f64, count: usize) -> Result<()> {
        check(weights, sums, count)?;
        let _span = info_span!(target: COMPUTE, "update").entered();
        let (velocities, share) = (self.state(weights)?, 1.0 / count as f64);
        let values = weights.parameters.iter().map(|named| &named.tensor);
        if velocities.is_empty() {
            return sgd_step_all(values.zip(sums), rate * share);
        }
        let slots = values.zip(sums).zip(&velocities);
        let slots: Vec<_> = slots.map(|((w, sum), (_, v))| [v, w, sum]).collect();
        let Momentum { momentum, weight_decay } = self.constants;
        momentum_step(&slots, [momentum, share, weight_decay, rate])?;
        self.keep(velocities);
        Ok(())
    }

    fn state(&self, weights: &Weights) -> Result<Vec<(String, Tensor)>> {
        let is_plain = self.constants == Momentum::default();
        let parameters = if is_plain { &[] } else { &weights.parameters[..] };
        let velocity = |it: &Named| slot(&self.velocities, ("velocity", &it.tensor), it);
        parameters.iter().map(velocity).collect()
    }

    fn keep(&mut self, state: Vec<(String, Tensor)>) {
        self.velocities.extend(state);
    }

    fn settings(&self) -> Vec<(&'static str, f64)> {
        let Momentum { momentum, weight_decay } = self.constants;
        vec![("momentum", momentum), ("weight decay", weight_decay)]
    }
}
// ANCHOR_END: step

// ANCHOR: adamw
/// Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019).
///
/// With g the gradient of the *mean* loss over the global batch, w a parameter, and t the number of its steps:
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
    /// m, v and t of each parameter, by name. Empty before the first step.
    pub moments: HashMap<String, Tensor>,
}

impl Default for AdamW {
    fn default() -> Self {
        let (betas, moments) = ([0.9, 0.999], HashMap::new());
        Self { betas, epsilon: 1e-8, weight_decay: 0.01, moments }
    }
}

impl Optimizer for AdamW {
    fn step(&mut self, weights: &Weights, sums: &[Tensor], rate: f64, count: usize) -> Result<()> {
        check(weights, sums, count)?;
        let _span = info_span!(target: COMPUTE, "update").entered();
        let mut state = self.state(weights)?;
        let slots = weights.parameters.iter().zip(sums).zip(state.as_chunks_mut().0);
        for ((Named { tensor: w, .. }, sum), [(_, m), (_, v), (_, t)]) in slots {
            *t = (&*t + 1.0)?;
            let &mut Self { betas, epsilon, weight_decay: decay, .. } = self;
            let (share, steps) = (1.0 / count as f64, t.to_scalar()?);
            adamw([w, m, v], sum, Adam { share, rate, betas, epsilon, decay, steps })?;
        }
        self.keep(state);
        Ok(())
    }

    fn state(&self, weights: &Weights) -> Result<Vec<(String, Tensor)>> {
        // In CPU memory: a step reads it.
        let count = Tensor::new(0.0, &Device::Cpu)?;
        let moments = |it: &Named| {
            [("mean", &it.tensor), ("square", &it.tensor), ("steps", &count)]
                .map(|kind| slot(&self.moments, kind, it))
        };
        weights.parameters.iter().flat_map(moments).collect()
    }

    fn keep(&mut self, state: Vec<(String, Tensor)>) {
        self.moments.extend(state);
    }

    fn settings(&self) -> Vec<(&'static str, f64)> {
        let ([beta1, beta2], decay) = (self.betas, self.weight_decay);
        let of_adam = [("AdamW's β₁", beta1), ("AdamW's β₂", beta2), ("AdamW's ε", self.epsilon)];
        [&of_adam[..], &[("weight decay", decay)]].concat()
    }
}
// ANCHOR_END: adamw

#[cfg(test)]
mod tests {
    use candle_core::Var;

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

    const MOMENTUM: Momentum = Momentum { momentum: 0.9, weight_decay: 0.1 };

    /// Both optimizers, before the first step.
    fn optimizers() -> [Box<dyn Optimizer>; 2] {
        [Box::new(Sgd::new(MOMENTUM)), Box::new(AdamW::default())]
    }

    /// The bits of the weights, and the bits of the state by name.
    fn bits(weights: &Weights, optimizer: &dyn Optimizer) -> (Vec<f64>, Vec<(String, Vec<f64>)>) {
        let bits = |tensor: Tensor| tensor.flatten_all().unwrap().to_vec1().unwrap();
        let state = optimizer.state(weights).unwrap().into_iter();
        (values(weights), state.map(|(name, tensor)| (name, bits(tensor))).collect())
    }

    #[test]
    fn a_model_may_be_updated_part_by_part() {
        for (mut whole, mut by_parts) in optimizers().into_iter().zip(optimizers()) {
            let (together, apart) = (weights(), weights());
            let parts = [1, 0].map(|part| {
                let parameters = vec![apart.parameters[part].clone()];
                (part, Weights { parameters, ..apart.clone() })
            });
            for sums in SUMS {
                let gradients = gradients(sums);
                whole.step(&together, &gradients, 0.1, 4).unwrap();
                for (part, weights) in &parts {
                    by_parts.step(weights, &gradients[*part..=*part], 0.1, 4).unwrap();
                }
                assert_eq!(bits(&apart, &*by_parts), bits(&together, &*whole));
            }
            // The other parameter is three steps behind.
            let before = bits(&parts[1].1, &*by_parts);
            for sums in SUMS {
                by_parts.step(&parts[0].1, &gradients(sums)[1..], 0.1, 4).unwrap();
            }
            assert_eq!(bits(&parts[1].1, &*by_parts), before);
            assert_ne!(bits(&apart, &*by_parts), bits(&together, &*whole));
            whole.step(&together, &gradients(SUMS[0]), 0.1, 4).unwrap();
            by_parts.step(&parts[1].1, &gradients(SUMS[0])[..1], 0.1, 4).unwrap();
            let first = |weights: &_, of: &dyn Optimizer| bits(weights, of).0[..2].to_vec();
            assert_eq!(first(&apart, &*by_parts), first(&together, &*whole));
        }
    }

    #[test]
    fn an_optimizer_goes_on_from_its_state() {
        for ((mut whole, mut first), mut second) in
            optimizers().into_iter().zip(optimizers()).zip(optimizers())
        {
            let (plain, resumed) = (weights(), weights());
            for sums in SUMS {
                whole.step(&plain, &gradients(sums), 0.1, 4).unwrap();
            }
            first.step(&resumed, &gradients(SUMS[0]), 0.1, 4).unwrap();
            let state = first.state(&resumed).unwrap();
            let refused = |second: &mut dyn Optimizer, state: &[_]| {
                let before = bits(&resumed, second);
                let error = second.restore(&resumed, state).unwrap_err().to_string();
                assert!(error.contains(FOREIGN), "{error}");
                assert_eq!(bits(&resumed, second), before);
            };
            let middle = state.len() / 2;
            refused(&mut *second, &state[..middle]);
            let ((name, tensor), (_, of_another)) = (&state[middle], &state[0]);
            for (name, tensor) in [("c", tensor), (name, of_another)] {
                let mut other = state.clone();
                other[middle] = (name.to_owned(), tensor.clone());
                refused(&mut *second, &other);
            }
            second.restore(&resumed, &state).unwrap();
            // The copy has memory of its own.
            first.step(&weights(), &gradients(SUMS[1]), 0.1, 4).unwrap();
            for sums in &SUMS[1..] {
                second.step(&resumed, &gradients(*sums), 0.1, 4).unwrap();
            }
            assert_eq!(bits(&resumed, &*second), bits(&plain, &*whole));
        }
    }

    #[test]
    fn the_state_of_another_network_is_refused() {
        for mut optimizer in optimizers() {
            let weights = weights();
            optimizer.step(&weights, &gradients(SUMS[0]), 0.1, 4).unwrap();
            let before = bits(&weights, &*optimizer);
            let mut other = weights.clone();
            other.parameters[1].tensor = Tensor::zeros(2, DType::F64, &Device::Cpu).unwrap();
            let gradients = other.parameters.iter().map(|it| it.tensor.ones_like().unwrap());
            let error = optimizer.step(&other, &gradients.collect::<Vec<_>>(), 0.1, 4).unwrap_err();
            assert!(error.to_string().contains(FOREIGN), "{error}");
            assert_eq!(bits(&weights, &*optimizer), before);
        }
    }

    #[test]
    fn state_has_the_names_of_its_parameters() {
        let names = |optimizer: &dyn Optimizer| {
            let state = optimizer.state(&weights()).unwrap();
            state.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let [sgd, adamw] = optimizers();
        assert_eq!(names(&*sgd), ["velocity/a", "velocity/b"]);
        let of_adamw = ["mean/a", "square/a", "steps/a", "mean/b", "square/b", "steps/b"];
        assert_eq!(names(&*adamw), of_adamw);
        assert!(names(&Sgd::new(Momentum::default())).is_empty());
    }
}

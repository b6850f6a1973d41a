//! Mixed precision: layers compute in bf16, and whatever is added up stays in f32.
//!
//! bf16 has f32's eight bits of exponent, and eight binary digits in place of 24. That is enough for an
//! activation, and a GPU's tensor cores multiply such numbers several times as fast. It is not enough for a
//! sum: 1 + 1/256 is 1 again, and so it stays after a thousand such steps. So each number is kept in what it
//! needs (Micikevicius et al., "Mixed Precision Training", ICLR 2018):
//!
//! ```text
//!            forward                              backward                     update
//! f32    W ─┐        images ─┐   ┌─ logits, loss ─┐        ┌─ dW ─→ sum of all ─→ v ─→ W
//!           │ rounded        │   │ exactly        │        │ exactly
//! bf16      └─→ W' ──────────┴─→ conv ─→ …        └─→ … ─→ dW'
//! ```
//!
//! | in bf16 | in f32 |
//! | --- | --- |
//! | images, activations, their gradients | weights, velocities, checkpoints |
//! | convolutions, dense layers, relu, additions | batch norm: statistics, scale, shift, running averages |
//! | the copy W' of the weights, and its gradient | logits, loss, sums of gradients in buckets and by shard |
//!
//! From outside, such a network cannot be told from one in f32: it takes images and gives logits and gradients
//! in f32. So wrappers, optimiser and checkpoints know nothing of bf16.
//!
//! Left out is the other type of 16 bits, f16. It has five bits of exponent, and small gradients vanish in it
//! unless the loss is scaled up first and the gradients down later (the same paper). bf16 has the range of f32:
//! nothing is scaled, and the settings that suit f32 suit it (Kalamkar et al., "A Study of BFLOAT16 for Deep
//! Learning Training", arXiv 1905.12322, 2019).

use std::fmt;

use candle_core::{DType, Result, Tensor};
use devices::DevicePlan;
use ops::cast;
use ops::parameters::overwrite_rounded;

/// What a network is kept in, and what its layers compute in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    weights: DType,
    layers: DType,
}

impl Precision {
    /// The first compute capability of GPUs that compute in bf16: Ampere's.
    pub const BF16_FROM: (i32, i32) = (8, 0);

    /// The element type of weights and their gradients, of images, logits and loss.
    pub fn weights(self) -> DType {
        self.weights
    }

    /// The element type that layers compute in.
    pub fn layers(self) -> DType {
        self.layers
    }

    /// Whether the two differ.
    pub fn is_mixed(self) -> bool {
        self.weights != self.layers
    }

    /// Makes sure that mixed precision is worth while on each of these devices.
    ///
    /// On a CPU the course's layers work as well, only slower than in f32: that is for tests. `candle_nn`'s dense layer does
    /// not.
    ///
    /// # Errors
    ///
    /// [`Unsupported`], of the first device that is no GPU or too old a one.
    pub fn check(self, devices: &DevicePlan) -> std::result::Result<(), Unsupported> {
        if !self.is_mixed() {
            return Ok(());
        }
        devices.slots().iter().try_for_each(|slot| {
            let device = slot.to_string();
            match slot.compute_capability() {
                Ok(capability) => check_capability(device, capability),
                Err(error) => Err(Unsupported::Silent { device, error: error.to_string() }),
            }
        })
    }

    /// Images as the first layer takes them.
    pub(crate) fn images(self, images: &Tensor) -> Result<Tensor> {
        // Otherwise images of a wrong type stay what they are, and are refused by the first layer. What is looked up, such as
        // a word's number, is none of them.
        let rounds = self.is_mixed() && images.dtype().is_float();
        if rounds { cast(images, self.layers) } else { Ok(images.clone()) }
    }

    /// The last layer's logits as the loss takes them.
    pub(crate) fn logits(self, logits: &Tensor) -> Result<Tensor> {
        if self.is_mixed() { cast(logits, self.weights) } else { Ok(logits.clone()) }
    }
}

impl From<DType> for Precision {
    /// With layers that compute in `layers`. Weights are of the same type; beside layers in bf16 they are f32.
    fn from(layers: DType) -> Self {
        let weights = if layers == DType::BF16 { DType::F32 } else { layers };
        Self { weights, layers }
    }
}

impl fmt::Display for Precision {
    /// The layers' type: `f32`, `f64`, `bf16`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.layers.as_str())
    }
}

/// Why a device is no place for bf16.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// It is a slice of the CPU.
    #[error(
        "{0} is a slice of the CPU, where bf16 is slower than f32: use f32, or GPUs of compute capability 8.0 \
         (Ampere) or newer"
    )]
    Cpu(String),
    /// It is a GPU without bf16.
    #[error(
        "{device} has compute capability {major}.{minor}, and bf16 begins with 8.0 (Ampere): use f32 there"
    )]
    Old {
        /// The device.
        device: String,
        /// Its compute capability's first number.
        major: i32,
        /// The second.
        minor: i32,
    },
    /// It does not say what it can do.
    #[error("{device} does not tell its compute capability: {error}")]
    Silent {
        /// The device.
        device: String,
        /// What it said instead.
        error: String,
    },
}

fn check_capability(
    device: String,
    capability: Option<(i32, i32)>,
) -> std::result::Result<(), Unsupported> {
    match capability {
        None => Err(Unsupported::Cpu(device)),
        Some((major, minor)) if (major, minor) < Precision::BF16_FROM => {
            Err(Unsupported::Old { device, major, minor })
        }
        Some(_) => Ok(()),
    }
}

/// The weights that layers use in another type than they are kept in: both, in pairs.
#[derive(Debug, Default)]
pub(crate) struct Copies(Vec<Rounded>);

#[derive(Debug)]
struct Rounded {
    name: String,
    kept: Tensor,
    used: Tensor,
}

impl Copies {
    pub(crate) fn push(&mut self, name: &str, kept: &Tensor, used: &Tensor) {
        self.0.push(Rounded { name: name.to_owned(), kept: kept.clone(), used: used.clone() });
    }

    /// What layers use under this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.iter().find(|copy| copy.name == name).map(|copy| &copy.used)
    }

    // ANCHOR: round
    /// Rounds all weights anew: what was learnt since the last time is in `kept`.
    pub(crate) fn round(&self) -> Result<()> {
        let pairs: Vec<_> = self.0.iter().map(|copy| (&copy.used, &copy.kept)).collect();
        overwrite_rounded(&pairs)
    }
    // ANCHOR_END: round
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bf16_is_kept_in_another_type() {
        for dtype in [DType::F32, DType::F64] {
            let plain = Precision::from(dtype);
            assert_eq!((plain.weights(), plain.layers(), plain.is_mixed()), (dtype, dtype, false));
            assert_eq!(plain.to_string(), dtype.as_str());
        }
        let mixed = Precision::from(DType::BF16);
        assert_eq!((mixed.weights(), mixed.layers()), (DType::F32, DType::BF16));
        assert!(mixed.is_mixed());
        assert_eq!(mixed.to_string(), "bf16");
    }

    #[test]
    fn a_gpu_has_bf16_from_8_0() {
        let told = |capability| {
            let checked = check_capability("cuda:1".to_owned(), capability);
            checked.map_err(|unsupported| unsupported.to_string())
        };
        for new in [(8, 0), (8, 6), (9, 0), (10, 0), (12, 1)] {
            assert_eq!(told(Some(new)), Ok(()));
        }
        for old in [(7, 5), (7, 0), (6, 1)] {
            let text =
                format!("cuda:1 has compute capability {}.{}, and bf16 begins", old.0, old.1);
            assert!(told(Some(old)).unwrap_err().starts_with(&text));
        }
    }

    #[test]
    fn a_cpu_is_refused_for_bf16_alone() {
        let plan = DevicePlan::slices(2).unwrap();
        assert_eq!(Precision::from(DType::F32).check(&plan), Ok(()));
        assert_eq!(Precision::from(DType::F64).check(&plan), Ok(()));
        let refused = Precision::from(DType::BF16).check(&plan).unwrap_err();
        assert_eq!(refused, Unsupported::Cpu("cpu:0 (1 core)".to_owned()));
    }
}

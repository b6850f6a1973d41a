//! Mixed precision: layers compute in bf16, and weights, statistics, losses and all sums stay in f32 (Micikevicius et al.,
//! "Mixed Precision Training", ICLR 2018).
//!
//! bf16 has the eight exponent bits of f32, and 8 significant bits in place of 24. The other type of 16 bits, f16, has five
//! exponent bits: small gradients become zero in f16, unless training scales the loss up and the gradients down. bf16 needs no
//! scaling (Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", arXiv 1905.12322, 2019).

use std::fmt;

use candle_core::{DType, Result, Tensor};
use ops::cast;

// ANCHOR: precision
/// The element type in which the layers of a network compute. It decides the element type of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    layers: DType,
}

impl Precision {
    /// Returns the element type of weights and their gradients, of images, logits and loss.
    pub fn weights(self) -> DType {
        if self.is_mixed() { DType::F32 } else { self.layers }
    }

    /// Returns the element type in which layers compute.
    pub fn layers(self) -> DType {
        self.layers
    }

    /// Whether the two differ.
    pub fn is_mixed(self) -> bool {
        self.layers == DType::BF16
    }

    /// Casts images to the type of the layers. Inputs that an embedding looks up, such as word numbers, keep their type.
    pub fn images(self, images: &Tensor) -> Result<Tensor> {
        // Without mixed precision, the first layer refuses images of another type.
        let rounds = self.is_mixed() && images.dtype().is_float();
        if rounds { cast(images, self.layers) } else { Ok(images.clone()) }
    }

    /// Casts logits to the type of the loss.
    pub fn logits(self, logits: &Tensor) -> Result<Tensor> {
        if self.is_mixed() { cast(logits, self.weights()) } else { Ok(logits.clone()) }
    }
}
// ANCHOR_END: precision

impl From<DType> for Precision {
    fn from(layers: DType) -> Self {
        Self { layers }
    }
}

impl fmt::Display for Precision {
    /// The layers' type: `f32`, `f64`, `bf16`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.layers.as_str())
    }
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
}

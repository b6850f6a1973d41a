//! ResNet-18, for images of 28×28 pixels.
//!
//! ```text
//! [B, 1, 28, 28]
//!   conv 3×3, W planes, batch norm, relu          → [B, W, 28, 28]      no max-pooling after it
//!   group 1: two blocks of W planes               → [B, W, 28, 28]
//!   group 2: two blocks of 2W planes, stride 2    → [B, 2W, 14, 14]
//!   group 3: two blocks of 4W planes, stride 2    → [B, 4W, 7, 7]
//!   group 4: two blocks of 8W planes, stride 2    → [B, 8W, 4, 4]
//!   mean over all pixels                          → [B, 8W]
//!   dense                                         → [B, 10]
//! ```
//!
//! W is 64 (He et al., "Deep Residual Learning for Image Recognition", 2015). A smaller W makes a network of the same structure
//! for a smaller machine. The names are torchvision's, so weights can be exchanged.
//!
//! The convolutions have no bias: the batch norm after a convolution subtracts any constant of a channel.
//!
//! [`Stem`], [`Block`] and [`Head`] are public: stage 6 puts them on several devices.

use candle_core::{ModuleT, Result, Tensor, bail};
use candle_nn::VarBuilder;
use candle_nn::init::{FanInOut, Init, NonLinearity, NormalOrUniform};
use datasets::CLASSES;
use ops::{add_relu, conv2d, global_avg_pool, linear, transpose};
pub use trainer::sizing::WIDTH;

use crate::batch_norm::{BatchNorm, Norms};

// ANCHOR: parts
/// N(0, 2 / fan-out), like torchvision's ResNets. Gradients then have one size from the last layer to the first (He et al.,
/// "Delving deep into rectifiers", 2015).
const HE: Init = Init::Kaiming {
    dist: NormalOrUniform::Normal,
    fan: FanInOut::FanOut,
    non_linearity: NonLinearity::ReLU,
};

/// The number of residual blocks, two in each group.
pub const BLOCKS: usize = 8;

/// ResNet-18: `[B, 1, 28, 28]` → `[B, 10]`.
pub struct ResNet18 {
    stem: Stem,
    blocks: Vec<Block>,
    head: Head,
}
// ANCHOR_END: parts

impl ResNet18 {
    /// Makes a network with `width` planes in the first group.
    // ANCHOR: new
    pub fn new(width: usize, norms: &Norms, vb: &VarBuilder<'_>) -> Result<Self> {
        let stem = Stem::new(width, norms, vb)?;
        let blocks = (0..BLOCKS).map(|number| Block::new(number, width, norms, vb));
        let blocks = blocks.collect::<Result<_>>()?;
        Ok(Self { stem, blocks, head: Head::new(width, vb)? })
    }
    // ANCHOR_END: new
}

impl ModuleT for ResNet18 {
    // ANCHOR: forward
    fn forward_t(&self, images: &Tensor, train: bool) -> Result<Tensor> {
        let mut x = self.stem.forward_t(images, train)?;
        for block in &self.blocks {
            x = block.forward_t(&x, train)?;
        }
        self.head.forward_t(&x, train)
    }
    // ANCHOR_END: forward
}

// ANCHOR: stem
/// The layers before the blocks, `conv1` and `bn1`: `[B, 1, 28, 28]` → `[B, W, 28, 28]`.
pub struct Stem(ConvNorm);

impl Stem {
    /// Makes the stem of a network with `width` planes in the first group. `vb` is the builder of the whole network.
    pub fn new(width: usize, norms: &Norms, vb: &VarBuilder<'_>) -> Result<Self> {
        Ok(Self(ConvNorm::new((1, width, 3), 1, true, norms, vb, ["conv1", "bn1"])?))
    }
}

impl ModuleT for Stem {
    fn forward_t(&self, images: &Tensor, train: bool) -> Result<Tensor> {
        self.0.forward_t(images, train)
    }
}

/// The layers after the blocks, the mean over all pixels and `fc`: `[B, 8W, H, W]` → `[B, 10]`.
pub struct Head {
    /// `[10, 8W]`, like torchvision's.
    weight: Tensor,
    bias: Tensor,
}

impl Head {
    /// Makes the head of a network with `width` planes in the first group. `vb` is the builder of the whole network.
    pub fn new(width: usize, vb: &VarBuilder<'_>) -> Result<Self> {
        let layer = candle_nn::linear(8 * width, CLASSES, vb.pp("fc"))?;
        let (weight, Some(bias)) = (layer.weight(), layer.bias()) else {
            bail!("the last layer has no bias")
        };
        Ok(Self { weight: weight.clone(), bias: bias.clone() })
    }
}

impl ModuleT for Head {
    fn forward_t(&self, x: &Tensor, _train: bool) -> Result<Tensor> {
        linear(&global_avg_pool(x)?, &transpose(&self.weight)?, &self.bias)
    }
}
// ANCHOR_END: stem

// ANCHOR: block_new
/// Two 3×3 convolutions and a short cut around them. The table of the module has the shapes.
pub struct Block {
    conv1: ConvNorm,
    conv2: ConvNorm,
    /// A 1×1 convolution if the block changes the shape. If not, the short cut is x itself.
    downsample: Option<ConvNorm>,
}

impl Block {
    /// Makes a block of a network with `width` planes in the first group. `number` counts all blocks from 0. `vb` is the builder
    /// of the whole network: block 2 has `layer2.0.conv1.weight`.
    pub fn new(number: usize, width: usize, norms: &Norms, vb: &VarBuilder<'_>) -> Result<Self> {
        if number >= BLOCKS {
            bail!("there is no block {number}: ResNet-18 has {BLOCKS}, the first is block 0");
        }
        let (group, of_group) = (number / 2, number % 2);
        let planes = width << group;
        let (inputs, stride) =
            if group > 0 && of_group == 0 { (planes / 2, 2) } else { (planes, 1) };
        let vb = vb.pp(format!("layer{}.{of_group}", group + 1));
        let conv1 = ConvNorm::new((inputs, planes, 3), stride, true, norms, &vb, ["conv1", "bn1"])?;
        let conv2 = ConvNorm::new((planes, planes, 3), 1, false, norms, &vb, ["conv2", "bn2"])?;
        let downsample = (stride > 1).then(|| {
            let vb = vb.pp("downsample");
            ConvNorm::new((inputs, planes, 1), stride, false, norms, &vb, ["0", "1"])
        });
        Ok(Self { conv1, conv2, downsample: downsample.transpose()? })
    }
}
// ANCHOR_END: block_new

impl ModuleT for Block {
    // ANCHOR: block
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let y = self.conv1.forward_t(x, train)?;
        let y = self.conv2.forward_t(&y, train)?;
        let short_cut = match &self.downsample {
            Some(conv) => &conv.forward_t(x, train)?,
            None => x,
        };
        add_relu(&y, short_cut)
    }
    // ANCHOR_END: block
}

// ANCHOR: conv_norm
/// A convolution without bias, a batch norm, and an optional relu. Its padding keeps the size of the image, up to the stride.
struct ConvNorm {
    weight: Tensor,
    stride: usize,
    norm: BatchNorm,
}

impl ConvNorm {
    fn new(
        (inputs, outputs, kernel): (usize, usize, usize),
        stride: usize,
        relu: bool,
        norms: &Norms,
        vb: &VarBuilder<'_>,
        [conv, norm]: [&str; 2],
    ) -> Result<Self> {
        let shape = (outputs, inputs, kernel, kernel);
        let weight = vb.pp(conv).get_with_hints(shape, "weight", HE)?;
        Ok(Self { weight, stride, norm: BatchNorm::new(outputs, relu, norms, &vb.pp(norm))? })
    }

    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let padding = self.weight.dim(2)? / 2;
        self.norm.forward_t(&conv2d(x, &self.weight, None, self.stride, padding)?, train)
    }
}
// ANCHOR_END: conv_norm

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use ops::backward::is_recorded;

    use super::*;
    use crate::Network;

    #[test]
    fn its_backward_pass_is_not_left_to_candle() {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let network =
                Network::new(1, dtype, &Device::Cpu, |vb, norms| ResNet18::new(4, norms, vb))
                    .unwrap();
            let images = Tensor::zeros((2, 1, 28, 28), network.dtype(), &Device::Cpu).unwrap();
            assert!(is_recorded(&network.forward_training(&images).unwrap()), "{dtype:?}");
        }
    }
}

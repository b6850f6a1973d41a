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

use crate::batch_norm::{BatchNorm, Norms};

/// The number of planes of the first group in the original.
pub const WIDTH: usize = 64;

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

/// The layers before the blocks, `conv1` and `bn1`: `[B, 1, 28, 28]` → `[B, W, 28, 28]`.
pub struct Stem {
    conv: Conv,
    norm: BatchNorm,
}

impl Stem {
    /// Makes the stem of a network with `width` planes in the first group. `vb` is the builder of the whole network.
    // ANCHOR: stem
    pub fn new(width: usize, norms: &Norms, vb: &VarBuilder<'_>) -> Result<Self> {
        let conv = Conv::new(1, width, 3, 1, &vb.pp("conv1"))?;
        let norm = BatchNorm::new(width, true, norms, &vb.pp("bn1"))?;
        Ok(Self { conv, norm })
    }
    // ANCHOR_END: stem
}

impl ModuleT for Stem {
    fn forward_t(&self, images: &Tensor, train: bool) -> Result<Tensor> {
        self.norm.forward_t(&self.conv.forward(images)?, train)
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

/// Two 3×3 convolutions and a short cut around them. The table of the module has the shapes.
pub struct Block {
    conv1: Conv,
    bn1: BatchNorm,
    conv2: Conv,
    bn2: BatchNorm,
    /// A 1×1 convolution if the block changes the shape. If not, the short cut is x itself.
    downsample: Option<(Conv, BatchNorm)>,
}

impl Block {
    /// Makes a block of a network with `width` planes in the first group. `number` counts all blocks from 0. `vb` is the builder
    /// of the whole network: block 2 has `layer2.0.conv1.weight`. Fails when there is no such block, or the builder cannot
    /// make the tensors.
    pub fn new(number: usize, width: usize, norms: &Norms, vb: &VarBuilder<'_>) -> Result<Self> {
        if number >= BLOCKS {
            bail!("there is no block {number}: ResNet-18 has {BLOCKS}, the first is block 0");
        }
        let (group, of_group) = (number / 2, number % 2);
        let planes = width << group;
        let (inputs, stride) =
            if group > 0 && of_group == 0 { (planes / 2, 2) } else { (planes, 1) };
        let vb = vb.pp(format!("layer{}.{of_group}", group + 1));
        let conv1 = Conv::new(inputs, planes, 3, stride, &vb.pp("conv1"))?;
        let bn1 = BatchNorm::new(planes, true, norms, &vb.pp("bn1"))?;
        let conv2 = Conv::new(planes, planes, 3, 1, &vb.pp("conv2"))?;
        let bn2 = BatchNorm::new(planes, false, norms, &vb.pp("bn2"))?;
        let downsample = if stride > 1 {
            let vb = vb.pp("downsample");
            let conv = Conv::new(inputs, planes, 1, stride, &vb.pp("0"))?;
            Some((conv, BatchNorm::new(planes, false, norms, &vb.pp("1"))?))
        } else {
            None
        };
        Ok(Self { conv1, bn1, conv2, bn2, downsample })
    }
}

impl ModuleT for Block {
    // ANCHOR: block
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let y = self.bn1.forward_t(&self.conv1.forward(x)?, train)?;
        let y = self.bn2.forward_t(&self.conv2.forward(&y)?, train)?;
        let short_cut = match &self.downsample {
            Some((conv, norm)) => &norm.forward_t(&conv.forward(x)?, train)?,
            None => x,
        };
        add_relu(&y, short_cut)
    }
    // ANCHOR_END: block
}

/// A convolution without bias. Its padding keeps the size of the image, up to the stride.
struct Conv {
    weight: Tensor,
    stride: usize,
    padding: usize,
}

impl Conv {
    fn new(
        inputs: usize,
        outputs: usize,
        kernel: usize,
        stride: usize,
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let weight = vb.get_with_hints((outputs, inputs, kernel, kernel), "weight", HE)?;
        Ok(Self { weight, stride, padding: kernel / 2 })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        conv2d(x, &self.weight, None, self.stride, self.padding)
    }
}

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

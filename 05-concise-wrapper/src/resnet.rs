//! ResNet-18 (He et al., "Deep Residual Learning for Image Recognition", 2015), for images of 28×28 pixels: there is no
//! max-pooling after the first convolution.
//!
//! The first group has W planes, 64 in the original. The names are torchvision's, so weights can be exchanged.

use candle_core::{ModuleT, Result, Tensor, bail};
use candle_nn::VarBuilder;
use candle_nn::init::{FanInOut, Init, NonLinearity, NormalOrUniform};
use datasets::CLASSES;
use ops::{add_relu, conv2d, global_avg_pool, linear, transpose};
pub use trainer::sizing::WIDTH;

use crate::batch_norm::{BatchNorm, Norms};

// ANCHOR: layers
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
    stem: ConvNorm,
    blocks: Vec<Block>,
    head: Head,
}

impl ResNet18 {
    /// Makes a network with `width` planes in the first group.
    pub fn new(width: usize, norms: &Norms, vb: &VarBuilder<'_>) -> Result<Self> {
        let stem = ConvNorm::stem(width, norms, vb)?;
        let blocks = (0..BLOCKS).map(|number| Block::new(number, width, norms, vb));
        let blocks = blocks.collect::<Result<_>>()?;
        Ok(Self { stem, blocks, head: Head::new(width, vb)? })
    }
}

impl ModuleT for ResNet18 {
    fn forward_t(&self, images: &Tensor, train: bool) -> Result<Tensor> {
        let mut x = self.stem.forward_t(images, train)?;
        for block in &self.blocks {
            x = block.forward_t(&x, train)?;
        }
        self.head.forward_t(&x, train)
    }
}

/// A convolution without bias, a batch norm, and an optional relu. Its padding keeps the size of the image, up to the stride.
pub struct ConvNorm {
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

    /// Makes the layers before the blocks, `conv1` and `bn1`: `[B, 1, 28, 28]` → `[B, W, 28, 28]`. Here and below, `width` is
    /// the number of planes in the first group, and `vb` is the builder of the whole network.
    pub fn stem(width: usize, norms: &Norms, vb: &VarBuilder<'_>) -> Result<Self> {
        Self::new((1, width, 3), 1, true, norms, vb, ["conv1", "bn1"])
    }
}

impl ModuleT for ConvNorm {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let padding = self.weight.dim(2)? / 2;
        self.norm.forward_t(&conv2d(x, &self.weight, None, self.stride, padding)?, train)
    }
}

/// The layers after the blocks, the mean over all pixels and `fc`: `[B, 8W, H, W]` → `[B, 10]`.
pub struct Head {
    /// `[10, 8W]`, like torchvision's.
    weight: Tensor,
    bias: Tensor,
}

impl Head {
    /// Makes the layers.
    pub fn new(width: usize, vb: &VarBuilder<'_>) -> Result<Self> {
        let layer = candle_nn::linear(8 * width, CLASSES, vb.pp("fc"))?;
        let Some(bias) = layer.bias() else { bail!("the last layer has no bias") };
        Ok(Self { weight: layer.weight().clone(), bias: bias.clone() })
    }
}

impl ModuleT for Head {
    fn forward_t(&self, x: &Tensor, _train: bool) -> Result<Tensor> {
        linear(&global_avg_pool(x)?, &transpose(&self.weight)?, &self.bias)
    }
}

/// Two 3×3 convolutions and a shortcut around them. The first block of groups 2 to 4 has twice the planes of the group before,
/// and stride 2.
pub struct Block {
    conv1: ConvNorm,
    conv2: ConvNorm,
    /// A 1×1 convolution if the block changes the shape. If not, the shortcut is x itself.
    downsample: Option<ConvNorm>,
}

impl Block {
    /// Makes a block. `number` counts all blocks from 0: block 2 has `layer2.0.conv1.weight`.
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
// ANCHOR_END: layers

impl ModuleT for Block {
    // ANCHOR: block
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let y = self.conv1.forward_t(x, train)?;
        let y = self.conv2.forward_t(&y, train)?;
        let shortcut = match &self.downsample {
            Some(conv) => &conv.forward_t(x, train)?,
            None => x,
        };
        add_relu(&y, shortcut)
    }
    // ANCHOR_END: block
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

//! The networks as lists of layers: a dense stack, LeNet and ResNet-18. Each layer names the cuts of its tensors.

use candle_core::{Result, Tensor, bail};
use candle_nn::VarBuilder;
use candle_nn::init::{Init, ZERO};
use concise_wrapper::batch_norm::Norms;
use concise_wrapper::lenet::init;
use concise_wrapper::resnet::{BLOCKS, Block, ConvNorm, Head};
use datasets::CLASSES;
use itertools::Itertools as _;
use ops::flatten;
use single_gpu::lenet::SHAPES;

use crate::layers::{Layers, ParameterSpec};
use crate::tensor_parallel::convolution::{
    conv2d_relu_pool_by_channel, conv2d_relu_pool_by_filter,
};
use crate::tensor_parallel::linear::{
    linear_by_column, linear_by_row, linear_relu_by_column, linear_relu_by_row,
};
use crate::tensor_parallel::mappings::gather;
use crate::tensor_parallel::{Cut, Group};

// ANCHOR: channels
/// The way in which LeNet's second convolution gets the channels that other ranks have computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// All ranks get all channels, and each computes some of the next ones: at most 10 ranks.
    Gathered,
    /// Each rank computes a term of all next channels, and the terms are summed: at most 20 ranks.
    Summed,
}
// ANCHOR_END: channels

impl Layers {
    // ANCHOR: dense
    /// A dense stack: `[B, …]`, flattened to `[B, widths[0]]`, → `[B, widths[last]]`, with a relu between two layers. Layer
    /// i has a weight `dense{i}.weight` of `[widths[i], widths[i + 1]]` and a bias `dense{i}.bias` of `[widths[i + 1]]`.
    ///
    /// In a group, layers are cut by columns and by rows in turn:
    ///
    /// ```text
    /// widths [784, 512, 256, 128, 10], two ranks
    ///
    /// 0   by columns   [B, 784] → [B, 256] here     relu
    /// 1   by rows      [B, 256] → [B, 256] sum      relu     the same on both ranks
    /// 2   by columns   [B, 256] → [B, 64] here      relu
    /// 3   by rows      [B, 64]  → [B, 10] sum                logits, the same on both ranks
    /// ```
    ///
    /// With an odd number of layers, the last one is cut by columns, and its outputs are gathered. Fails when there are
    /// fewer than two widths, or one is 0.
    pub fn dense(widths: &[usize]) -> Result<Self> {
        let parameters = dense_parameters(widths)?;
        let count = parameters.len();
        let logits = Cut::new(1, widths[count]);
        let mut layers = Self::named(format!("dense stack {}", widths.iter().join("-")));
        for (number, [weight, bias]) in parameters.into_iter().enumerate() {
            let last = number + 1 == count;
            layers = if number.is_multiple_of(2) {
                layers.affine([weight.cut(1), bias.cut(0)], move |x, w, b, group| match last {
                    true => gather(&linear_by_column(&flatten(x)?, w, b, group)?, logits, group),
                    false => linear_relu_by_column(&flatten(x)?, w, b, group),
                })
            } else {
                layers.affine([weight.cut(0), bias], move |x, w, b, group| match last {
                    true => linear_by_row(&flatten(x)?, w, b, group),
                    false => linear_relu_by_row(&flatten(x)?, w, b, group),
                })
            };
        }
        Ok(layers)
    }
    // ANCHOR_END: dense

    // ANCHOR: lenet
    /// LeNet of stage 1: `[B, 1, 28, 28]` → `[B, 10]`, in five layers; its names, shapes and initial weights. A group
    /// gathers the channels of the first convolution.
    pub fn lenet() -> Self {
        Self::lenet_with(Channels::Gathered)
    }

    /// [`lenet`](Self::lenet), with a choice for the channels of a group of k ranks:
    ///
    /// ```text
    ///                 Channels::Gathered                        Channels::Summed
    /// images          [B, 1, 28, 28]                            [B, 1, 28, 28]
    /// convolution 1   by filters   [B, 20/k, 13, 13]            by filters   [B, 20/k, 13, 13]
    ///                 gather       [B, 20, 13, 13]
    /// convolution 2   by filters   [B, 50/k, 4, 4]              by channels  [B, 50, 9, 9] sum → [B, 50, 4, 4]
    /// flatten         [B, 800/k]                                [B, 800]
    /// dense 1         by rows      [B, 128] sum                 by columns   [B, 128/k]
    /// dense 2         by columns   [B, 10/k]                    by rows      [B, 10] sum
    ///                 gather       [B, 10]
    /// ```
    ///
    /// A layer by rows or by channels has a whole bias. The rows of the first dense weight go with the channels that they
    /// belong to, 16 to a channel.
    pub fn lenet_with(channels: Channels) -> Self {
        let spec = |(name, shape): (&str, &[usize])| ParameterSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
            init: init(name),
            cut: None,
        };
        let [w1, b1, w2, b2, w3, b3, w4, b4] = SHAPES.map(spec);
        let (first, second) = (w1.shape[0], w2.shape[0]);
        let blocks = Cut::in_blocks(0, second, w3.shape[0] / second);
        let flatten = |_: &VarBuilder<'_>, _: &Norms| Ok(|x: &Tensor| flatten(x));
        let by_filter = |x: &Tensor, w: &Tensor, b: &Tensor, group: &Group| {
            conv2d_relu_pool_by_filter(x, w, b, 2, group)
        };
        let layers = Self::named("LeNet");
        match channels {
            Channels::Gathered => layers
                .affine([w1.cut(0), b1.cut(0)], move |x, w, b, group| {
                    gather(&by_filter(x, w, b, group)?, Cut::new(1, first), group)
                })
                .affine([w2.cut(0), b2.cut(0)], by_filter)
                .then(flatten)
                .affine([ParameterSpec { cut: Some(blocks), ..w3 }, b3], linear_relu_by_row)
                .affine([w4.cut(1), b4.cut(0)], |x, w, b, group| {
                    gather(&linear_by_column(x, w, b, group)?, Cut::new(1, CLASSES), group)
                }),
            Channels::Summed => layers
                .affine([w1.cut(0), b1.cut(0)], by_filter)
                .affine([w2.cut(1), b2], |x, w, b, group| {
                    conv2d_relu_pool_by_channel(x, w, b, 2, group)
                })
                .then(flatten)
                .affine([w3.cut(1), b3.cut(0)], linear_relu_by_column)
                .affine([w4.cut(0), b4], linear_by_row),
        }
    }
    // ANCHOR_END: lenet

    // ANCHOR: resnet18
    /// ResNet-18 of stage 5: `[B, 1, 28, 28]` → `[B, 10]`, in ten layers: the stem, eight blocks, the head. Its names,
    /// shapes and initial weights; the first group has `width` planes, 64 in the original. No layer can be cut.
    pub fn resnet18(width: usize) -> Self {
        let layers = Self::named(format!("ResNet-18 of width {width}"));
        let stem = layers.then(move |vb, norms| ConvNorm::stem(width, norms, vb));
        let blocks = (0..BLOCKS).fold(stem, |layers, number| {
            layers.then(move |vb, norms| Block::new(number, width, norms, vb))
        });
        blocks.then(move |vb, _| Head::new(width, vb))
    }
    // ANCHOR_END: resnet18
}

// ANCHOR: dense_parameters
/// Weight and bias of each layer of a stack: weights from `N(0, 2 / inputs)` (He et al., "Delving deep into rectifiers",
/// 2015), and zeros. Fails when there are fewer than two widths, or one is 0.
fn dense_parameters(widths: &[usize]) -> Result<Vec<[ParameterSpec; 2]>> {
    if widths.len() < 2 || widths.contains(&0) {
        bail!("a dense stack has at least two widths, none of them 0; got {widths:?}");
    }
    let layer = |(number, pair): (usize, &[usize])| {
        let tensor = |kind: &str, shape: &[usize], init| {
            let name = format!("dense{number}.{kind}");
            ParameterSpec { name, shape: shape.to_vec(), init, cut: None }
        };
        let normal = Init::Randn { mean: 0.0, stdev: (2.0 / pair[0] as f64).sqrt() };
        [tensor("weight", pair, normal), tensor("bias", &pair[1..], ZERO)]
    };
    Ok(widths.windows(2).enumerate().map(layer).collect())
}
// ANCHOR_END: dense_parameters

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_planned_layer_by_layer() {
        let layers = dense_parameters(&[8, 50, 3]).unwrap();
        let planned = layers.iter().flatten().map(|ParameterSpec { name, shape, init, .. }| {
            let std = match init {
                Init::Randn { mean: 0.0, stdev } => *stdev,
                Init::Const(0.0) => 0.0,
                _ => panic!("{name} begins at {init:?}"),
            };
            (name.as_str(), shape.as_slice(), std)
        });
        let expected = [
            ("dense0.weight", &[8, 50][..], 0.5),
            ("dense0.bias", &[50], 0.0),
            ("dense1.weight", &[50, 3], 0.2),
            ("dense1.bias", &[3], 0.0),
        ];
        assert_eq!(planned.collect::<Vec<_>>(), expected);
    }
}

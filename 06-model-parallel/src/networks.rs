//! The networks as lists of layers: a dense stack, LeNet and ResNet-18.

use std::sync::Arc;

use candle_core::{Module, Result, Tensor, bail};
use candle_nn::init::{Init, ZERO};
use concise_wrapper::lenet::init;
use concise_wrapper::resnet::{BLOCKS, Block, ConvNorm, Head};
use itertools::Itertools as _;
use ops::{add, add_relu, conv2d_relu_pool, flatten, linear, linear_relu};
use single_gpu::lenet::SHAPES;

use crate::layers::{Builder, Layers};
use crate::tensor_parallel::{by_column, gather, reduce};

impl Layers {
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
        if widths.len() < 2 || widths.contains(&0) {
            bail!("a dense stack has at least two widths, none of them 0; got {widths:?}");
        }
        let name = format!("dense stack {}", widths.iter().join("-"));
        let layers = widths.iter().copied().tuple_windows().enumerate();
        Ok(layers.fold(Self::named(name), |layers, (number, size)| {
            let is_last = number + 2 == widths.len();
            layers.then(move |builder| dense(builder, number, size, is_last))
        }))
    }

    /// LeNet of stage 1: `[B, 1, 28, 28]` → `[B, 10]`, in five layers; its names, shapes and initial weights. No layer can
    /// be cut.
    pub fn lenet() -> Self {
        let layer = |number: usize, compute: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>| {
            move |builder: &Builder<'_>| {
                let get = |(name, shape): (&str, &[usize])| {
                    builder.vb.get_with_hints(shape, name, init(name))
                };
                let (weight, bias) = (get(SHAPES[2 * number])?, get(SHAPES[2 * number + 1])?);
                Ok(move |x: &Tensor| compute(x, &weight, &bias))
            }
        };
        Self::named("LeNet")
            .then(layer(0, |x, weight, bias| conv2d_relu_pool(x, weight, bias, 2)))
            .then(layer(1, |x, weight, bias| conv2d_relu_pool(x, weight, bias, 2)))
            .then(|_| Ok(flatten))
            .then(layer(2, linear_relu))
            .then(layer(3, linear))
    }

    // ANCHOR: resnet18
    /// ResNet-18 of stage 5: `[B, 1, 28, 28]` → `[B, 10]`, in ten layers: the stem, eight blocks, the head. Its names,
    /// shapes and initial weights; the first group has `width` planes, 64 in the original. No layer can be cut.
    pub fn resnet18(width: usize) -> Self {
        let layers = Self::named(format!("ResNet-18 of width {width}"));
        let stem = layers.then(move |builder| ConvNorm::stem(width, builder.norms, builder.vb));
        let blocks = (0..BLOCKS).fold(stem, |layers, number| {
            layers.then(move |builder| Block::new(number, width, builder.norms, builder.vb))
        });
        blocks.then(move |builder| Head::new(width, builder.vb))
    }
    // ANCHOR_END: resnet18
}
/// A layer of a dense stack, with a relu unless it is the last. Weights begin at `N(0, 2 / inputs)` (He et al., "Delving
/// deep into rectifiers", 2015), and biases at zero.
fn dense(
    builder: &Builder<'_>,
    number: usize,
    (inputs, outputs): (usize, usize),
    is_last: bool,
) -> Result<impl Module + Send + Sync + use<>> {
    let is_by_column = number.is_multiple_of(2);
    let cuts = if is_by_column { [Some(1), Some(0)] } else { [Some(0), None] };
    let normal = Init::Randn { mean: 0.0, stdev: (2.0 / inputs as f64).sqrt() };
    let weight =
        builder.get(&format!("dense{number}.weight"), &[inputs, outputs], normal, cuts[0])?;
    let bias = builder.get(&format!("dense{number}.bias"), &[outputs], ZERO, cuts[1])?;
    let no_bias = Tensor::zeros(bias.shape(), bias.dtype(), bias.device())?;
    let group = Arc::clone(builder.group);
    let whole = if is_last { linear } else { linear_relu };
    let finish = if is_last { add } else { add_relu };
    Ok(move |x: &Tensor| {
        let x = &flatten(x)?;
        if group.world_size() == 1 {
            // Product, bias and relu in one pass over memory.
            whole(x, &weight, &bias)
        } else if is_by_column {
            let columns = by_column(x, &group, |x| whole(x, &weight, &bias))?;
            if is_last { gather(&columns, 1, outputs, &group) } else { Ok(columns) }
        } else {
            // By rows: bias and relu in one pass over memory, after the sum of all terms.
            finish(&reduce(&linear(x, &weight, &no_bias)?, &group)?, &bias)
        }
    })
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    #[test]
    fn a_stack_is_planned_layer_by_layer() {
        let layers = Layers::dense(&[8, 5_000, 3]).unwrap();
        let planned = layers.parameters(0..2).unwrap();
        let planned = planned.iter().map(|it| (it.name.as_str(), it.shape.as_slice(), it.cut));
        let expected = [
            ("dense0.weight", &[8, 5_000][..], Some(1)),
            ("dense0.bias", &[5_000], Some(0)),
            ("dense1.weight", &[5_000, 3], Some(0)),
            ("dense1.bias", &[3], None),
        ];
        assert!(planned.eq(expected), "{:?}", layers.parameters(0..2));
        let network = layers.build(0..2, 1, DType::F64, &Device::Cpu).unwrap();
        for (name, expected) in [("dense0.weight", 0.5), ("dense1.weight", 0.02)] {
            let weight = network.weights().get(name).unwrap().flatten_all().unwrap();
            let deviation = weight.var(0).unwrap().to_scalar::<f64>().unwrap().sqrt();
            assert!((deviation / expected - 1.0).abs() < 0.02, "{name}: {deviation}");
        }
        for name in ["dense0.bias", "dense1.bias"] {
            let bias = network.weights().get(name).unwrap().abs().unwrap().max_all().unwrap();
            assert_eq!(bias.to_scalar::<f64>().unwrap(), 0.0, "{name}");
        }
    }
}

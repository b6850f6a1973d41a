//! A model as a list of layers, batches and frozen layers, for the tests of stages 6 and 7.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use candle_nn::init::Init;
use concise_wrapper::{Error, Network};
use datasets::{Batch, CLASSES};
use model_parallel::layers::{Builder, Layers, Stage};
use ops::{avg_pool2d, conv2d_relu_pool, flatten, linear};
use split_batch::loader::LocalBatch;
use split_batch::split::split_batch;

/// Pooling, two convolutions, flattening, and a dense layer: `[B, 2, 20, 20]` → `[B, 10]`. The first and the fourth layer
/// have nothing to train.
pub fn pooled() -> Layers {
    let normal = |inputs: usize| Init::Randn { mean: 0.0, stdev: (2.0 / inputs as f64).sqrt() };
    let convolution = |number: usize, inputs: usize, outputs: usize| {
        move |builder: &Builder<'_>| {
            let (vb, shape) = (builder.vb.pp(format!("conv{number}")), (outputs, inputs, 3, 3));
            let weight = vb.get_with_hints(shape, "weight", normal(inputs * 9))?;
            let bias = vb.get(outputs, "bias")?;
            Ok(move |x: &Tensor| conv2d_relu_pool(x, &weight, &bias, 2))
        }
    };
    let dense = move |builder: &Builder<'_>| {
        let vb = builder.vb;
        let weight = vb.get_with_hints((7, CLASSES), "dense.weight", normal(7))?;
        let bias = vb.get(CLASSES, "dense.bias")?;
        Ok(move |x: &Tensor| linear(x, &weight, &bias))
    };
    Layers::named("pooling, two convolutions and a dense layer")
        .then(|_| Ok(|x: &Tensor| avg_pool2d(x, 2, 2)))
        .then(convolution(1, 2, 5))
        .then(convolution(2, 5, 7))
        .then(|_| Ok(|x: &Tensor| flatten(x)))
        .then(dense)
}

/// The batch of a step in micro-batches: noise, and each sample has a brightness of its own. Micro-batches beyond the number
/// of samples are empty.
///
/// Not garments: where they are black, channels are constant, and a batch norm makes them rounding errors around 0, on
/// either side of relu's kink.
pub fn batch(
    (sample, dtype): (&[usize], DType),
    step: usize,
    samples: usize,
    micro_batches: usize,
) -> Result<LocalBatch, Error> {
    let pixels: usize = sample.iter().product();
    let part = |i: usize, by: f64| (i as f64 * by).fract();
    let noise = |i: usize| part((step * 7919 + i).pow(2), 0.754_877_666);
    let brightness = |i: usize| part(step * 7 + i / pixels, 0.618_033_989);
    let value = |i: usize| noise(i) + brightness(i) - 1.0;
    let values: Vec<f64> = (0..samples * pixels).map(value).collect();
    let shape = [&[samples], sample].concat();
    let images = Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?;
    let labels: Vec<u32> = (0..samples).map(|i| ((step + i * 7) % 10) as u32).collect();
    let labels = Tensor::new(labels, &Device::Cpu)?;
    let shards = split_batch(&images, &labels, micro_batches)?.into_iter();
    let shards = shards.map(|(images, labels)| Batch { images, labels }).collect();
    Ok(LocalBatch { shards, samples })
}

/// The network of some layers, in which the parameters of `frozen` layers are frozen.
pub fn freeze(
    network: Network<Stage>,
    (all, layers): (&Layers, Range<usize>),
    frozen: &[usize],
) -> Result<Network<Stage>, Error> {
    let mut names = Vec::new();
    for layer in layers.filter(|layer| frozen.contains(layer)) {
        let of_layer = all.build(layer..layer + 1, 1, network.dtype(), &Device::Cpu)?;
        names.extend(of_layer.weights().parameters.iter().map(|named| named.name.clone()));
    }
    if names.is_empty() {
        return Ok(network);
    }
    Ok(network.freeze(|name| names.iter().any(|frozen| frozen == name))?)
}

//! ResNet-18's twenty convolutions, forward and backward, one after the other.
//!
//! The first has no gradient of its input, which is data. The backward pass starts from ones.

use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor, Var};
use datasets::SIDE;
use ops::backward::backward;
use ops::conv2d;
use single_gpu::init;

use super::{Answer, Arguments, in_seconds};

/// Seconds of all forward passes, of all backward passes, and of both.
pub(super) fn measure(arguments: &Arguments) -> anyhow::Result<Answer> {
    let device = arguments.plan(1)?.slots()[0].open()?;
    let sweeps = device.run(|| {
        let batch = arguments.batch.get();
        let layers = geometries().map(|geometry| Layer::new(batch, geometry));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        sweep(&layers)?;
        (0..arguments.repetitions.get()).map(|_| sweep(&layers)).collect::<Result<Vec<_>>>()
    })?;
    let of = |pick: fn(&(f64, f64)) -> f64| sweeps.iter().map(pick).collect();
    Ok(in_seconds([
        ("forward", of(|(forward, _)| *forward)),
        ("backward", of(|(_, backward)| *backward)),
        ("both", of(|(forward, backward)| forward + backward)),
    ]))
}

/// Channels in and out, the kernel's side, the stride, and the input's side.
type Geometry = (usize, usize, usize, usize, usize);

fn geometries() -> impl Iterator<Item = Geometry> {
    let stem = [(1, 64, 3, 1, SIDE)].into_iter().chain([(64, 64, 3, 1, SIDE); 4]);
    stem.chain([(128, SIDE), (256, SIDE / 2), (512, SIDE / 4)].into_iter().flat_map(
        |(planes, side)| {
            let half = side.div_ceil(2);
            [
                (planes / 2, planes, 3, 2, side),
                (planes, planes, 3, 1, half),
                (planes / 2, planes, 1, 2, side),
                (planes, planes, 3, 1, half),
                (planes, planes, 3, 1, half),
            ]
        },
    ))
}

struct Layer {
    x: Tensor,
    weight: Var,
    stride: usize,
    padding: usize,
}

impl Layer {
    fn new(batch: usize, (inputs, outputs, kernel, stride, side): Geometry) -> Result<Self> {
        let shape = [batch, inputs, side, side];
        let x = init::normal("x", &shape, 1.0, 1, DType::F32, &Device::Cpu)?.value;
        let shape = [outputs, inputs, kernel, kernel];
        let weight = init::normal("weight", &shape, 0.05, 1, DType::F32, &Device::Cpu)?.value;
        let x = if inputs > 1 { x.into_inner() } else { x.detach() };
        Ok(Self { x, weight, stride, padding: kernel / 2 })
    }

    fn forward(&self) -> Result<Tensor> {
        conv2d(&self.x, &self.weight, None, self.stride, self.padding)
    }
}

fn sweep(layers: &[Layer]) -> Result<(f64, f64)> {
    let (mut forward_seconds, mut backward_seconds) = (0.0, 0.0);
    for layer in layers {
        let start = Instant::now();
        let y = layer.forward()?;
        let middle = Instant::now();
        let gradients = backward(&y)?;
        backward_seconds += middle.elapsed().as_secs_f64();
        forward_seconds += (middle - start).as_secs_f64();
        drop(gradients);
    }
    Ok((forward_seconds, backward_seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_twenty_and_each_takes_what_the_one_before_gives() {
        let all: Vec<Geometry> = geometries().collect();
        assert_eq!(all.len(), 20);
        let weights: usize = all.iter().map(|(i, o, kernel, ..)| i * o * kernel * kernel).sum();
        // ResNet-18 with one channel has 11,172,810 parameters: 9,600 are batch norm's, 5,130 the last
        // layer's.
        assert_eq!(weights, 11_172_810 - 9_600 - 5_130);
        // The shape of an output, but for shortcuts, is that of the next input.
        let straight: Vec<&Geometry> =
            all.iter().filter(|(_, _, kernel, ..)| *kernel > 1).collect();
        for pair in straight.windows(2) {
            let (_, outputs, _, stride, side) = *pair[0];
            let (inputs, .., next) = *pair[1];
            assert_eq!((outputs, side.div_ceil(stride)), (inputs, next));
        }
    }

    #[test]
    fn only_the_first_input_wants_no_gradient() {
        let gradient = |geometry| {
            let layer = Layer::new(1, geometry).unwrap();
            backward(&layer.forward().unwrap()).unwrap().get(&layer.x).is_some()
        };
        assert!(!gradient((1, 2, 3, 1, 5)));
        assert!(gradient((2, 2, 3, 2, 5)));
        let shape = candle_core::Shape::from((1, 2, 3, 3));
        let layer = Layer::new(1, (2, 2, 3, 2, 5)).unwrap();
        assert_eq!(layer.forward().unwrap().shape(), &shape);
    }
}

//! ResNet-18's twenty convolutions, forward and backward, in turn.
//!
//! The first convolution has no gradient of its input, which is data. The backward pass starts from ones.

use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor, Var};
use datasets::SIDE;
use ops::backward::backward;
use ops::conv2d;
use serde_json::{Value, json};
use single_gpu::init;

use super::Arguments;

/// Channels in and out, the kernel's side, the stride, and the input's side.
type Geometry = (usize, usize, usize, usize, usize);

/// Returns the seconds of all forward passes, of all backward passes, and of both.
pub(super) fn measure(arguments: &Arguments) -> anyhow::Result<Value> {
    let device = arguments.plan(1)?.slots()[0].open()?;
    let sweeps = device.run(|| {
        let layers = geometries().map(|geometry| layer(arguments.batch.get(), geometry));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        sweep(&layers)?;
        (0..arguments.repetitions.get()).map(|_| sweep(&layers)).collect::<Result<Vec<_>>>()
    })?;
    let of = |pick: fn(&(f64, f64)) -> f64| sweeps.iter().map(pick).collect::<Vec<_>>();
    Ok(json!({"seconds": {
        "forward": of(|(forward, _)| *forward),
        "backward": of(|(_, backward)| *backward),
        "both": of(|(forward, backward)| forward + backward),
    }}))
}

fn geometries() -> impl Iterator<Item = Geometry> {
    let stem = [(1, 64, 3, 1, SIDE)].into_iter().chain([(64, 64, 3, 1, SIDE); 4]);
    let group = |(planes, side): (usize, usize)| {
        let half = side.div_ceil(2);
        let straight = (planes, planes, 3, 1, half);
        let [first, shortcut] = [3, 1].map(|kernel| (planes / 2, planes, kernel, 2, side));
        [first, straight, shortcut, straight, straight]
    };
    stem.chain([(128, SIDE), (256, SIDE / 2), (512, SIDE / 4)].into_iter().flat_map(group))
}

/// An input, a weight, and the stride.
type Layer = (Tensor, Var, usize);

fn layer(batch: usize, (inputs, outputs, kernel, stride, side): Geometry) -> Result<Layer> {
    let shape = [batch, inputs, side, side];
    let x = init::normal("x", &shape, 1.0, 1, DType::F32, &Device::Cpu)?.value;
    let shape = [outputs, inputs, kernel, kernel];
    let weight = init::normal("weight", &shape, 0.05, 1, DType::F32, &Device::Cpu)?.value;
    Ok((if inputs > 1 { x.into_inner() } else { x.detach() }, weight, stride))
}

fn sweep(layers: &[Layer]) -> Result<(f64, f64)> {
    let (mut forward_seconds, mut backward_seconds) = (0.0, 0.0);
    for (x, weight, stride) in layers {
        let padding = weight.dim(3)? / 2;
        let start = Instant::now();
        let y = conv2d(x, weight, None, *stride, padding)?;
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
    fn they_have_resnet_18s_weights_and_only_the_first_input_wants_no_gradient() {
        let weights = geometries().map(|(i, o, kernel, ..)| i * o * kernel * kernel);
        // ResNet-18 with one channel has 11,172,810 parameters: 9,600 of batch norm, 5,130 of the last layer.
        assert_eq!(weights.sum::<usize>(), 11_172_810 - 9_600 - 5_130);
        let wants = |geometry| layer(1, geometry).unwrap().0.is_variable();
        assert_eq!(geometries().position(wants), Some(1));
        assert_eq!(geometries().filter(|geometry| wants(*geometry)).count(), 19);
    }
}

//! A training step of ResNet-18, on one device and on two under DDP, on [`noise`].

use std::time::Duration;

use candle_core::{DType, Device};
use concise_wrapper::ddp::Reduction;
use concise_wrapper::optimiser::{Momentum, Sgd};
use concise_wrapper::resnet::{ResNet18, WIDTH};
use concise_wrapper::shares::{Share, Shares};
use concise_wrapper::{Ddp, Error, Model, Network};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};
use single_gpu::data::Dataset;
use single_gpu::data::loader::Epochs as _;

use super::{Answer, Arguments, LEARNING_RATE, Precision, in_seconds, noise, times};

/// Seconds of a step on one device.
pub(super) fn on_one_device(arguments: &Arguments) -> anyhow::Result<Answer> {
    let device = arguments.plan(1)?.slots()[0].open()?;
    let images = noise::images(arguments.batch.get())?;
    let seconds = device.run(|| {
        let network = network(arguments, device.tensors())?;
        steps(&network, &images, arguments, arguments.warm_up())
    })?;
    Ok(in_seconds([("step", seconds)]))
}

/// Seconds of a step on two devices that share the batch, with batch norms of their own, as DDP has them.
///
/// A step ends when the gradients have been added up, so one rank's clock tells.
pub(super) fn on_two_devices(arguments: &Arguments) -> anyhow::Result<Answer> {
    let images = noise::images(arguments.batch.get())?;
    let mut seconds = run_ranks(&arguments.plan(2)?, DEFAULT_TIMEOUT, |rank| {
        let network = network(arguments, &Device::Cpu)?;
        let ddp = Ddp::new(network, rank, Reduction::default())?;
        steps(&ddp, &images, arguments, Duration::ZERO)
    })?;
    Ok(in_seconds([("step", seconds.swap_remove(0))]))
}

fn network(arguments: &Arguments, device: &Device) -> Result<Network<ResNet18>, Error> {
    let layers = match arguments.precision {
        Precision::F32 | Precision::Tf32 => DType::F32,
        Precision::Bf16 => DType::BF16,
    };
    Ok(Network::new(1, layers, device, |vb, norms| ResNet18::new(WIDTH, norms, vb))?)
}

fn steps(
    model: &impl Model,
    images: &Dataset,
    arguments: &Arguments,
    warm_up: Duration,
) -> Result<Vec<f64>, Error> {
    let batch = arguments.batch.get();
    let shares = Shares::new(images, batch, 1, DType::F32, model.hosts());
    let shares: Vec<Share> = shares.epoch(1).collect::<candle_core::Result<_>>()?;
    let mut sgd = Sgd::new(Momentum::default());
    times(arguments.repetitions, warm_up, || {
        let (seen, gradients) = model.backward_unread(&shares[0])?;
        sgd.step(model.weights(), &gradients, LEARNING_RATE, batch)?;
        // As the scripts do, which wait for the loss of every step.
        Ok(seen.read().map(drop)?)
    })
}

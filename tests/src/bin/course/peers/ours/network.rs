//! A training step of a network of stage 5's, on [`noise`].

use std::time::Duration;

use candle_core::{DType, Device, ModuleT};
use candle_nn::VarBuilder;
use concise_wrapper::batch_norm::Norms;
use concise_wrapper::optimizer::{Momentum, Sgd};
use concise_wrapper::{Error, Model, Network};
use datasets::Dataset;
use datasets::loader::Epochs as _;
use split_batch::loader::{LocalBatch, ShardLoader};

use super::{Answer, Arguments, LEARNING_RATE, Precision, in_seconds, noise, times};

/// Seconds of a step on one device, of the network that `build` makes.
pub(super) fn on_one_device<M: ModuleT>(
    arguments: &Arguments,
    build: impl Fn(&VarBuilder<'_>, &Norms) -> candle_core::Result<M> + Send + Sync + 'static,
) -> anyhow::Result<Answer> {
    let device = arguments.plan(1)?.slots()[0].open()?;
    let images = noise::images(arguments.batch.get())?;
    let seconds = device.run(|| {
        let network = fresh(arguments, device.tensors(), build)?;
        steps(&network, &images, arguments, arguments.warm_up())
    })?;
    Ok(in_seconds([("step", seconds)]))
}

/// A network with fresh weights, whose layers compute in what was asked for.
pub(super) fn fresh<M: ModuleT>(
    arguments: &Arguments,
    device: &Device,
    build: impl Fn(&VarBuilder<'_>, &Norms) -> candle_core::Result<M> + Send + Sync + 'static,
) -> Result<Network<M>, Error> {
    let layers = match arguments.precision {
        Precision::F32 | Precision::Tf32 => DType::F32,
        Precision::Bf16 => DType::BF16,
    };
    Ok(Network::new(1, layers, device, build)?)
}

pub(super) fn steps(
    model: &impl Model,
    images: &Dataset,
    arguments: &Arguments,
    warm_up: Duration,
) -> Result<Vec<f64>, Error> {
    let batch = arguments.batch.get();
    let shares = ShardLoader::new(images, batch, 1, DType::F32, model.hosts());
    let shares: Vec<LocalBatch> = shares.epoch(1).collect::<candle_core::Result<_>>()?;
    let mut sgd = Sgd::new(Momentum::default());
    times(arguments.repetitions, warm_up, || {
        let step = model.backward(&shares[0])?;
        sgd.step(model.weights(), &step.gradients, LEARNING_RATE, batch)?;
        // As the scripts do, which wait for the loss of every step.
        Ok(step.sums.read().map(drop)?)
    })
}

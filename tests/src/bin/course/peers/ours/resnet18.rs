//! A training step of ResNet-18, on one device and on two under DDP, on [`noise`].

use std::time::Duration;

use candle_core::Device;
use candle_nn::VarBuilder;
use concise_wrapper::Ddp;
use concise_wrapper::batch_norm::Norms;
use concise_wrapper::ddp::Reduction;
use concise_wrapper::resnet::{ResNet18, WIDTH};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};

use super::{Answer, Arguments, in_seconds, network, noise};

pub(super) fn on_one_device(arguments: &Arguments) -> anyhow::Result<Answer> {
    network::on_one_device(arguments, build)
}

/// Seconds of a step on two devices that share the batch, with batch norms of their own, as DDP has them.
///
/// A step ends when the gradients have been added up, so one rank's clock tells.
pub(super) fn on_two_devices(arguments: &Arguments) -> anyhow::Result<Answer> {
    let images = noise::images(arguments.batch.get())?;
    let mut seconds = run_ranks(&arguments.plan(2)?, DEFAULT_TIMEOUT, |rank| {
        let replica = network::fresh(arguments, &Device::Cpu, build)?;
        let ddp = Ddp::new(replica, rank, Reduction::default())?;
        network::steps(&ddp, &images, arguments, Duration::ZERO)
    })?;
    Ok(in_seconds([("step", seconds.swap_remove(0))]))
}

fn build(vb: &VarBuilder<'_>, norms: &Norms) -> candle_core::Result<ResNet18> {
    ResNet18::new(WIDTH, norms, vb)
}

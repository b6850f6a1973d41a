//! The memory of a process that trains LeNet for an epoch and tests it, as stage 1's binary does.

use anyhow::Context as _;
use candle_core::DType;
use harness::records::TrainOptions;
use harness::report::Report;
use single_gpu::lenet::Layers;
use single_gpu::train::train;

use super::data::garments;
use super::{Answer, Arguments, LEARNING_RATE, named};

/// The most memory that this process has had, in the end and before there was any data.
pub(super) fn measure(arguments: &Arguments) -> anyhow::Result<Answer> {
    let start = peak()?;
    let device = arguments.plan(1)?.slots()[0].open_in_this_thread()?;
    let images = arguments.images.get();
    let data = garments(images, images / 6);
    let options =
        TrainOptions { epochs: 1, batch_size: 256, learning_rate: LEARNING_RATE, seed: 1 };
    train(&data, &options, Layers::Fast, DType::F32, &device, &mut Report::silent())?;
    let bytes = named([("peak", vec![peak()?]), ("before the data", vec![start])]);
    Ok(Answer { bytes, ..Answer::default() })
}

/// The most memory that this process has had so far, in bytes.
fn peak() -> anyhow::Result<f64> {
    const FILE: &str = "/proc/self/status";
    let status = std::fs::read_to_string(FILE).context(FILE)?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes: f64 = peak
        .and_then(|peak| peak.split_whitespace().next()?.parse().ok())
        .with_context(|| format!("{FILE} has no VmHWM"))?;
    Ok(kibibytes * 1024.0)
}

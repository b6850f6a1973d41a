//! The memory of a process that trains on images.

use anyhow::Context as _;
use candle_core::DType;
use datasets::source::LoadedData;
use harness::records::TrainOptions;
use harness::report::Report;
use serde_json::{Value, json};
use single_gpu::lenet::Layers;
use single_gpu::train::train;

use super::{Arguments, LEARNING_RATE};

/// Returns the most memory of this process in bytes, at the end and before there was any data. The process trains LeNet
/// for an epoch and tests it, as stage 1's program does.
pub(super) fn measure(arguments: &Arguments) -> anyhow::Result<Value> {
    let start = peak_memory()?;
    let device = arguments.plan(1)?.slots()[0].open_in_this_thread()?;
    let images = arguments.images.get();
    let data = LoadedData::draw((Some(images), Some(images / 6)));
    let options =
        TrainOptions { epochs: 1, batch_size: 256, learning_rate: LEARNING_RATE, seed: 1 };
    train(&data, &options, Layers::Fast, DType::F32, &device, &mut Report::silent())?;
    Ok(json!({"bytes": {"peak": [peak_memory()?], "before the data": [start]}}))
}

fn peak_memory() -> anyhow::Result<u64> {
    const FILE: &str = "/proc/self/status";
    let status = std::fs::read_to_string(FILE).context(FILE)?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = peak.and_then(|peak| peak.split_whitespace().next()?.parse::<u64>().ok());
    Ok(1024 * kibibytes.with_context(|| format!("{FILE} has no VmHWM"))?)
}

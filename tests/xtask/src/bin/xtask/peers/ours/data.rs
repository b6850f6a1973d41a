//! Images: drawing them, decoding files of them, and the memory of a process that trains on them.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use candle_core::DType;
use datasets::source::LoadedData;
use datasets::{Dataset, Split};
use flate2::Compression;
use flate2::write::GzEncoder;
use harness::images;
use harness::records::TrainOptions;
use harness::report::Report;
use serde_json::{Value, json};
use single_gpu::lenet::Layers;
use single_gpu::train::train;

use super::{Arguments, LEARNING_RATE, times};

/// Returns the seconds for drawing all images once.
pub(super) fn drawing(arguments: &Arguments) -> anyhow::Result<Value> {
    let images = arguments.images.get();
    let device = arguments.plan(1)?.slots()[0].open()?;
    let seconds = device.run(|| {
        drop(garments(images / 100, 1));
        let start = Instant::now();
        let drawn = garments(images, 1);
        let seconds = start.elapsed().as_secs_f64();
        anyhow::ensure!(drawn.train.len() == images);
        anyhow::Ok(seconds)
    })?;
    Ok(json!({"seconds": {"drawing": [seconds]}}))
}

/// Returns the seconds for reading training and test images, compressed as in the download of Fashion-MNIST.
pub(super) fn decoding(arguments: &Arguments) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir()?;
    let count = arguments.images.get();
    let LoadedData { train, test, .. } = garments(count, count / 6);
    write(folder.path(), "train", &train)?;
    write(folder.path(), "t10k", &test)?;
    let seconds = times(arguments.repetitions, Duration::ZERO, || {
        images::read(folder.path(), Split::Train)?;
        images::read(folder.path(), Split::Test).map(drop)
    })?;
    Ok(json!({"seconds": {"decoding": seconds}, "note": "files of synthetic garments"}))
}

/// Returns the most memory of this process in bytes, at the end and before there was any data. The process trains LeNet
/// for an epoch and tests it, as stage 1's program does.
pub(super) fn memory(arguments: &Arguments) -> anyhow::Result<Value> {
    let start = peak_memory()?;
    let device = arguments.plan(1)?.slots()[0].open_in_this_thread()?;
    let data = garments(arguments.images.get(), arguments.images.get() / 6);
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

fn garments(train: usize, test: usize) -> LoadedData {
    LoadedData::draw((Some(train), Some(test)))
}

/// Writes images and labels as files of the data set.
fn write(folder: &Path, part: &str, data: &Dataset) -> anyhow::Result<()> {
    let count = u32::try_from(data.len())?;
    for (name, header, body) in [
        ("images-idx3-ubyte", &[0x803, count, 28, 28][..], data.pixels()),
        ("labels-idx1-ubyte", &[0x801, count], data.labels()),
    ] {
        let file = File::create(folder.join(format!("{part}-{name}.gz")))?;
        let mut packed = GzEncoder::new(file, Compression::default());
        packed.write_all(&header.iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<_>>())?;
        packed.write_all(body)?;
        packed.finish()?;
    }
    Ok(())
}

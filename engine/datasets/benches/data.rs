//! How fast images are drawn, decoded and made into batches, in images a second.
//!
//! All three must be far faster than training, or training waits for them.

use std::hint::black_box;
use std::io::Write as _;

use candle_core::{DType, Result};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use datasets::loader::{Epochs as _, Loader};
use datasets::{Batch, PIXELS, SIDE, Split, synthetic};
use flate2::Compression;
use flate2::write::GzEncoder;
use harness::images::idx::{self, Items};

/// Images of a round: every class, many times.
const IMAGES: u32 = 5_000;

/// Samples of a batch.
const BATCH: usize = 256;

fn draw(count: u32) -> Vec<[u8; PIXELS]> {
    (0..count).map(|index| synthetic::draw(1, Split::Train, index.into())).collect()
}

/// Drawing in one thread; threads share nothing.
fn drawing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("draw");
    // One of each class.
    group.throughput(Throughput::Elements(10));
    group.bench_function("one thread", |bencher| bencher.iter(|| draw(black_box(10))));
    group.finish();
}

/// A file in memory, plain and compressed.
fn decoding(criterion: &mut Criterion) {
    let header = [0x803, IMAGES, SIDE as u32, SIDE as u32].map(u32::to_be_bytes);
    let plain = [header.as_flattened(), draw(IMAGES).as_flattened()].concat();
    let packed = {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let written = encoder.write_all(&plain).and_then(|()| encoder.finish());
        written.expect("memory takes what is written to it")
    };
    let mut group = criterion.benchmark_group("decode");
    group.throughput(Throughput::Elements(IMAGES.into()));
    for (name, file) in [("plain", &plain), ("gzip", &packed)] {
        group.bench_function(name, |bencher| {
            let decode = || idx::read(black_box(file.as_slice()), Items::Images, usize::MAX);
            bencher.iter(|| decode().expect("the file is as it should be"));
        });
    }
    group.finish();
}

/// An epoch's batches, shuffled and made ahead by the loader's thread, with nobody training on them.
fn loading(criterion: &mut Criterion) {
    let data = synthetic::dataset(Split::Train, IMAGES as usize);
    let mut group = criterion.benchmark_group("load");
    group.throughput(Throughput::Elements(IMAGES.into()));
    for dtype in [DType::F32, DType::F64] {
        let loader = Loader::new(&data, BATCH, 1, dtype);
        group.bench_function(format!("an epoch, {}", dtype.as_str()), |bencher| {
            let samples = |batch: Result<Batch>| batch.expect("indices are in range").len();
            bencher.iter(|| loader.epoch(black_box(0)).map(samples).sum::<usize>());
        });
    }
    group.finish();
}

criterion_group!(benches, drawing, decoding, loading);
criterion_main!(benches);

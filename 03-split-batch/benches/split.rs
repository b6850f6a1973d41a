//! A LeNet batch of 256 images cut into shards, and put together again, on one core.
//!
//! ```console
//! $ cargo bench -p split-batch
//! ```
//!
//! Splitting makes views: its time is that of a few counters, whatever the size of the batch, so the GB/s
//! say how little is done for it. Gathering copies every byte once; with one shard even that is saved.

use std::hint::black_box;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use criterion::{BenchmarkId, Criterion, Throughput};
use split_batch::{gather, split_batch};

const IMAGES: usize = 256;

fn main() {
    harness::cli::prepare();
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let images = Tensor::ones((IMAGES, 1, 28, 28), DType::F32, &Device::Cpu).expect("images");
    let labels = Tensor::zeros(IMAGES, DType::U32, &Device::Cpu).expect("labels");
    let bytes = images.elem_count() * DType::F32.size_in_bytes();
    let mut group = criterion.benchmark_group("256 images");
    group.throughput(Throughput::BytesDecimal(bytes as u64));
    for shards in [1, 2, 4, 8] {
        let split = || split_batch(&images, &labels, shards).expect("shards");
        group.bench_function(BenchmarkId::new("split", shards), |bencher| bencher.iter(split));
        let (parts, _): (Vec<Tensor>, Vec<Tensor>) = split().into_iter().unzip();
        group.bench_function(BenchmarkId::new("gather", shards), |bencher| {
            bencher.iter(|| black_box(gather(&parts, &Device::Cpu).expect("a batch")));
        });
    }
    group.finish();
    criterion.final_summary();
}

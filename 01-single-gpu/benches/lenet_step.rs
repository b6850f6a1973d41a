//! A whole training step of LeNet, batch 256, on one core and on two, in images a second.
//!
//! `cargo bench -p single-gpu --bench lenet_step`. Beside PyTorch: `cargo xtask peers --only lenet-step`.

use std::num::NonZeroUsize;

use candle_core::DType;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use datasets::{Split, synthetic};
use devices::{DeviceKind, DevicePlan};
use harness::cli;
use single_gpu::lenet::Lenet;
use single_gpu::train::train_batch;

const BATCH: u32 = 256;

fn step(criterion: &mut Criterion) {
    cli::prepare();
    let data = synthetic::dataset(Split::Train, BATCH as usize);
    let indices: Vec<u32> = (0..BATCH).collect();
    let batch = data.batch(&indices, DType::F32).expect("memory for a batch");

    let mut group = criterion.benchmark_group("LeNet step");
    group.throughput(Throughput::Elements(BATCH.into()));
    for threads in [1, 2] {
        let plan = DevicePlan::new(DeviceKind::Cpu, 1, NonZeroUsize::new(threads));
        let plan = plan.expect("a slice of one or two cores");
        let device = plan.slots()[0].open().expect("one or two threads");
        let model = Lenet::new(1, DType::F32, device.tensors()).expect("memory for LeNet");
        group.bench_function(plan.to_string(), |bencher| {
            device.run(|| {
                bencher.iter(|| train_batch(&model, &batch, 0.1).expect("a batch that fits"));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, step);
criterion_main!(benches);

//! All-reduce between CPU slices of one core each: algorithm × size × ranks, beside the adding and copying
//! that any of them has to do; and the eight gradients of LeNet, one after another, as training sends them.
//!
//! ```console
//! $ cargo bench -p params-and-allreduce                     # everything, a few minutes
//! $ cargo bench -p params-and-allreduce -- --quick "2 ranks"
//! ```
//!
//! A time is that of the slowest rank. GB/s are bytes of one rank's tensor ÷ time. With more ranks than
//! cores the times show overhead, not speed.

use std::hint::black_box;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, measurement::WallTime};
use devices::DevicePlan;
use params_and_allreduce::Algorithm;
use params_and_allreduce::add_and_copy::AddAndCopy;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, Rank, run_ranks};
use single_gpu::lenet::Lenet;

/// Bytes of the tensors, in f32.
const SIZES: [(&str, usize); 5] = [
    ("4 KiB", 4 << 10),
    ("64 KiB", 64 << 10),
    ("1 MiB", 1 << 20),
    ("16 MiB", 16 << 20),
    ("45 MiB", 45 << 20),
];

fn main() {
    harness::cli::prepare();
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    lenet(&mut criterion);
    for ranks in [2, 4] {
        let mut group = criterion.benchmark_group(format!("all-reduce, {ranks} ranks"));
        for (name, bytes) in SIZES {
            let len = bytes / DType::F32.size_in_bytes();
            group.throughput(Throughput::BytesDecimal(bytes as u64));
            for algorithm in Algorithm::OURS {
                let id = BenchmarkId::new(algorithm.to_string(), name);
                bench(&mut group, id, ranks, &[len], |rank, tensors| {
                    all_reduce_each(rank, tensors, algorithm)
                });
            }
            let limit = AddAndCopy::new(ranks, len);
            let id = BenchmarkId::new("memory limit", name);
            bench(&mut group, id, ranks, &[], |rank, _| limit.run(rank));
        }
        group.finish();
    }
    criterion.final_summary();
}

/// The gradients have the parameters' sizes: 80 B to 410 kB.
fn lenet(criterion: &mut Criterion) {
    let lenet = Lenet::new(1, DType::F32, &Device::Cpu).expect("a model");
    let sizes: Vec<usize> = lenet.parameters().iter().map(|p| p.value.elem_count()).collect();
    let bytes = sizes.iter().sum::<usize>() * DType::F32.size_in_bytes();
    let mut group = criterion.benchmark_group("LeNet's gradients, 2 ranks");
    group.throughput(Throughput::BytesDecimal(bytes as u64));
    for algorithm in Algorithm::OURS {
        let id = BenchmarkId::from_parameter(algorithm);
        bench(&mut group, id, 2, &sizes, |rank, tensors| all_reduce_each(rank, tensors, algorithm));
    }
    group.finish();
}

/// The sums are the next run's tensors: what is added up was written by its rank just before, as gradients are.
fn all_reduce_each(rank: &Rank, tensors: &mut [Tensor], algorithm: Algorithm) -> Result<(), Error> {
    for tensor in tensors {
        *tensor = black_box(rank.all_reduce(tensor, algorithm)?);
    }
    Ok(())
}

/// Times `work` in ranks that each have tensors of these lengths.
fn bench(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    ranks: usize,
    lengths: &[usize],
    work: impl Fn(&Rank, &mut [Tensor]) -> Result<(), Error> + Sync,
) {
    let plan = DevicePlan::slices(ranks).expect("CPU slices");
    let time = |runs: u64| {
        let times = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let zeros = |&len: &usize| Tensor::zeros(len, DType::F32, rank.device());
            let mut tensors = lengths.iter().map(zeros).collect::<Result<Vec<_>, _>>()?;
            // The first run finds memory that was never touched.
            work(rank, &mut tensors)?;
            rank.barrier()?;
            let start = Instant::now();
            for _ in 0..runs {
                work(rank, &mut tensors)?;
            }
            Ok::<_, Error>(start.elapsed())
        });
        times.expect("all ranks finish").into_iter().max().unwrap_or_default()
    };
    group.bench_function(id, |bencher| bencher.iter_custom(time));
}

//! Benchmarks the operations at the shapes of LeNet and ResNet-18, in operations a second, on one
//! core.
//!
//! Throughput counts the additions and multiplications of the *definition*, two for each weight and
//! output, so `Gelem/s` reads as GFLOP/s. The benchmark `peak` is a square matrix product, the
//! fastest work of this processor. A convolution above `peak` uses an algorithm with fewer
//! multiplications.
//!
//! Run `cargo bench -p ops --bench ops`. Add `-- --quick` for a first look, or `-- conv2d`
//! for one group.

use candle_core::{DType, Device, Result, Tensor, Var};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use harness::cli;
use harness::random;
use rand_distr::{Distribution as _, StandardNormal};
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Batch, input channels, image side, output channels, kernel side, stride, padding.
const CONVOLUTIONS: [(&str, [usize; 7]); 14] = [
    ("LeNet 1", [256, 1, 28, 20, 3, 1, 0]),
    ("LeNet 2", [256, 20, 13, 50, 5, 1, 0]),
    ("ResNet stem", [16, 1, 28, 64, 3, 1, 1]),
    ("ResNet 64", [16, 64, 28, 64, 3, 1, 1]),
    ("ResNet 64-128 stride 2", [16, 64, 28, 128, 3, 2, 1]),
    ("ResNet 64-128 shortcut", [16, 64, 28, 128, 1, 2, 0]),
    ("ResNet 128", [16, 128, 14, 128, 3, 1, 1]),
    ("ResNet 128-256 stride 2", [16, 128, 14, 256, 3, 2, 1]),
    ("ResNet 128-256 shortcut", [16, 128, 14, 256, 1, 2, 0]),
    ("ResNet 256", [16, 256, 7, 256, 3, 1, 1]),
    ("ResNet 256-512 stride 2", [16, 256, 7, 512, 3, 2, 1]),
    ("ResNet 256-512 shortcut", [16, 256, 7, 512, 1, 2, 0]),
    ("ResNet 512", [16, 512, 4, 512, 3, 1, 1]),
    ("ResNet 512, batch 64", [64, 512, 4, 512, 3, 1, 1]),
];

fn noise(shape: &[usize]) -> Var {
    let mut generator = random::generator(1, "noise");
    let count = shape.iter().product();
    let values: Vec<f32> = StandardNormal.sample_iter(&mut generator).take(count).collect();
    Var::from_vec(values, shape, &Device::Cpu).expect("memory for a few tensors")
}

/// Benchmarks an operation, and the operation with its backward, on one core.
fn both(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    [forward, backward]: [usize; 2],
    pool: &ThreadPool,
    operation: impl Fn() -> Result<Tensor> + Sync,
) {
    let run = || operation().expect("shapes that fit");
    group.throughput(Throughput::Elements(forward as u64));
    group.bench_function(format!("{name}, forward"), |bencher| {
        pool.install(|| bencher.iter(run));
    });
    group.throughput(Throughput::Elements((forward + backward) as u64));
    group.bench_function(format!("{name}, both"), |bencher| {
        pool.install(|| bencher.iter(|| ops::backward::backward(&run()).expect("a gradient")));
    });
}

fn all(criterion: &mut Criterion) {
    cli::prepare();
    let pool = ThreadPoolBuilder::new().num_threads(1).build().expect("one thread");

    let mut group = criterion.benchmark_group("peak");
    let square = noise(&[1024, 1024]);
    group.throughput(Throughput::Elements(2 * 1024 * 1024 * 1024));
    group.bench_function("product of 1024×1024 matrices", |bencher| {
        pool.install(|| bencher.iter(|| square.matmul(&square).expect("shapes that fit")));
    });
    group.finish();

    let mut group = criterion.benchmark_group("conv2d");
    for (name, [batch, inputs, side, outputs, kernel, stride, padding]) in CONVOLUTIONS {
        let x = noise(&[batch, inputs, side, side]);
        // A grey image is data and needs no gradient.
        let (x, gradients) = match inputs {
            1 => (x.as_detached_tensor(), 1),
            _ => (x.as_tensor().clone(), 2),
        };
        let weight = noise(&[outputs, inputs, kernel, kernel]);
        let out = (side + 2 * padding - kernel) / stride + 1;
        let work = 2 * batch * outputs * out * out * inputs * kernel * kernel;
        both(&mut group, name, [work, gradients * work], &pool, || {
            ops::conv2d(&x, &weight, None, stride, padding)
        });
    }
    let (x, weight, bias) = (noise(&[256, 20, 13, 13]), noise(&[50, 20, 5, 5]), noise(&[50]));
    let work = 2 * 256 * 50 * 81 * 500;
    both(&mut group, "LeNet 2 with relu and pooling", [work, 2 * work], &pool, || {
        ops::conv2d_relu_pool(&x, &weight, &bias, 2)
    });
    group.finish();

    let mut group = criterion.benchmark_group("linear");
    let (x, weight, bias) = (noise(&[256, 800]), noise(&[800, 128]), noise(&[128]));
    let work = 2 * 256 * 800 * 128;
    both(&mut group, "LeNet 3 with relu", [work, 2 * work], &pool, || {
        ops::linear_relu(&x, &weight, &bias)
    });
    group.finish();

    // Memory bounds these operations, so their throughput is in elements a second.
    let mut group = criterion.benchmark_group("elements");
    let (x, weight, bias) = (noise(&[16, 64, 28, 28]), noise(&[64]), noise(&[64]));
    let elements = x.elem_count();
    both(&mut group, "batch norm and relu", [elements; 2], &pool, || {
        ops::batch_norm(&x, &weight, &bias, 1e-5, true).map(|(y, _)| y)
    });
    both(&mut group, "sum and relu, used twice", [elements; 2], &pool, || {
        let sum = ops::add_relu(&x, &x)?;
        ops::add_relu(&sum, &sum)
    });
    both(&mut group, "average pooling", [elements; 2], &pool, || ops::avg_pool2d(&x, 2, 2));
    let logits = noise(&[256, 10]);
    let labels = Tensor::zeros(256, DType::U32, &Device::Cpu).expect("memory for a few labels");
    both(&mut group, "cross-entropy", [2560; 2], &pool, || ops::cross_entropy(&logits, &labels));
    group.finish();
}

criterion_group!(benches, all);
criterion_main!(benches);

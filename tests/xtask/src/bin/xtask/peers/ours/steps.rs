//! Training steps of LeNet and ResNet-18, on one device and on two. Pixels and labels mean nothing, as the scripts draw
//! theirs.
//!
//! A step on two devices ends when the gradients have been added up, so one rank's clock tells.

use std::time::Duration;

use candle_core::{DType, Device, ModuleT};
use candle_nn::VarBuilder;
use concise_wrapper::batch_norm::Norms;
use concise_wrapper::ddp::Reduction;
use concise_wrapper::lenet::LeNet;
use concise_wrapper::optimizer::{Momentum, Sgd};
use concise_wrapper::resnet::{ResNet18, WIDTH};
use concise_wrapper::{Ddp, Error, Model, Network};
use course_tests::lenet::local_batch;
use datasets::loader::Epochs as _;
use datasets::{Batch, CLASSES, Dataset, PIXELS};
use harness::random;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};
use params_and_allreduce::{Algorithm, get_params};
use rand::Rng as _;
use single_gpu::lenet::Lenet;
use single_gpu::train;
use split_batch::loader::{LocalBatch, ShardLoader};

use super::{Answer, Arguments, LEARNING_RATE, Precision, in_seconds, times};

/// Seconds of a step on one device: of stage 1's LeNet, and where its layers are in bf16, of stage 5's.
pub(super) fn lenet(arguments: &Arguments) -> anyhow::Result<Answer> {
    if arguments.precision == Precision::Bf16 {
        return on_one_device(arguments, |vb, _| LeNet::new(vb));
    }
    let batch = batch(arguments)?;
    let device = arguments.plan(1)?.slots()[0].open()?;
    let seconds = device.run(|| {
        let model = Lenet::new(1, DType::F32, device.tensors())?;
        times(arguments.repetitions, arguments.warm_up(), || {
            let batch = batch.to_device(device.tensors())?;
            train::train_batch(&model, &batch, LEARNING_RATE)?.read().map(|_| ())
        })
    })?;
    Ok(in_seconds([("step", seconds)]))
}

pub(super) fn lenet_on_two_devices(arguments: &Arguments) -> anyhow::Result<Answer> {
    let batch = batch(arguments)?;
    let initial = Lenet::new(1, DType::F32, &Device::Cpu)?;
    let mut seconds = run_ranks(&arguments.plan(2)?, DEFAULT_TIMEOUT, |rank| {
        let model = Lenet::with_parameters(get_params(initial.parameters(), rank.device())?)?;
        let shard = local_batch(&batch, 2, [rank.rank()])?;
        times(arguments.repetitions, Duration::ZERO, || {
            let algorithm = Algorithm::default();
            scratch_data_parallel::train_batch(rank, &model, &shard, LEARNING_RATE, algorithm)?;
            Ok::<_, scratch_data_parallel::Error>(())
        })
    })?;
    Ok(in_seconds([("step", seconds.swap_remove(0))]))
}

fn batch(arguments: &Arguments) -> anyhow::Result<Batch> {
    let indices: Vec<u32> = (0..).take(arguments.batch.get()).collect();
    Ok(images(indices.len())?.batch(&indices, DType::F32)?)
}

pub(super) fn resnet18(arguments: &Arguments) -> anyhow::Result<Answer> {
    on_one_device(arguments, build)
}

/// Seconds of a step of ResNet-18 on two devices that share the batch, with batch norms of their own, as DDP has them.
pub(super) fn resnet18_on_two_devices(arguments: &Arguments) -> anyhow::Result<Answer> {
    let images = images(arguments.batch.get())?;
    let mut seconds = run_ranks(&arguments.plan(2)?, DEFAULT_TIMEOUT, |rank| {
        let replica = fresh(arguments, &Device::Cpu, build)?;
        let ddp = Ddp::new(replica, rank, Reduction::default())?;
        steps(&ddp, &images, arguments, Duration::ZERO)
    })?;
    Ok(in_seconds([("step", seconds.swap_remove(0))]))
}

fn build(vb: &VarBuilder<'_>, norms: &Norms) -> candle_core::Result<ResNet18> {
    ResNet18::new(WIDTH, norms, vb)
}

/// Seconds of a step on one device, of the network that `build` makes.
fn on_one_device<M: ModuleT>(
    arguments: &Arguments,
    build: impl Fn(&VarBuilder<'_>, &Norms) -> candle_core::Result<M> + Send + Sync + 'static,
) -> anyhow::Result<Answer> {
    let device = arguments.plan(1)?.slots()[0].open()?;
    let images = images(arguments.batch.get())?;
    let seconds = device.run(|| {
        let network = fresh(arguments, device.tensors(), build)?;
        steps(&network, &images, arguments, arguments.warm_up())
    })?;
    Ok(in_seconds([("step", seconds)]))
}

/// A network with fresh weights, whose layers compute in what was asked for.
fn fresh<M: ModuleT>(
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

fn steps(
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

/// So many images of uniformly random pixels, with uniformly random labels: the same ones every time.
///
/// How long a step takes may depend on the numbers in it: a GPU that multiplies zeros needs less power, and can be faster.
/// Much of a garment's image is black, and nothing of the other side's.
fn images(count: usize) -> anyhow::Result<Dataset> {
    let mut images = vec![[0; PIXELS]; count];
    random::generator(1, "peers/images").fill_bytes(images.as_flattened_mut());
    let mut source = random::generator(1, "peers/labels");
    let labels = (0..count).map(|_| (source.next_u32() % CLASSES as u32) as u8).collect();
    Ok(Dataset::new(images, labels)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_and_labels_are_uniform() {
        let images = images(1000).unwrap();
        let mut pixels = [0_usize; 256];
        images.pixels().iter().for_each(|&pixel| pixels[usize::from(pixel)] += 1);
        // 3062.5 each, with a standard deviation of 55.
        assert!(pixels.iter().all(|count| (2750..3400).contains(count)), "{pixels:?}");
        let mut labels = [0_usize; CLASSES];
        images.labels().iter().for_each(|&label| labels[usize::from(label)] += 1);
        // 100 each, with a standard deviation of 9.5.
        assert!(labels.iter().all(|count| (50..150).contains(count)), "{labels:?}");
    }
}

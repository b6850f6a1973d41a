//! Training steps of LeNet and ResNet-18, on one device and on two. Pixels and labels mean nothing, as in the scripts. A step
//! on two devices ends when the gradients have been added up, so the clock of one rank is enough.

use std::time::Duration;

use candle_core::{DType, Device, ModuleT};
use candle_nn::VarBuilder;
use concise_wrapper::batch_norm::Norms;
use concise_wrapper::ddp::Reduction;
use concise_wrapper::lenet::LeNet;
use concise_wrapper::optimizer::{AdamW, Momentum, Optimizer, Sgd};
use concise_wrapper::resnet::{ResNet18, WIDTH};
use concise_wrapper::{Ddp, Error, Model, Network};
use course_tests::lenet::local_batch;
use datasets::loader::Epochs as _;
use datasets::{Batch, CLASSES, Dataset, PIXELS};
use harness::random;
use model_parallel::gpt::Gpt;
use model_parallel::layers::Layers;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};
use params_and_allreduce::{Algorithm, get_params};
use rand::Rng as _;
use single_gpu::lenet::Lenet;
use single_gpu::train;
use split_batch::loader::{LocalBatch, ShardLoader};

use super::{Arguments, LEARNING_RATE, Precision, times};

/// Measures a step on one device: of stage 1's LeNet, or of stage 5's if layers compute in bf16.
pub(super) fn lenet(arguments: &Arguments) -> anyhow::Result<Vec<f64>> {
    if arguments.precision == Precision::Bf16 {
        return on_one_device(arguments, |vb, _| LeNet::new(vb));
    }
    let batch = batch(arguments)?;
    let device = arguments.plan(1)?.slots()[0].open()?;
    device.run(|| {
        let model = Lenet::new(1, DType::F32, device.tensors())?;
        times(arguments.repetitions, arguments.warm_up(), || {
            let batch = batch.to_device(device.tensors())?;
            train::train_batch(&model, &batch, LEARNING_RATE)?.read().map(drop)?;
            anyhow::Ok(())
        })
    })
}

pub(super) fn lenet_on_two_devices(arguments: &Arguments) -> anyhow::Result<Vec<f64>> {
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
    Ok(seconds.swap_remove(0))
}

fn batch(arguments: &Arguments) -> anyhow::Result<Batch> {
    let indices: Vec<u32> = (0..).take(arguments.batch.get()).collect();
    Ok(images(indices.len())?.batch(&indices, DType::F32)?)
}

/// Measures a step of ResNet-18 on two devices that share the batch. Batch norm is local, as under PyTorch's DDP.
pub(super) fn resnet18_on_two_devices(arguments: &Arguments) -> anyhow::Result<Vec<f64>> {
    let images = images(arguments.batch.get())?;
    let mut seconds = run_ranks(&arguments.plan(2)?, DEFAULT_TIMEOUT, |rank| {
        let replica = fresh(arguments, &Device::Cpu, resnet18)?;
        let ddp = Ddp::new(replica, rank, Reduction::default())?;
        steps(&ddp, &images, &mut sgd(), arguments, Duration::ZERO)
    })?;
    Ok(seconds.swap_remove(0))
}

pub(super) fn resnet18(vb: &VarBuilder<'_>, norms: &Norms) -> candle_core::Result<ResNet18> {
    ResNet18::new(WIDTH, norms, vb)
}

/// Measures a step on one device, of the network that `build` makes.
pub(super) fn on_one_device<M: ModuleT>(
    arguments: &Arguments,
    build: impl Fn(&VarBuilder<'_>, &Norms) -> candle_core::Result<M> + Send + Sync + 'static,
) -> anyhow::Result<Vec<f64>> {
    let device = arguments.plan(1)?.slots()[0].open()?;
    let images = images(arguments.batch.get())?;
    Ok(device.run(|| {
        let network = fresh(arguments, device.tensors(), build)?;
        steps(&network, &images, &mut sgd(), arguments, arguments.warm_up())
    })?)
}

/// Makes a network with fresh weights, whose layers compute in `--precision`.
fn fresh<M: ModuleT>(
    arguments: &Arguments,
    device: &Device,
    build: impl Fn(&VarBuilder<'_>, &Norms) -> candle_core::Result<M> + Send + Sync + 'static,
) -> Result<Network<M>, Error> {
    let bf16 = arguments.precision == Precision::Bf16;
    Ok(Network::new(1, if bf16 { DType::BF16 } else { DType::F32 }, device, build)?)
}

/// Measures a step of the small GPT on one device, with AdamW.
pub(super) fn gpt(arguments: &Arguments) -> anyhow::Result<Vec<f64>> {
    let &Arguments { batch, blocks, width, heads, context, .. } = arguments;
    let size = Gpt { context, width, heads, blocks, ..Gpt::default() };
    let layers = Layers::gpt(&size)?;
    let mut bytes = vec![0; batch.get() * context + context];
    random::generator(1, "peers/text").fill_bytes(&mut bytes);
    let text = Dataset::text(bytes, context)?;
    let device = arguments.plan(1)?.slots()[0].open()?;
    Ok(device.run(|| {
        let network = layers.build(0..layers.len(), 1, DType::F32, device.tensors())?;
        steps(&network, &text, &mut AdamW::default(), arguments, arguments.warm_up())
    })?)
}

fn steps(
    model: &impl Model,
    images: &Dataset,
    optimizer: &mut dyn Optimizer,
    arguments: &Arguments,
    warm_up: Duration,
) -> Result<Vec<f64>, Error> {
    let batch = arguments.batch.get();
    let shares = ShardLoader::new(images, batch, 1, DType::F32, model.hosts());
    let shares: Vec<LocalBatch> = shares.epoch(1).collect::<candle_core::Result<_>>()?;
    times(arguments.repetitions, warm_up, || {
        let step = model.step(&shares[0], optimizer, LEARNING_RATE)?;
        // The scripts wait for the loss of every step, too.
        Ok(step.sums.read().map(drop)?)
    })
}

fn sgd() -> Sgd {
    Sgd::new(Momentum::default())
}

/// Makes images of uniformly random pixels with uniformly random labels, the same images every time.
///
/// The time of a step may depend on its numbers: a GPU that multiplies zeros needs less power, and can be faster. Many
/// pixels of a garment are black, and no pixel of the scripts is.
fn images(count: usize) -> anyhow::Result<Dataset> {
    let mut images = vec![[0; PIXELS]; count];
    random::generator(1, "peers/images").fill_bytes(images.as_flattened_mut());
    let mut source = random::generator(1, "peers/labels");
    let labels = (0..count).map(|_| (source.next_u32() % CLASSES as u32) as u8).collect();
    Ok(Dataset::new(images, labels)?)
}

//! A training step of LeNet, on one device and on two, on [`noise`].

use std::time::Duration;

use candle_core::{DType, Device};
use concise_wrapper::lenet::LeNet;
use course_tests::lenet::local_batch;
use datasets::Batch;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};
use params_and_allreduce::{Algorithm, get_params};
use scratch_data_parallel::Error;
use single_gpu::lenet::Lenet;
use single_gpu::train;

use super::{Answer, Arguments, LEARNING_RATE, Precision, in_seconds, network, noise, times};

/// Seconds of a step on one device: of stage 1's LeNet, and where its layers are in bf16, of stage 5's.
pub(super) fn on_one_device(arguments: &Arguments) -> anyhow::Result<Answer> {
    if arguments.precision == Precision::Bf16 {
        return network::on_one_device(arguments, |vb, _| LeNet::new(vb));
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

/// Seconds of a step on two devices that share the batch.
///
/// A step ends when the gradients have been added up, so one rank's clock tells.
pub(super) fn on_two_devices(arguments: &Arguments) -> anyhow::Result<Answer> {
    let batch = batch(arguments)?;
    let initial = Lenet::new(1, DType::F32, &Device::Cpu)?;
    let mut seconds = run_ranks(&arguments.plan(2)?, DEFAULT_TIMEOUT, |rank| {
        let model = Lenet::with_parameters(get_params(initial.parameters(), rank.device())?)?;
        let shard = local_batch(&batch, 2, [rank.rank()])?;
        times(arguments.repetitions, Duration::ZERO, || {
            let algorithm = Algorithm::default();
            scratch_data_parallel::train_batch(rank, &model, &shard, LEARNING_RATE, algorithm)?;
            Ok::<_, Error>(())
        })
    })?;
    Ok(in_seconds([("step", seconds.swap_remove(0))]))
}

fn batch(arguments: &Arguments) -> anyhow::Result<Batch> {
    let indices: Vec<u32> = (0..).take(arguments.batch.get()).collect();
    Ok(noise::images(indices.len())?.batch(&indices, DType::F32)?)
}

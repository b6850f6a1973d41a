//! GPUs against the CPU. Without a GPU everything here is skipped, and says so.
//!
//! With fewer GPUs than ranks, ranks share one: then each has a stream of its own on it.

#![cfg(feature = "cuda")]

mod collectives;
#[cfg(feature = "nccl")]
mod models;

use std::time::Duration;

use candle_core::{DType, Device, Shape, Storage, Tensor};
use concise_wrapper::resnet::ResNet18;
use concise_wrapper::weights::Named;
use concise_wrapper::{Model as _, Network};
use datasets::{Batch, Split, synthetic};
use devices::{DeviceKind, DevicePlan, move_view};
use harness::records::BatchSums;
use ops::difference::{largest_difference, relative_difference};
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::get_params;
use params_and_allreduce::thread::run_ranks;
use single_gpu::lenet::Lenet;
use single_gpu::train::train_batch;
use split_batch::loader::LocalBatch;

const STEPS: usize = 5;
const SAMPLES: usize = 37;
const RATE: f64 = 0.2;
const WAIT: Duration = Duration::from_secs(60);

fn gpus(ranks: usize) -> Option<DevicePlan> {
    match DevicePlan::new(DeviceKind::Cuda, ranks, None) {
        Ok(plan) => Some(plan),
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

fn garments(dtype: DType) -> Batch {
    let data = synthetic::dataset(Split::Train, SAMPLES);
    let indices: Vec<u32> = (0..).take(data.len()).collect();
    data.batch(&indices, dtype).unwrap()
}

/// What some steps on a device leave behind, in CPU memory.
fn train(
    initial: &Lenet,
    batch: &Batch,
    device: &Device,
) -> Result<(BatchSums, Vec<(String, Tensor)>), Error> {
    let model = Lenet::with_parameters(get_params(initial.parameters(), device)?)?;
    let batch = batch.to_device(device)?;
    let mut sums = BatchSums::default();
    for _ in 0..STEPS {
        sums = train_batch(&model, &batch, RATE)?.read()?;
    }
    Ok((sums, model.parameters().snapshot()?))
}

#[test]
fn lenet_has_the_numbers_of_the_cpu() {
    for ranks in 1..=3 {
        let Some(plan) = gpus(ranks) else { return };
        let batch = garments(DType::F64);
        let initial = Lenet::new(1, DType::F64, &Device::Cpu).unwrap();
        let (expected, weights) = train(&initial, &batch, &Device::Cpu).unwrap();
        let found = run_ranks(&plan, WAIT, |rank| train(&initial, &batch, rank.device())).unwrap();
        for (rank, (sums, ours)) in found.iter().enumerate() {
            let loss = (sums.loss - expected.loss).abs() / expected.loss;
            assert!(loss <= 1e-10, "rank {rank} of {ranks}: the loss differs by {loss:.1e}");
            assert_eq!((sums.correct, sums.samples), (expected.correct, expected.samples));
            let error = largest_difference(ours, &weights).unwrap();
            assert!(error <= 1e-10, "rank {rank} of {ranks}: the weights differ by {error:.1e}");
        }
    }
}

/// With layers in bf16, ResNet-18's first step on a GPU is the CPU's in f32 but for rounding; `precision.rs`
/// derives the bound.
#[test]
fn in_bf16_resnet18_is_as_near_to_f32_as_its_roundings_let_it_be() {
    let Some(plan) = gpus(1) else { return };
    if let Err(error) = plan.check_bf16() {
        eprintln!("SKIPPED: {error}");
        return;
    }
    let network = |dtype: DType, device: &Device| {
        let network =
            Network::new(1, dtype, &Device::Cpu, |vb, norms| ResNet18::new(8, norms, vb))?;
        network.replica(device)
    };
    let bound = 65.0 / 256.0;
    let (batch, share) = (garments(DType::F32), |batch: &Batch| LocalBatch {
        shards: vec![batch.clone()],
        samples: batch.len(),
    });
    let single = network(DType::F32, &Device::Cpu).unwrap();
    let logits = single.forward_training(&batch.images).unwrap();
    let expected = single.backward(&share(&batch)).unwrap();
    let loss = expected.sums.clone().read().unwrap().loss;
    run_ranks(&plan, WAIT, |rank| {
        let network = network(DType::BF16, rank.device())?;
        let batch = batch.to_device(rank.device())?;
        let found = network.forward_training(&batch.images)?.to_device(&Device::Cpu)?;
        let error = relative_difference(&found, &logits)?;
        assert!(error <= bound, "the logits differ by {error:.1e}");
        let step = network.backward(&share(&batch)).unwrap();
        let error = (step.sums.read()?.loss / loss - 1.0).abs();
        assert!(error <= bound, "the loss differs by {error:.1e}");
        for (Named { name, tensor }, gradient) in
            network.weights().parameters.iter().zip(&step.gradients)
        {
            assert_eq!((tensor.dtype(), gradient.dtype()), (DType::F32, DType::F32), "{name}");
        }
        // No relu stands between the loss and the last layer.
        for last in 60..62 {
            let found = step.gradients[last].to_device(&Device::Cpu)?;
            let error = relative_difference(&found, &expected.gradients[last])?;
            assert!(error <= bound, "gradient {last} differs by {error:.1e}");
        }
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn a_message_is_the_value_at_the_time_it_was_sent() {
    let Some(plan) = gpus(2) else { return };
    let received = run_ranks(&plan, WAIT, |rank| {
        let (shape, dtype) = (Shape::from((2, 2)), DType::F32);
        if rank.rank() == 0 {
            // Two columns of four: a message is what a view shows, and no more.
            let wide = Tensor::arange(0f32, 8.0, rank.device())?.reshape((2, 4))?;
            let value = candle_core::Var::from_tensor(&wide.narrow(1, 1, 2)?)?;
            rank.send(1, &value)?;
            value.set(&value.zeros_like()?)?;
            rank.send(1, &wide.narrow(1, 2, 2)?)?;
            return Ok(vec![]);
        }
        let first = rank.recv(0, &shape, dtype)?;
        let second = rank.recv(0, &shape, dtype)?;
        assert!(first.device().same_device(rank.device()));
        let both = Tensor::cat(&[first, second], 0)?.to_device(&Device::Cpu)?;
        Ok::<_, Error>(both.to_vec2::<f32>()?)
    });
    let expected = [[1.0, 2.0], [5.0, 6.0], [2.0, 3.0], [6.0, 7.0]];
    assert_eq!(received.unwrap()[1], expected);
}

/// The copy is of what was computed, whatever becomes of the tensor while it is on its way.
#[test]
fn what_moves_between_gpus_is_what_was_computed() {
    const SIDE: usize = 256;
    let Some(plan) = gpus(2) else { return };
    let devices: Vec<_> = plan.slots().iter().map(|slot| slot.open().unwrap()).collect();
    let (here, there) = (devices[0].tensors(), devices[1].tensors());
    let ones = Tensor::ones((SIDE, SIDE), DType::F32, here).unwrap();
    let average = (&ones / SIDE as f64).unwrap();
    let moved = |number: u32| {
        // Products, all of whose numbers are 1 to the last bit, are still being computed when the copy is asked for.
        let product = (0..20).try_fold(ones.clone(), |it, _| it.matmul(&average))?;
        let value = (product * f64::from(number))?;
        let moved = move_view(&value, there)?;
        value.slice_set(&value.zeros_like()?, 0, 0)?;
        candle_core::Result::Ok(moved)
    };
    // Whichever stream is looked at first.
    for first in [there, here] {
        let moved: Vec<Tensor> = (1..=20).map(|number| moved(number).unwrap()).collect();
        first.synchronize().unwrap();
        for (number, moved) in (1..).zip(&moved) {
            assert!(moved.device().same_device(there));
            let numbers = moved.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert!(numbers.iter().all(|&found| found == number as f32), "{number}: {numbers:?}");
        }
    }
}

/// Lanes take uploads in turn: none may overtake the one before, or overwrite it, or memory that is still in use.
#[test]
fn what_is_uploaded_arrives_as_it_was() {
    let Some(plan) = gpus(1) else { return };
    run_ranks(&plan, WAIT, |rank| {
        let sizes = (0..40).map(|upload| 1 + (upload * 7919) % 300_000);
        let sent: Vec<Tensor> = sizes
            .map(|size| Tensor::rand(0f32, 1.0, size, &Device::Cpu))
            .collect::<Result<_, _>>()?;
        // The GPU is kept busy, so that uploads wait for it, and memory that is let go is used anew.
        let busy = Tensor::rand(0f32, 1.0, (1024, 1024), rank.device())?;
        let upload = |tensor: &Tensor| {
            let _let_go = (busy.matmul(&busy)?, move_view(&tensor.neg()?, rank.device())?);
            move_view(tensor, rank.device())
        };
        let there: Vec<Tensor> = sent.iter().map(upload).collect::<Result<_, _>>()?;
        for (sent, there) in sent.iter().zip(&there) {
            assert!(there.device().same_device(rank.device()));
            assert_eq!(sent.to_vec1::<f32>()?, there.to_vec1::<f32>()?);
        }
        // A view is sent alone; other types go another way.
        let wide = Tensor::arange(0u32, 12, &Device::Cpu)?.reshape((3, 4))?;
        for dtype in [DType::U32, DType::U8, DType::F64, DType::BF16] {
            let wide = wide.to_dtype(dtype)?;
            let there = move_view(&wide.narrow(1, 1, 2)?, rank.device())?.to_dtype(DType::F64)?;
            let expected = [[1.0, 2.0], [5.0, 6.0], [9.0, 10.0]];
            assert_eq!(there.to_vec2::<f64>()?, expected);
            // And on the way back.
            let back = move_view(&there.narrow(0, 1, 1)?, &Device::Cpu)?;
            assert_eq!(back.to_vec2::<f64>()?, expected[1..2]);
            let Storage::Cpu(storage) = &*back.storage_and_layout().0 else { panic!("{back:?}") };
            assert_eq!(storage.as_slice::<f64>()?.len(), 2, "what lay beside it came along");
        }
        Ok::<_, Error>(())
    })
    .unwrap();
}

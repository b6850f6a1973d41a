//! Two dense layers on two devices, with a send and a receive between them:
//! `cargo run --release -p model-parallel --example two_layers`.
//!
//! The program trains on one device, on two, and on two without the messages of the backward pass. Then two devices train by
//! lists of instructions.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor, Var};
use datasets::source::LoadedData;
use datasets::{Batch, CLASSES, PIXELS};
use devices::{DeviceKind, DevicePlan};
use harness::report::line;
use model_parallel::Action::{
    Backward, Forward, RecvActivation, RecvGradient, SendActivation, SendGradient, Update,
};
use model_parallel::{Instruction, Kind, Schedule};
use model_state::parameters::Parameters;
use ops::backward::{Gradients, backward, backward_from};
use ops::difference::relative_difference;
use ops::{cross_entropy, flatten, linear, linear_relu};
use params_and_allreduce::communicator::{Communicator as _, Error};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, Rank, run_ranks};
use single_gpu::init;
use single_gpu::sgd::sgd;

const SAMPLES: usize = 256;
const HIDDEN: usize = 64;
const STEPS: usize = 100;
const LEARNING_RATE: f64 = 0.1;
const MICRO_BATCHES: usize = 4;

// ANCHOR: layer
/// A dense layer: its parameters, and each of them alone.
struct Dense {
    parameters: Parameters,
    weight: Var,
    bias: Var,
}

impl Dense {
    fn new(name: &str, inputs: usize, outputs: usize, device: &Device) -> Result<Self, Error> {
        let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        let deviation = (2.0 / inputs as f64).sqrt();
        let weight = init::normal(&weight, &[inputs, outputs], deviation, 1, DType::F32, device)?;
        let bias = init::zeros(&bias, &[outputs], DType::F32, device)?;
        let values = (weight.value.clone(), bias.value.clone());
        let parameters = Parameters::new(vec![weight, bias])?;
        Ok(Self { parameters, weight: values.0, bias: values.1 })
    }

    /// Layer 0 and layer 1 of the network.
    fn first(device: &Device) -> Result<Self, Error> {
        Self::new("first", PIXELS, HIDDEN, device)
    }

    fn second(device: &Device) -> Result<Self, Error> {
        Self::new("second", HIDDEN, CLASSES, device)
    }

    /// Updates the layer with the gradients that a backward pass has found.
    fn update(&self, found: &Gradients) -> Result<(), Error> {
        Ok(sgd(&self.parameters, &self.parameters.gradients(found)?, LEARNING_RATE, SAMPLES)?)
    }
}
// ANCHOR_END: layer

// ANCHOR: first
/// Device 0: the first layer. Returns its weight.
fn first_device(rank: &Rank, images: &Tensor, comes_back: bool) -> Result<Results, Error> {
    let layer = Dense::first(rank.device())?;
    let images = images.to_device(rank.device())?;
    for _ in 0..STEPS {
        let h = linear_relu(&images, &layer.weight, &layer.bias)?;
        rank.send_shared(1, &h.detach())?;
        if comes_back {
            let g = rank.recv(1, h.shape(), h.dtype())?;
            layer.update(&backward_from(&h, &g)?)?;
        }
    }
    Ok(Results { losses: vec![], weights: vec![layer.weight.to_device(&Device::Cpu)?] })
}
// ANCHOR_END: first

// ANCHOR: second
/// Device 1: the second layer and the loss. Returns the loss of each step, and the weight.
fn second_device(rank: &Rank, labels: &Tensor, comes_back: bool) -> Result<Results, Error> {
    let layer = Dense::second(rank.device())?;
    let labels = labels.to_device(rank.device())?;
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let h = Var::from_tensor(&rank.recv(0, &(SAMPLES, HIDDEN).into(), DType::F32)?)?;
        let loss = cross_entropy(&linear(&h, &layer.weight, &layer.bias)?, &labels)?;
        let found = backward(&loss)?;
        if let Some(g) = found.get(&h).filter(|_| comes_back) {
            rank.send_shared(0, g)?;
        }
        layer.update(&found)?;
        losses.push(loss.to_scalar::<f32>()? / SAMPLES as f32);
    }
    Ok(Results { losses, weights: vec![layer.weight.to_device(&Device::Cpu)?] })
}
// ANCHOR_END: second

// ANCHOR: list
/// Executes the list of this rank's stage, which has one layer. Returns the sum of the losses.
fn execute(
    rank: &Rank,
    list: &[Instruction],
    layer: &Dense,
    micro_batches: &[Batch],
) -> Result<f32, Error> {
    let (stage, is_last) = (rank.rank(), rank.rank() + 1 == rank.world_size());
    // By micro-batch: activations, gradients of activations, and the input and the result of a forward pass.
    let (mut h, mut g, mut kept) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let (mut sum, mut losses): (Vec<Tensor>, f32) = (Vec::new(), 0.0);
    for instruction in list {
        match instruction.action {
            RecvActivation(i) => {
                let shape = (micro_batches[i].len(), HIDDEN).into();
                h.insert(i, rank.recv(stage - 1, &shape, DType::F32)?);
            }
            Forward(i) => {
                let Batch { images, labels } = &micro_batches[i];
                let input = h.remove(&i).map(|h| Var::from_tensor(&h)).transpose()?;
                let x = input.as_deref().unwrap_or(images);
                let result = if is_last {
                    cross_entropy(&linear(x, &layer.weight, &layer.bias)?, labels)?
                } else {
                    linear_relu(x, &layer.weight, &layer.bias)?
                };
                h.insert(i, result.detach());
                kept.insert(i, (input, result));
            }
            SendActivation(i) => rank.send_shared(stage + 1, &h[&i])?,
            RecvGradient(i) => {
                let sent = &h[&i];
                g.insert(i, rank.recv(stage + 1, sent.shape(), sent.dtype())?);
            }
            Backward(i) => {
                let Some((input, result)) = kept.remove(&i) else { continue };
                let start = if is_last { result.ones_like()? } else { g[&i].clone() };
                let found = backward_from(&result, &start)?;
                if let Some(gradient) = input.as_ref().and_then(|input| found.get(input)) {
                    g.insert(i, gradient.clone());
                }
                let gradients = layer.parameters.gradients(&found)?;
                sum = match sum.is_empty() {
                    true => gradients,
                    false => {
                        sum.iter().zip(&gradients).map(|(a, b)| a + b).collect::<Result<_, _>>()?
                    }
                };
                losses += if is_last { result.to_scalar::<f32>()? } else { 0.0 };
            }
            SendGradient(i) => rank.send_shared(stage - 1, &g[&i])?,
            Update => sgd(&layer.parameters, &sum, LEARNING_RATE, SAMPLES)?,
            _ => return Err(Error::Other(format!("{instruction}: not in this example"))),
        }
    }
    Ok(losses)
}
// ANCHOR_END: list

/// Trains one layer by the list of this rank.
fn by_list(rank: &Rank, schedule: &Schedule, micro_batches: &[Batch]) -> Result<Results, Error> {
    let device = rank.device();
    let layer = if rank.rank() == 0 { Dense::first(device)? } else { Dense::second(device)? };
    let here = |Batch { images, labels }: &Batch| {
        let (images, labels) = (images.to_device(device)?, labels.to_device(device)?);
        Ok(Batch { images, labels })
    };
    let micro_batches = micro_batches.iter().map(here).collect::<Result<Vec<_>, Error>>()?;
    let list = &schedule.lists[rank.rank()];
    let step = |_| Ok(execute(rank, list, &layer, &micro_batches)? / SAMPLES as f32);
    let losses = (0..STEPS).map(step).collect::<Result<Vec<f32>, Error>>()?;
    // The second device has the losses.
    let losses = if rank.rank() == 0 { vec![] } else { losses };
    Ok(Results { losses, weights: vec![layer.weight.to_device(&Device::Cpu)?] })
}

/// The loss of each step, and the final weights of both layers.
#[derive(Default)]
struct Results {
    losses: Vec<f32>,
    weights: Vec<Tensor>,
}

/// Both layers on one device.
fn one_device(rank: &Rank, Batch { images, labels }: &Batch) -> Result<Results, Error> {
    let device = rank.device();
    let (first, second) = (Dense::first(device)?, Dense::second(device)?);
    let (images, labels) = (images.to_device(device)?, labels.to_device(device)?);
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let h = linear_relu(&images, &first.weight, &first.bias)?;
        let loss = cross_entropy(&linear(&h, &second.weight, &second.bias)?, &labels)?;
        let found = backward(&loss)?;
        first.update(&found)?;
        second.update(&found)?;
        losses.push(loss.to_scalar::<f32>()? / SAMPLES as f32);
    }
    let weights = [&first, &second].map(|layer| layer.weight.to_device(&Device::Cpu));
    Ok(Results { losses, weights: weights.into_iter().collect::<Result<_, _>>()? })
}

/// Trains on so many devices, each of which runs `work`.
fn train(
    devices: usize,
    work: impl Fn(&Rank) -> Result<Results, Error> + Sync,
) -> anyhow::Result<Results> {
    let plan = DevicePlan::new(DeviceKind::Auto, devices, None)?;
    let mut all = Results::default();
    for of_rank in run_ranks(&plan, DEFAULT_TIMEOUT, work)? {
        all.losses.extend(of_rank.losses);
        all.weights.extend(of_rank.weights);
    }
    Ok(all)
}

fn main() -> anyhow::Result<()> {
    harness::cli::prepare(); // before anything else: each device computes on its own cores
    let garments = LoadedData::draw((Some(SAMPLES), Some(1))).train;
    let samples: Vec<u32> = (0..SAMPLES as u32).collect();
    let mut batch = garments.batch(&samples, DType::F32)?;
    batch.images = flatten(&batch.images)?;
    let on_two = |comes_back| {
        train(2, |rank| match rank.rank() {
            0 => first_device(rank, &batch.images, comes_back),
            _ => second_device(rank, &batch.labels, comes_back),
        })
    };
    let (each, mut micro_batches) = (SAMPLES / MICRO_BATCHES, Vec::new());
    for i in 0..MICRO_BATCHES {
        let of = |tensor: &Tensor| tensor.narrow(0, i * each, each);
        micro_batches.push(Batch { images: of(&batch.images)?, labels: of(&batch.labels)? });
    }
    let by_list = |kind: Kind| {
        let schedule = kind.schedule(2, MICRO_BATCHES)?;
        train(2, |rank| by_list(rank, &schedule, &micro_batches))
    };
    let ways = [
        ("one device", train(1, |rank| one_device(rank, &batch))?),
        ("two devices", on_two(true)?),
        ("two devices, nothing comes back", on_two(false)?),
        ("two devices, the list of GPipe", by_list(Kind::GPipe)?),
        ("two devices, the list of 1F1B", by_list(Kind::OneFOneB)?),
    ];
    let initial = [Dense::first(&Device::Cpu)?.weight, Dense::second(&Device::Cpu)?.weight];
    line(format_args!("{:32}  loss of step         change of the weight of", ""))?;
    line(format_args!("{:32}  {:>5}  {STEPS:>5}        layer 0  layer 1", "", 1))?;
    for (name, Results { losses, weights }) in ways {
        let change = |layer: usize| relative_difference(&weights[layer], &initial[layer]);
        line(format_args!(
            "{name:32}  {:>5.2}  {:>5.2}        {:>7.2}  {:>7.2}",
            losses[0],
            losses[STEPS - 1],
            change(0)?,
            change(1)?,
        ))?;
    }
    Ok(())
}

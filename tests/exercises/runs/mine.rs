//! The capstone, `cargo course run mine`: chapter 4's training with the learner's answers in place of our code.
//!
//! A row of `PIECES` names a part of the training, and the exercises whose answers can do this part. The first of them
//! that has passed its check does the part, and our code does all other parts.

use std::any::Any;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use candle_core::{DType, Device};
use datasets::source::LoadedData;
use devices::DevicePlan;
use harness::records::TrainOptions;
use harness::report::{Report, counted, line, paragraph};
use ops::backward::no_grad;
use params_and_allreduce::communicator::{Communicator as _, SharedCommunicator};
use params_and_allreduce::thread::run_ranks;
use params_and_allreduce::{Algorithm, get_params};
use scratch_data_parallel::train::Outcome;
use scratch_data_parallel::{Error as TrainError, Method, allreduce_sums, train, train_batch};
use single_gpu::lenet::{LayerFunctions, Layers, Lenet};
use single_gpu::sgd::sgd;
use single_gpu::train::{Step, local_gradients};
use split_batch::loader::{EpochShare, LocalBatch, Shards};
use split_batch::shard_range;

use super::comparison::{Row, show, weights};
use super::data_parallel::{self, Sums, TIMEOUT, Yours, images};
use super::layers::{with_cross_entropy, with_pool_gradient};
use super::{Peer, ch02_allreduce, ch02_owners, ch02_ring};
use super::{ch04_accuracy, ch04_batch_scaling, ch04_fused_allreduce, ch04_train_batch};
use crate::scaling::{RateRule, Tuned};

/// The answers by the names of their exercises. An answer that is left out has a reason.
pub type Answers<'a> = &'a [(&'a str, Result<&'a dyn Any, &'a str>)];

/// The parts of the training, each with the exercises whose answers can do it.
const PIECES: [(&str, &[&str]); 8] = [
    ("gradient of pooling", &["ch01_pool_gradient"]),
    ("loss", &["ch01_cross_entropy"]),
    ("all-reduce", &["ch02_ring", "ch02_owners", "ch02_allreduce"]),
    ("samples of a rank", &["ch03_sampler"]),
    ("training step", &["ch04_train_batch"]),
    ("one sum for all", &["ch04_fused_allreduce"]),
    ("batch for each", &["ch04_batch_scaling"]),
    ("test accuracy", &["ch04_accuracy"]),
];

const OPTIONS: TrainOptions = TrainOptions { epochs: 3, ..data_parallel::OPTIONS };

/// With the loops of chapter 1, an epoch takes many times as long.
const PLAIN: TrainOptions = TrainOptions { epochs: 1, ..OPTIONS };

/// How the gradients of a step are made and summed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    /// One all-reduce for each gradient.
    Each,
    /// One all-reduce for all gradients.
    Fused,
    /// Each device has its own batch, half of ours.
    Scaled,
}

/// The program of the answers that passed.
pub fn main(answers: Answers<'_>) -> ExitCode {
    super::main(|| run(answers))
}

fn run(answers: Answers<'_>) -> Result<(), Box<dyn Error>> {
    let (data, mine) = (images(), Mine::of(answers)?);
    let options = if mine.is_plain { PLAIN } else { OPTIONS };
    let (images, epochs) = (counted(data.train.len(), "image"), counted(options.epochs, "epoch"));
    line(format_args!("LeNet on 2 devices, {images}, {epochs}, with your answers"))?;
    for (piece, exercises) in PIECES {
        line(format_args!("  {piece:19}  {}", whose(answers, exercises)))?;
    }
    let plan = DevicePlan::slices(2)?;
    let method = Method::AllReduce(mine.same_algorithm);
    let ours = method.train(&data, &options, DType::F32, &plan, &mut Report::silent())?;
    let first = if mine.train_batch.is_some() { Way::Each } else { Way::Fused };
    let mut runs = vec![("yours", mine.train(&data, &plan, &options, first)?)];
    // Chapter 1 is in the first run only.
    let fast = Mine { layers: Layers::Fast.into(), ..mine };
    if first == Way::Each && mine.fused.is_some() {
        let run = fast.train(&data, &plan, &options, Way::Fused)?;
        runs.push(("yours, one sum for all", run));
    }
    if mine.scaled.is_some() {
        let run = fast.train(&data, &plan, &options, Way::Scaled)?;
        runs.push(("yours, a batch for each device", run));
    }
    let mut rows: Vec<Row<'_>> = runs.iter().map(|(name, run)| Row::of(name, run)).collect();
    for (row, (_, run)) in rows.iter_mut().zip(&runs) {
        row.accuracy = mine.accuracy(run, &data, &plan)?.unwrap_or(row.accuracy);
    }
    let name = format!("scratch-data-parallel, {}", mine.same_algorithm);
    rows.push(Row::of(&name, &ours));
    line("")?;
    show("", &rows)?;
    let wrong = "your answers pass their checks, but not together.";
    let weights = weights(&runs[0].1, &ours, wrong)?;
    let slow = " Your loops of chapter 1 are slower than the engine's layers.";
    let slow = if mine.is_plain { slow } else { "" };
    Ok(paragraph(format_args!("\n{weights}{slow}"))?)
}

/// Says who does a piece: the learner's answer to the first of these exercises that passes, or we.
fn whose(answers: Answers<'_>, exercises: &[&str]) -> String {
    let found = |name: &&str| answers.iter().find(|(exercise, _)| exercise == name);
    let mut all = exercises.iter().filter_map(found);
    match all.clone().find(|(_, answer)| answer.is_ok()).or_else(|| all.next()) {
        Some((name, Ok(_))) => format!("yours  {name}"),
        Some((name, Err(why))) => format!("ours   {name}: {why}"),
        None => format!("ours   there is no {}", exercises.join(", ")),
    }
}

/// The learner's answer to an exercise, if it has passed. Fails when the answer has another type than its run takes.
fn answer<A: Copy + 'static>(answers: Answers<'_>, name: &str) -> Result<Option<A>, String> {
    let Some((_, Ok(found))) = answers.iter().find(|(exercise, _)| *exercise == name) else {
        return Ok(None);
    };
    let found = found.downcast_ref::<A>();
    found.map_or_else(|| Err(format!("{name} has another type")), |answer| Ok(Some(*answer)))
}

/// The learner's answers, where they have passed.
#[derive(Clone, Copy)]
struct Mine {
    layers: LayerFunctions,
    /// Whether a layer has the learner's loops.
    is_plain: bool,
    sums: Option<Sums<'static>>,
    /// Our all-reduce that adds up as the learner's does.
    same_algorithm: Algorithm,
    sampler: Option<EpochShare>,
    train_batch: Option<ch04_train_batch::Answer>,
    fused: Option<ch04_fused_allreduce::Answer>,
    scaled: Option<ch04_batch_scaling::Answer>,
    accuracy: Option<ch04_accuracy::Answer>,
}

impl Mine {
    fn of(answers: Answers<'_>) -> Result<Self, String> {
        let mut layers = LayerFunctions::from(Layers::Fast);
        let pool_gradient = answer(answers, "ch01_pool_gradient")?;
        if let Some(answer) = pool_gradient {
            layers = with_pool_gradient(layers, answer);
        }
        let cross_entropy = answer(answers, "ch01_cross_entropy")?;
        if let Some(answer) = cross_entropy {
            layers = with_cross_entropy(layers, answer);
        }
        // The ranks of both runs use the sums until the program ends.
        let ring = answer(answers, "ch02_ring")?;
        let ring = ring.map(|ring| -> Sums<'_> { Box::leak(Box::new(ch02_ring::sums(ring))) });
        let owners = answer(answers, "ch02_owners")?;
        let owners = owners.map(|it| -> Sums<'_> { Box::leak(Box::new(ch02_owners::sums(it))) });
        let naive = answer(answers, "ch02_allreduce")?;
        let naive = naive.map(|it| -> Sums<'_> { Box::leak(Box::new(ch02_allreduce::sums(it))) });
        Ok(Self {
            layers,
            is_plain: pool_gradient.is_some() || cross_entropy.is_some(),
            same_algorithm: match (&ring, owners.or(naive)) {
                (Some(_), _) => Algorithm::Ring,
                (None, Some(_)) => Algorithm::Naive,
                (None, None) => Algorithm::default(),
            },
            sums: ring.or(owners).or(naive),
            sampler: answer(answers, "ch03_sampler")?,
            train_batch: answer(answers, "ch04_train_batch")?,
            fused: answer(answers, "ch04_fused_allreduce")?,
            scaled: answer(answers, "ch04_batch_scaling")?,
            accuracy: answer(answers, "ch04_accuracy")?,
        })
    }

    /// Trains with the answers.
    fn train(
        &self,
        data: &LoadedData,
        plan: &DevicePlan,
        options: &TrainOptions,
        way: Way,
    ) -> Result<Outcome, Box<dyn Error>> {
        let shards = |rank, world_size| {
            let ours = match way {
                Way::Scaled => Shards::WHOLE,
                _ => Shards::of_rank(rank, world_size),
            };
            Shards { sampler: self.sampler.unwrap_or(ours.sampler), ..ours }
        };
        let step = |comm: &SharedCommunicator, model: &Lenet, batch: &LocalBatch, rate| {
            self.step(comm, model, batch, rate, way)
        };
        let report = &mut Report::silent();
        Ok(train(data, options, DType::F32, plan, report, shards, step)?)
    }

    fn step(
        &self,
        comm: &SharedCommunicator,
        model: &Lenet,
        batch: &LocalBatch,
        rate: f64,
        way: Way,
    ) -> Result<Step, TrainError> {
        let parameters = model.parameters().clone();
        let model = Lenet::with_parameters(parameters)?.with_layers(self.layers);
        let (rank, algorithm) = match self.sums {
            Some(sums) => (Peer(Arc::new(Yours { comm: comm.clone(), sums })), Algorithm::Native),
            None => (Peer(comm.clone()), self.same_algorithm),
        };
        match (way, self.train_batch, self.fused, self.scaled) {
            (Way::Scaled, .., Some(scaled_step)) => {
                let batch_size = OPTIONS.batch_size / rank.world_size();
                let settings = (Tuned { batch_size, learning_rate: rate }, RateRule::Keep);
                ch04_batch_scaling::step(scaled_step, &rank, model, batch, settings)
            }
            (Way::Fused, _, Some(allreduce_fused), _) => {
                let shard = batch.shards[0].to_device(comm.device())?;
                let local = local_gradients(&model, &shard)?;
                let gradients = allreduce_fused(&rank, &local.gradients, algorithm)?;
                sgd(model.parameters(), &gradients, rate, batch.samples)?;
                Ok(Step { sums: allreduce_sums(&rank, local.sums, algorithm)?, gradients })
            }
            (_, Some(train_batch), ..) => train_batch(&rank, &model, batch, rate, algorithm),
            _ => train_batch(&rank, &model, batch, rate, algorithm),
        }
    }

    /// The test accuracy of the final weights by the learner's function, if there is one: each rank has its own test images.
    fn accuracy(
        &self,
        run: &Outcome,
        data: &LoadedData,
        plan: &DevicePlan,
    ) -> Result<Option<f64>, Box<dyn Error>> {
        let Some(accuracy) = self.accuracy else { return Ok(None) };
        let trained = Lenet::new(OPTIONS.seed, DType::F32, &Device::Cpu)?;
        for (parameter, (_, weights)) in trained.parameters().iter().zip(&run.weights) {
            parameter.value.set(weights)?;
        }
        let found = run_ranks(plan, TIMEOUT, |rank| {
            let model = Lenet::with_parameters(get_params(trained.parameters(), rank.device())?)?;
            let images = shard_range(data.test.len(), plan.len(), rank.rank());
            let images: Vec<u32> = images.map(|image| image as u32).collect();
            let images = data.test.batch(&images, DType::F32)?.to_device(rank.device())?;
            let logits = no_grad(|| model.forward(&images.images))?.to_dtype(DType::F64)?;
            accuracy(&Peer(rank.into()), &logits, &images.labels)
        })?;
        Ok(found.first().copied())
    }
}

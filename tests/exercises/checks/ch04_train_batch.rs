//! Chapter 4, `book/src/ch04-data-parallel.md`: one training step on k devices.
//!
//! k devices equal one, in f64: the update, the gradients and the sums of every rank, on shards of all kinds.

use datasets::Split;
use datasets::synthetic::dataset;
use ops::difference::relative_difference;
use scratch_data_parallel::Error as StageError;
use single_gpu::lenet::Lenet;
use single_gpu::train::{Step, local_gradients};
use split_batch::loader::LocalBatch;
use split_batch::split_batch;

use crate::prelude::*;
use crate::shards;

/// A rank, its replica, its shard of the batch, the learning rate and the algorithm; the step.
pub type Answer = fn(&Rank, &Lenet, &LocalBatch, f64, Algorithm) -> Result<Step, StageError>;

pub const LAWS: &[Law<Answer>] = laws![
    k_devices_equal_one: step in
        [UNEQUAL, Case(2, 4, 0.5, Algorithm::Naive), Case(1, 3, 0.5, Algorithm::OneShot)],
    every_algorithm: step in [Case(3, 7, 0.3, Algorithm::Ring), Case(4, 6, 0.7, Algorithm::Tree)],
    empty_shards: step in [Case(3, 2, 0.5, Algorithm::Naive), Case(3, 1, 0.4, Algorithm::OneShot)],
    each_number_is_added_up_once in
        [Case(3, 7, 0.3, Algorithm::Ring), Case(3, 7, 0.3, Algorithm::Naive), UNEQUAL],
    errors_are_passed_on => (3, Sends::Buffered)
        |answer, rank| Case(3, 7, 0.5, Algorithm::Ring).step(answer, rank),
];

const DIVIDE: &str = "k devices equal one: add up the gradients of all shards, then divide once, by the samples of the whole batch";
const RESULT: &str = "the result is about the whole batch, before the update, on every rank";
const ALL: &str = "all ranks take part in every all-reduce, even a rank with an empty shard";
const ONCE: &str = "each gradient is added up in one all-reduce; the caller names the algorithm";

/// Relative differences in f64 that are rounding.
const ROUNDING: f64 = 1e-10;

/// Bytes that other chunks of the same numbers may add in a ring.
const SLACK: u64 = 2048;

/// Devices, samples of the batch, rate, and algorithm.
#[derive(Clone, Copy)]
struct Case(usize, usize, f64, Algorithm);

const UNEQUAL: Case = Case(2, 5, 0.25, Algorithm::OneShot);

shown!(Case(devices, samples, rate, algorithm) =>
    "{}, {samples} samples, rate {rate}, Algorithm::{algorithm:?}", counted(*devices, "device"));

/// What a step leaves on a rank.
struct Found {
    step: Step,
    weights: Weights,
    sent: Traffic,
}

/// LeNet with weights ten times as large: then no tensor has a tiny gradient.
fn replica(device: &Device) -> Result<Lenet> {
    let model = Lenet::new(1, DType::F64, device)?;
    for parameter in model.parameters().iter() {
        parameter.value.set(&(parameter.value.as_detached_tensor() * 10.0)?)?;
    }
    Ok(model)
}

impl Case {
    fn batch(self) -> Result<Batch> {
        let samples: Vec<u32> = (0..self.1 as u32).collect();
        dataset(Split::Train, 16).batch(&samples, DType::F64)
    }

    fn shards(self) -> Result<Vec<Batch>> {
        let Batch { images, labels } = self.batch()?;
        let shards = split_batch(&images, &labels, self.0)?;
        Ok(shards.into_iter().map(|(images, labels)| Batch { images, labels }).collect())
    }

    fn step(self, answer: Answer, rank: &Rank) -> Result<Found, Error> {
        let model = replica(rank.device())?;
        let shard = self.shards()?.swap_remove(rank.rank());
        let batch = LocalBatch { shards: vec![shard], samples: self.1 };
        let step = answer(rank, &model, &batch, self.2, self.3).map_err(|error| match error {
            StageError::Tensor(error) => error.into(),
            StageError::Communication(error) => error,
            other => Error::Other(other.to_string()),
        })?;
        Ok(Found { step, weights: model.parameters().snapshot()?, sent: rank.traffic() })
    }

    fn steps(self, answer: Answer) -> Outcome<Vec<Found>> {
        let found = ranks::run(self.0, Sends::Buffered, move |rank| self.step(answer, rank));
        found.map_err(ranks::all_take_part(ALL, self.1 < self.0))
    }
}

/// The gradients of one device with the whole batch are the right ones.
fn step(answer: Answer, &case: &Case) -> Outcome {
    let (found, shards) = (case.steps(answer)?, case.shards()?);
    let initial = replica(&Device::Cpu)?;
    let before = initial.parameters().snapshot()?;
    let right = local_gradients(&initial, &case.batch()?)?;
    let of_shards = shards.iter().map(|shard| local_gradients(&initial, shard));
    let of_shards: Vec<Step> = of_shards.collect::<Result<_>>()?;
    let sizes: Vec<usize> = shards.iter().map(Batch::len).collect();
    let compare = |rank: usize, what: &str, got: &[Tensor], expected: &str, law: &str| -> Outcome {
        same(format!("the tensors of {what}"), right.gradients.len(), got.len(), law)?;
        let apart = right.gradients.iter().zip(got).map(|(it, got)| relative_difference(got, it));
        let apart: Vec<f64> = apart.collect::<Result<_>>()?;
        // NaN counts as a difference.
        let agrees = |&index: &usize| apart[index] <= ROUNDING;
        let wrong: Vec<usize> = (0..apart.len()).filter(|index| !agrees(index)).collect();
        demand(wrong.is_empty(), || {
            let names = match wrong.len() == apart.len() {
                true => "every parameter".to_owned(),
                false => in_a_row(wrong.iter().map(|&index| &before[index].0)),
            };
            let larger = |a: f64, b: f64| if b > a || b.is_nan() { b } else { a };
            let largest = wrong.iter().map(|&index| apart[index]).fold(0.0, larger);
            // Whether a tensor is the sum of the shards' gradients with these factors.
            let is_sum = |index: usize, factors: &[f64]| {
                let terms = of_shards.iter().zip(factors);
                let terms = terms.map(|(step, times)| &step.gradients[index] * *times);
                let sum = terms.reduce(|sum, term| sum? + term?).and_then(Result::ok);
                let apart = sum.and_then(|sum| relative_difference(&got[index], &sum).ok());
                apart.is_some_and(|apart| apart <= 1e-8)
            };
            let fits = |factors: &[f64]| wrong.iter().all(|&index| is_sum(index, factors));
            let guess = shards::guess(&sizes, rank, fits);
            let in_f32 = || (largest < 1e-5).then(|| "was it computed in f32?".to_owned());
            Finding::new(format!("{what} of {names} is wrong on rank {rank}"))
                .expected(expected, format!("a relative difference of {largest:.1e}"))
                .note(guess.or_else(in_f32))
                .law(law)
        })
    };
    let factor = case.2 / case.1 as f64;
    let update = format!("{} times the gradient of the batch: rate / samples", short(factor));
    let told = |it: BatchSums| format!("{} of {} correct", it.correct, it.samples);
    for (rank, Found { step, weights, .. }) in found.iter().enumerate() {
        let pairs = before.iter().zip(weights);
        let updates = pairs.map(|((_, old), (_, new))| (old - new)? / factor);
        let updates = updates.collect::<Result<Vec<_>>>()?;
        compare(rank, "the update", &updates, &update, DIVIDE)?;
        let sums = "the gradient, summed over the samples of the batch";
        compare(rank, "the gradient in the result", &step.gradients, sums, RESULT)?;
        let what = format!("the sums on rank {rank} are wrong");
        same(&what, told(right.sums), told(step.sums), RESULT)?;
        let loss = Expectation::of(format!("{what}: the loss")).law(RESULT).up_to(ROUNDING);
        loss.compare(&[right.sums.loss], &[step.sums.loss])?;
    }
    let weights: Vec<Weights> = found.into_iter().map(|it| it.weights).collect();
    replicas::agree("a step", &weights)
}

/// The ranks may send several tensors together. In a ring, the chunks then have other sizes. The sums may be three numbers or four.
fn each_number_is_added_up_once(answer: Answer, &case: &Case) -> Outcome {
    let sent: Vec<Traffic> = case.steps(answer)?.iter().map(|it| it.sent).collect();
    let model = replica(&Device::Cpu)?;
    let shapes = model.parameters().iter().map(|it| it.value.shape().clone());
    let shapes: Vec<Shape> = shapes.chain([4.into()]).collect();
    let slack = if case.3 == Algorithm::Ring { SLACK } else { 8 * (case.0 as u64 - 1) };
    shards::sent_once(&sent, &shapes, case.3, slack, ONCE)
}

//! Chapter 4, `book/src/ch04-data-parallel.md`: one training step on k devices.
//!
//! k devices equal one, in f64: the update, the gradients and the sums of each rank, on shards of all kinds.

use std::fmt;

use candle_core::Shape;
use datasets::synthetic::dataset;
use datasets::{Batch, Split};
use harness::records::BatchSums;
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

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    k_devices_equal_one: step in
        [UNEQUAL, Case(2, 4, 0.5, Algorithm::Naive), Case(1, 3, 0.5, Algorithm::OneShot)],
    every_algorithm: step in [Case(3, 7, 0.3, Algorithm::Ring), Case(4, 6, 0.7, Algorithm::Tree)],
    empty_shards: step in [Case(3, 2, 0.5, Algorithm::Naive), Case(3, 1, 0.4, Algorithm::OneShot)],
    each_number_is_added_up_once in
        [Case(3, 7, 0.3, Algorithm::Ring), Case(3, 7, 0.3, Algorithm::Naive), UNEQUAL],
    errors_are_passed_on
];

const DIVIDE: &str = "k devices equal one: add up the gradients of all shards, then divide once, by the samples of the whole batch";
const RESULT: &str = "the result is about the whole batch, before the update, on every rank";
const ALL: &str = "all ranks take part in every all-reduce, even a rank with an empty shard";
const ONCE: &str =
    "each gradient is added up in one all-reduce, and the caller decides on the algorithm";

/// Relative differences in f64 that are rounding.
const ROUNDING: f64 = 1e-10;

/// Bytes that another cut of the same numbers into messages may add.
const SLACK: u64 = 2048;

/// Devices, samples of the batch, rate, and algorithm.
#[derive(Clone, Copy)]
struct Case(usize, usize, f64, Algorithm);

const UNEQUAL: Case = Case(2, 5, 0.25, Algorithm::OneShot);

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(devices, samples, rate, algorithm) = self;
        let devices = counted(*devices, "device");
        write!(f, "{devices}, {samples} samples, rate {rate}, Algorithm::{algorithm:?}")
    }
}

/// What a step leaves on a rank, or on one device with the whole batch.
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

    /// One device's step with the whole batch.
    fn alone(self) -> Result<Found> {
        let model = replica(&Device::Cpu)?;
        let step = local_gradients(&model, &self.batch()?)?;
        sgd(model.parameters(), &step.gradients, self.2, self.1)?;
        Ok(Found { step, weights: model.parameters().snapshot()?, sent: Traffic::default() })
    }
}

fn step(answer: Answer, &case: &Case) -> Outcome {
    let found = case.steps(answer)?;
    let (right, initial) = (case.alone()?, replica(&Device::Cpu)?);
    let before = initial.parameters().snapshot()?;
    let shards = case.shards()?;
    let of_shards = shards.iter().map(|shard| local_gradients(&initial, shard));
    let of_shards: Vec<Step> = of_shards.collect::<Result<_>>()?;
    let update = |weights: &Weights| -> Result<Vec<Tensor>> {
        before.iter().zip(weights).map(|((_, old), (_, new))| old - new).collect()
    };
    for (rank, Found { step, weights, .. }) in found.iter().enumerate() {
        let compared = Compared { names: &before, shards: &shards, of_shards: &of_shards, rank };
        let factor = case.2 / case.1 as f64;
        let expected = format!("{} times the gradient of the batch: rate / samples", short(factor));
        let updates = [update(&right.weights)?, update(weights)?];
        compared.tensors("the update", &updates, factor, (&expected, DIVIDE))?;
        let gradients = [&right.step, step].map(|step| step.gradients.clone());
        same("the number of gradients", gradients[0].len(), gradients[1].len(), RESULT)?;
        let expected = "the gradient, summed over the samples of the batch";
        compared.tensors("the gradient in the result", &gradients, 1.0, (expected, RESULT))?;
        compared.sums(right.step.sums, step.sums)?;
    }
    let everything = |found: &Found| -> Result<Weights> {
        let mut all = found.weights.clone();
        all.extend(found.step.gradients.iter().map(|it| ("gradient".to_owned(), it.clone())));
        all.push(("sums".to_owned(), Tensor::new(&found.step.sums.to_array(), &Device::Cpu)?));
        Ok(all)
    };
    replicas::agree("a step", &found.iter().map(everything).collect::<Result<Vec<_>>>()?)
}

/// The tensors of a rank beside the tensors of one device.
struct Compared<'a> {
    names: &'a Weights,
    shards: &'a [Batch],
    of_shards: &'a [Step],
    rank: usize,
}

impl Compared<'_> {
    /// Compares tensors of all parameters, which should be `factor` times the gradients of the batch.
    fn tensors(
        &self,
        what: &str,
        [right, got]: &[Vec<Tensor>; 2],
        factor: f64,
        (expected, law): (&str, &str),
    ) -> Outcome {
        let apart = right.iter().zip(got).map(|(right, got)| relative_difference(got, right));
        let apart: Vec<f64> = apart.collect::<Result<_>>()?;
        // NaN counts as a difference.
        let agrees = |&index: &usize| apart[index] <= ROUNDING;
        let wrong: Vec<usize> = (0..apart.len()).filter(|index| !agrees(index)).collect();
        demand(wrong.is_empty(), || {
            let names = match wrong.len() == apart.len() {
                true => "every parameter".to_owned(),
                false => in_a_row(wrong.iter().map(|&index| &self.names[index].0)),
            };
            let larger = |a: f64, b: f64| if b > a || b.is_nan() { b } else { a };
            let largest = wrong.iter().map(|&index| apart[index]).fold(0.0, larger);
            let sizes: Vec<usize> = self.shards.iter().map(Batch::len).collect();
            let fits = |factors: &[f64]| {
                wrong.iter().all(|&index| self.is_sum(&got[index], index, factor, factors))
            };
            let guess = shards::guess(&sizes, self.rank, sizes.iter().sum(), fits);
            let in_f32 = || (largest < 1e-5).then(|| "was it computed in f32?".to_owned());
            Finding::new(format!("{what} of {names} is wrong on rank {}", self.rank))
                .expected(expected, format!("a relative difference of {largest:.1e}"))
                .note(guess.or_else(in_f32))
                .law(law)
        })
    }

    /// Whether a tensor is the sum of the shards' gradients with these factors.
    fn is_sum(&self, got: &Tensor, index: usize, factor: f64, factors: &[f64]) -> bool {
        let terms = self.of_shards.iter().zip(factors);
        let sum = terms.map(|(step, times)| &step.gradients[index] * (factor * times));
        let apart = sum
            .reduce(|sum, term| sum? + term?)
            .and_then(|sum| relative_difference(got, &sum.ok()?).ok());
        apart.is_some_and(|apart| apart <= 1e-8)
    }

    fn sums(&self, right: BatchSums, got: BatchSums) -> Outcome {
        let is = |other: BatchSums| {
            let equal = (got.loss - other.loss).abs() <= ROUNDING * other.loss.abs();
            equal && (got.correct, got.samples) == (other.correct, other.samples)
        };
        let words = |BatchSums { loss, correct, samples, .. }| {
            format!("loss {}, {correct} of {samples} correct", short(loss))
        };
        demand(is(right), || {
            let alone = is(self.of_shards[self.rank].sums);
            let mean = is(BatchSums { loss: right.mean_loss(), ..right });
            let note = match alone {
                true => Some("that fits this rank's shard alone".to_owned()),
                false => mean.then(|| "that fits the mean loss".to_owned()),
            };
            Finding::new(format!("the sums on rank {} are wrong", self.rank))
                .expected(words(right), words(got))
                .note(note)
                .law(RESULT)
        })
    }
}

/// The ranks may send several tensors together.
fn each_number_is_added_up_once(answer: Answer, &case: &Case) -> Outcome {
    let sent = case.steps(answer)?;
    let model = replica(&Device::Cpu)?;
    let shapes = model.parameters().iter().map(|it| it.value.shape().clone());
    let shapes: Vec<Shape> = shapes.chain([4.into()]).collect();
    let traffic = |algorithm| shards::traffic(case.0, &shapes, DType::F64, algorithm);
    let as_much = |expected: &[Traffic]| {
        let mut pairs = expected.iter().zip(&sent);
        pairs.all(|(expected, it)| it.sent.bytes.abs_diff(expected.bytes) <= SLACK)
    };
    let expected = traffic(case.3)?;
    let mut others = Vec::new();
    for other in Algorithm::OURS {
        others.extend(as_much(&traffic(other)?).then(|| format!("Algorithm::{other:?}")));
    }
    demand(as_much(&expected), || {
        let kilobytes = |traffic: Traffic| format!("about {} KB", traffic.bytes / 1000);
        Finding::new("rank 0 sends another number of bytes")
            .expected(kilobytes(expected[0]), kilobytes(sent[0].sent))
            .note((!others.is_empty()).then(|| format!("as with {}", others.join(", "))))
            .law(ONCE)
    })
}

fn errors_are_passed_on(answer: Answer) -> Outcome {
    let case = Case(3, 7, 0.5, Algorithm::Ring);
    ranks::errors_are_passed_on(3, Sends::Buffered, move |rank| case.step(answer, rank))
}

//! Chapter 4, `book/src/ch04-data-parallel.md`: one training step on k devices.
//!
//! k devices equal one, in f64: the update, the gradients and the sums of each rank, on shards of all kinds.

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

/// A rank, its replica, its shard of the batch, the learning rate and the algorithm; the step.
pub type Answer = fn(&Rank, &Lenet, &LocalBatch, f64, Algorithm) -> Result<Step, StageError>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![k_devices_equal_one, errors_are_passed_on];

const DIVIDE: &str = "k devices equal one: add up the gradients of all shards, then divide once, by the samples of the whole batch";
const SUMS: &str = "the result is about the whole batch, before the update, on every rank";

/// Relative differences in f64 that are rounding.
const ROUNDING: f64 = 1e-10;

/// Bytes that another cut of the same numbers into messages may add.
const SLACK: u64 = 2048;

#[derive(Clone, Copy)]
struct Case {
    devices: usize,
    samples: usize,
    rate: f64,
    algorithm: Algorithm,
}

/// Unequal shards, equal ones, one device, empty shards, and every algorithm.
const CASES: [(usize, usize, f64, Algorithm); 7] = [
    (2, 5, 0.25, Algorithm::OneShot),
    (2, 4, 0.5, Algorithm::Naive),
    (1, 3, 0.5, Algorithm::OneShot),
    (3, 7, 0.3, Algorithm::Ring),
    (4, 6, 0.7, Algorithm::Tree),
    (3, 2, 0.5, Algorithm::Naive),
    (3, 5, 0.4, Algorithm::OneShot),
];

/// What a step leaves on a rank.
struct Outcome {
    step: Step,
    weights: Weights,
    sent: Traffic,
}

/// The numbers that a wrong factor of a shard's gradients is made of.
struct Numbers {
    /// 1 for the shard of the rank, and 0 for others.
    own: f64,
    devices: f64,
    samples: f64,
    /// The samples of the rank's shard.
    of_rank: f64,
    /// The samples of the shard.
    of_shard: f64,
}

/// The factor of a shard's gradients in a wrong sum, relative to the right factor.
type Factor = fn(Numbers) -> f64;

/// Mistakes that show in the factors of the shards.
const MISTAKES: [(&str, Factor); 13] = [
    ("this rank's shard alone", |it| it.own),
    ("the mean over this rank's shard alone", |it| it.own * it.samples / it.of_shard),
    ("divided by the number of devices, too: the mean in place of the sum", |it| 1.0 / it.devices),
    ("divided by the samples of this rank's shard, not of the batch", |it| it.samples / it.of_rank),
    ("the mean of the means of the shards: shards may differ in size", |it| {
        it.samples / it.of_shard / it.devices
    }),
    ("the sum of the means of the shards", |it| it.samples / it.of_shard),
    ("divided by the samples of each shard, and by the samples of the batch", |it| {
        1.0 / it.of_shard
    }),
    ("divided by the samples of the batch twice", |it| 1.0 / it.samples),
    ("not divided", |it| it.samples),
    ("divided by the number of devices in place of the samples", |it| it.samples / it.devices),
    ("k times as much: added up twice, or k times the rate", |it| it.devices),
    ("twice as much: is the update made twice?", |_| 2.0),
    ("the negative: is it added in place of subtracted?", |_| -1.0),
];

/// One device's step, and the gradients of each shard.
struct Right {
    case: Case,
    names: Vec<String>,
    shards: Vec<Batch>,
    of_shards: Vec<Step>,
    whole: Step,
    weights: Weights,
    initial: Weights,
}

/// LeNet with weights ten times as large: then the gradient of no tensor is tiny.
fn replica(device: &Device) -> Result<Lenet> {
    let model = Lenet::new(1, DType::F64, device)?;
    for parameter in model.parameters().iter() {
        parameter.value.set(&(parameter.value.as_detached_tensor() * 10.0)?)?;
    }
    Ok(model)
}

impl Case {
    fn batch(self) -> Result<Batch> {
        let samples: Vec<u32> = (0..self.samples as u32).collect();
        dataset(Split::Train, 16).batch(&samples, DType::F64)
    }

    fn shards(self) -> Result<Vec<Batch>> {
        let Batch { images, labels } = self.batch()?;
        let shards = split_batch(&images, &labels, self.devices)?;
        Ok(shards.into_iter().map(|(images, labels)| Batch { images, labels }).collect())
    }

    fn named(self, what: &str) -> String {
        let Self { devices, samples, rate, algorithm } = self;
        format!(
            "{devices} devices share {samples} samples, rate {rate}, Algorithm::{algorithm:?}: {what}"
        )
    }

    fn step(self, answer: Answer, rank: &Rank) -> Result<Outcome, Error> {
        let model = replica(rank.device())?;
        let shard = self.shards()?.swap_remove(rank.rank());
        let batch = LocalBatch { shards: vec![shard], samples: self.samples };
        let step = answer(rank, &model, &batch, self.rate, self.algorithm);
        let step = step.map_err(|error| match error {
            StageError::Tensor(error) => error.into(),
            StageError::Communication(error) => error,
            other => Error::Other(other.to_string()),
        })?;
        Ok(Outcome { step, weights: model.parameters().snapshot()?, sent: rank.traffic() })
    }

    /// One device's step with the whole batch.
    fn right(self) -> Result<Right> {
        let model = replica(&Device::Cpu)?;
        let shards = self.shards()?;
        let of_shards = shards.iter().map(|shard| local_gradients(&model, shard));
        let of_shards = of_shards.collect::<Result<_>>()?;
        let whole = local_gradients(&model, &self.batch()?)?;
        let initial = model.parameters().snapshot()?;
        sgd(model.parameters(), &whole.gradients, self.rate, self.samples)?;
        let weights = model.parameters().snapshot()?;
        let names = initial.iter().map(|(name, _)| name.clone()).collect();
        Ok(Right { case: self, names, shards, of_shards, whole, weights, initial })
    }

    fn check(self, answer: Answer) -> Result<()> {
        let outcomes =
            ranks::attempt(self.devices, Sends::Buffered, move |rank| self.step(answer, rank));
        let outcomes = outcomes.unwrap_or_else(|failure| {
            let law = "all ranks take part in every all-reduce, even a rank with an empty shard";
            let empty = self.samples < self.devices;
            ranks::fail(&self.named("no step"), "a step on every rank", &failure, law, empty)
        });
        let right = self.right()?;
        for (rank, outcome) in outcomes.iter().enumerate() {
            right.the_update(rank, outcome)?;
            right.the_gradients(rank, outcome)?;
            right.the_sums(rank, outcome.step.sums);
        }
        let all: Vec<Weights> = outcomes.iter().map(everything).collect::<Result<_>>()?;
        replicas::agree(&self.named("a step"), &all)?;
        self.one_all_reduce_each(&outcomes)
    }

    /// The traffic of one all-reduce for each gradient, and one for the sums.
    fn traffic(self, algorithm: Algorithm) -> Result<Vec<Traffic>> {
        let shapes: Vec<_> =
            replica(&Device::Cpu)?.parameters().iter().map(|it| it.value.shape().clone()).collect();
        Ok(ranks::run(self.devices, Sends::Buffered, move |rank| {
            for shape in shapes.iter().chain([&4.into()]) {
                rank.all_reduce(&Tensor::zeros(shape, DType::F64, rank.device())?, algorithm)?;
            }
            Ok(rank.traffic())
        }))
    }

    /// The ranks send each gradient in one all-reduce of the algorithm, alone or together with others.
    fn one_all_reduce_each(self, outcomes: &[Outcome]) -> Result<()> {
        let as_much = |traffic: &[Traffic]| {
            let mut pairs = traffic.iter().zip(outcomes);
            pairs.all(|(one, it)| it.sent.bytes.abs_diff(one.bytes) <= SLACK)
        };
        let expected = self.traffic(self.algorithm)?;
        if as_much(&expected) {
            return Ok(());
        }
        let [wanted, got] = [expected[0].bytes, outcomes[0].sent.bytes];
        let mut note = String::new();
        for other in Algorithm::OURS {
            if as_much(&self.traffic(other)?) {
                note = format!(", as with Algorithm::{other:?}");
            }
        }
        let law =
            "each gradient is added up in one all-reduce, and the caller decides on the algorithm";
        let [wanted, got] = [wanted, got].map(|bytes| format!("about {} KB", bytes / 1000));
        fail(&self.named("rank 0 sends another number of bytes"), &wanted, &(got + &note), law)
    }
}

/// The weights, the gradients and the sums of a rank.
fn everything(outcome: &Outcome) -> Result<Weights> {
    let mut all = outcome.weights.clone();
    all.extend(outcome.step.gradients.iter().map(|it| ("gradient".to_owned(), it.clone())));
    let sums = Tensor::new(&outcome.step.sums.to_array(), &Device::Cpu)?;
    all.push(("sums".to_owned(), sums));
    Ok(all)
}

impl Right {
    fn numbers(&self, rank: usize, shard: usize) -> Numbers {
        let [of_rank, of_shard] = [rank, shard].map(|it| self.shards[it].len() as f64);
        let [devices, samples] = [self.case.devices, self.case.samples].map(|it| it as f64);
        Numbers { own: f64::from(u8::from(rank == shard)), devices, samples, of_rank, of_shard }
    }

    fn the_update(&self, rank: usize, outcome: &Outcome) -> Result<()> {
        let update = |weights: &Weights| -> Result<Vec<Tensor>> {
            self.initial.iter().zip(weights).map(|((_, old), (_, new))| old - new).collect()
        };
        let factor = self.case.rate / self.case.samples as f64;
        let expected = format!("{} times the gradient of the batch: rate / samples", short(factor));
        let [right, got] = [update(&self.weights)?, update(&outcome.weights)?];
        self.compare("the update", rank, (&right, &got), (factor, &expected), DIVIDE)
    }

    fn the_gradients(&self, rank: usize, outcome: &Outcome) -> Result<()> {
        let (right, got) = (&self.whole.gradients, &outcome.step.gradients);
        if right.len() != got.len() {
            let [expected, got] = [right.len(), got.len()].map(|n| n.to_string());
            fail(&self.case.named("the number of gradients"), &expected, &got, SUMS);
        }
        let expected = "the gradient, summed over the samples of the batch";
        self.compare("the gradient in the result", rank, (right, got), (1.0, expected), SUMS)
    }

    /// Compares tensors of all parameters. They should be `factor` times the gradients of the batch.
    fn compare(
        &self,
        what: &str,
        rank: usize,
        (right, got): (&[Tensor], &[Tensor]),
        (factor, expected): (f64, &str),
        law: &str,
    ) -> Result<()> {
        let mut wrong = Vec::new();
        let mut apart: f64 = 0.0;
        for (index, (right, got)) in right.iter().zip(got).enumerate() {
            let difference = relative_difference(got, right)?;
            // NaN counts as a difference.
            let equal = difference <= ROUNDING;
            if !equal {
                wrong.push(index);
                apart = if difference > apart || difference.is_nan() { difference } else { apart };
            }
        }
        if wrong.is_empty() {
            return Ok(());
        }
        let names = match wrong.len() == self.names.len() {
            true => "every parameter".to_owned(),
            false => wrong.iter().map(|&it| &*self.names[it]).collect::<Vec<_>>().join(", "),
        };
        let mut guess = String::new();
        for (words, mistake) in MISTAKES {
            if guess.is_empty() && self.fits(got, &wrong, rank, factor, mistake)? {
                guess = format!(": {words}");
            }
        }
        if guess.is_empty() && apart < 1e-5 {
            guess = ": was it computed in f32?".to_owned();
        }
        let what = self.case.named(&format!("{what} of {names} is wrong on rank {rank}"));
        fail(&what, expected, &format!("a relative difference of {apart:.1e}{guess}"), law)
    }

    /// Whether all wrong tensors are these multiples of the gradients of the shards.
    fn fits(
        &self,
        got: &[Tensor],
        wrong: &[usize],
        rank: usize,
        factor: f64,
        mistake: Factor,
    ) -> Result<bool> {
        for &index in wrong {
            let mut sum = got[index].zeros_like()?;
            for (shard, step) in self.of_shards.iter().enumerate() {
                let times = mistake(self.numbers(rank, shard));
                // An empty shard has no mean.
                if self.shards[shard].is_empty() || times == 0.0 {
                    continue;
                }
                sum = (sum + (&step.gradients[index] * (factor * times))?)?;
            }
            if relative_difference(&got[index], &sum)? > 1e-8 || !sums_are_finite(&sum)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn the_sums(&self, rank: usize, got: BatchSums) {
        let right = self.whole.sums;
        let is = |other: BatchSums| {
            let equal = (got.loss - other.loss).abs() <= ROUNDING * other.loss.abs();
            equal && (got.correct, got.samples) == (other.correct, other.samples)
        };
        if is(right) {
            return;
        }
        let mean = BatchSums { loss: right.mean_loss(), ..right };
        let guess = match () {
            () if is(self.of_shards[rank].sums) => ": this rank's shard alone",
            () if is(mean) => ": the mean loss",
            () => "",
        };
        let words = |sums: BatchSums| {
            let BatchSums { loss, correct, samples, .. } = sums;
            format!("loss {}, {correct} of {samples} correct", short(loss))
        };
        let what = self.case.named(&format!("the sums on rank {rank} are wrong"));
        fail(&what, &words(right), &(words(got) + guess), SUMS);
    }
}

fn sums_are_finite(tensor: &Tensor) -> Result<bool> {
    Ok(tensor.sum_all()?.to_scalar::<f64>()?.is_finite())
}

fn k_devices_equal_one(answer: Answer) -> Result<()> {
    for (devices, samples, rate, algorithm) in CASES {
        Case { devices, samples, rate, algorithm }.check(answer)?;
    }
    Ok(())
}

fn errors_are_passed_on(answer: Answer) {
    let case = Case { devices: 3, samples: 7, rate: 0.5, algorithm: Algorithm::Ring };
    ranks::errors_are_passed_on(
        &case.named("a step"),
        case.devices,
        Sends::Buffered,
        move |rank| case.step(answer, rank),
    );
}

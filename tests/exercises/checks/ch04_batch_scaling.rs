//! Chapter 4, `book/src/ch04-data-parallel.md`: k devices, a batch k times as large.
//!
//! The check compares each step with a step of one device on a batch of k·b samples: the samples, the weight of each sample
//! and the result. Then it compares the share and the messages of each rank.

use std::ops::Range;

use datasets::Batch;

use crate::prelude::*;
use crate::scaling::{RateRule, Tuned};
use crate::shards;
use crate::tracer::counted;

/// A rank, its model, an epoch, the number of the step, the settings of one device, and the rule of the rate.
pub type Answer = fn(&Rank, &Classifier, &Batch, usize, Tuned, RateRule) -> Result<(), Error>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    k_devices_with_b_samples_each_equal_one_with_k_times_b: update in steps(RateRule::Keep),
    the_rate_follows_the_rule: update in steps(RateRule::Linear),
    each_gradient_is_added_up_once in steps(RateRule::Keep).into_iter().filter(|it| it.devices == 2),
    errors_are_passed_on => (3, Sends::Buffered) |answer, rank|
        answer(rank, &Classifier::new(1, rank.device())?, &tracer::batch(0..SAMPLES)?, 0, TUNED[0], RateRule::Keep),
];

const SAMPLES: usize = 18;
/// Two settings, so that an answer cannot have the numbers of one.
const TUNED: [Tuned; 2] =
    [Tuned { batch_size: 4, learning_rate: 0.5 }, Tuned { batch_size: 5, learning_rate: 0.2 }];

/// Bytes that another cut of the same numbers into messages may add.
const SLACK: u64 = 256;

const ALL: &str = "all ranks take part in every all-reduce, even a rank with an empty shard";
const NEXT: &str = "the batch of k devices has the next k·b samples of the epoch, and each takes its own shard of them";
const KEEP: &str = "the rate is kept; sum, then divide once, by the size of the whole batch";
const LINEAR: &str =
    "k times the rate in every step; sum, then divide once, by the size of the whole batch";
const OWN: &str = "each rank computes the gradients of its own shard, and of no other";

#[derive(Clone, Copy)]
struct Step {
    devices: usize,
    step: usize,
    tuned: Tuned,
    rule: RateRule,
}

/// All steps of an epoch on one to four devices.
fn steps(rule: RateRule) -> Vec<Step> {
    let epoch = |tuned: Tuned, devices: usize| {
        let steps = 0..SAMPLES.div_ceil(devices * tuned.batch_size);
        steps.map(move |step| Step { devices, step, tuned, rule })
    };
    TUNED
        .iter()
        .flat_map(|&tuned| [2, 1, 3, 4].into_iter().flat_map(move |k| epoch(tuned, k)))
        .collect()
}

shown!(Step { devices, step, tuned: Tuned { batch_size, .. }, rule } =>
    "{devices} devices with {batch_size} samples each, an epoch of {SAMPLES}, RateRule::{rule:?}, step {step}");

/// The results of a step on a rank.
struct Found {
    weights: Weights,
    /// The samples whose gradients the rank has computed.
    worked: usize,
    sent: Traffic,
}

impl Step {
    fn samples(self) -> Range<usize> {
        let size = self.devices * self.tuned.batch_size;
        self.step * size..SAMPLES.min((self.step + 1) * size)
    }

    fn rate(self) -> f64 {
        match self.rule {
            RateRule::Keep => self.tuned.learning_rate,
            RateRule::Linear => self.tuned.learning_rate * self.devices as f64,
        }
    }

    /// One device's weights after a batch of k·b.
    fn expected(self) -> Result<Weights> {
        let model = Classifier::new(1, &Device::Cpu)?;
        let batch = tracer::batch(self.samples())?;
        let gradients = model.gradients(&batch)?.gradients;
        sgd(model.parameters(), &gradients, self.rate(), batch.len())?;
        model.parameters().snapshot()
    }

    fn found(self, answer: Answer) -> Outcome<Vec<Found>> {
        let found = ranks::run(self.devices, Sends::Buffered, move |rank| {
            let model = Classifier::new(1, rank.device())?;
            worked();
            answer(rank, &model, &tracer::batch(0..SAMPLES)?, self.step, self.tuned, self.rule)?;
            let weights = model.parameters().snapshot()?;
            Ok(Found { weights, worked: worked().iter().sum(), sent: rank.traffic() })
        });
        found.map_err(ranks::all_take_part(ALL, self.samples().len() < self.devices))
    }

    /// Each sample of the batch counts with the rate, divided by the samples of the batch.
    fn each_counts_as_it_should(self, rank: usize, counted: &[f64]) -> Outcome {
        let (rate, size) = (self.rate(), self.samples().len());
        let right = rate / size as f64;
        let times: Vec<f64> = self.samples().map(|sample| counted[sample] / right).collect();
        let is_wrong = |times: &f64| (times - 1.0).abs() > 1e-9 || times.is_nan();
        let Some(first) = times.iter().position(is_wrong) else { return Ok(()) };
        let shard = |rank| split_batch::shard_range(size, self.devices, rank).len();
        let sizes: Vec<usize> = (0..self.devices).map(shard).collect();
        let fits = |factors: &[f64]| {
            let of_samples = sizes.iter().zip(factors).flat_map(|(&size, &it)| vec![it; size]);
            of_samples.zip(&times).all(|(factor, times)| (factor - times).abs() < 1e-7)
        };
        // With RateRule::Keep, the sum was right.
        let one_device =
            self.rule == RateRule::Linear && fits(&vec![1.0 / self.devices as f64; self.devices]);
        let guess = match one_device {
            true => Some("that fits the rate of one device".to_owned()),
            false => shards::guess(&sizes, rank, self.devices * self.tuned.batch_size, fits),
        };
        let sample = self.samples().start + first;
        let alike = times.iter().all(|it| (it / times[first] - 1.0).abs() < 1e-6);
        let what = match alike {
            true => "the update".to_owned(),
            false => format!("the part of sample {sample}"),
        };
        let [right, got] = [right, times[first] * right].map(short);
        Err(Finding::new(format!("{what} is {} what it should be", multiple(times[first])))
            .expected(
                format!("{right} times each sample's gradient: rate {rate} / {size} samples"),
                format!("{got} times the gradient of sample {sample}"),
            )
            .note(guess)
            .law(if self.rule == RateRule::Keep { KEEP } else { LINEAR }))
    }

    /// The batch may be cut into equal shards, or into b samples for one rank after another.
    fn each_rank_has_its_shard(self, worked: &[usize]) -> Outcome {
        let (samples, most) = (self.samples().len(), self.tuned.batch_size);
        let too_many = worked.iter().position(|&got| got > most);
        too_many.map_or(Ok(()), |rank| {
            let what = format!("rank {rank} computes the gradients of {} samples", worked[rank]);
            Err(Finding::new(what).expected(format!("at most {most}"), worked[rank]).law(OWN))
        })?;
        same("the samples whose gradients the ranks compute", samples, worked.iter().sum(), OWN)
    }
}

fn update(answer: Answer, &step: &Step) -> Outcome {
    let found = step.found(answer)?;
    let before = Classifier::new(1, &Device::Cpu)?;
    for (rank, Found { weights, .. }) in found.iter().enumerate() {
        let counts = counted(&before, weights, SAMPLES)?;
        let found = in_words(&taking_part(&counts));
        let wanted = in_words(&step.samples().collect::<Vec<_>>());
        same(format!("{found} took part on rank {rank}"), wanted, found, NEXT)?;
        step.each_counts_as_it_should(rank, &counts)?;
    }
    let (weights, worked): (Vec<Weights>, Vec<usize>) =
        found.into_iter().map(|it| (it.weights, it.worked)).unzip();
    replicas::agree("a step", &weights)?;
    let law = "k devices with batches of b equal one with a batch of k·b";
    replicas::equal("another result than on one device", &step.expected()?, &weights[0], law)?;
    step.each_rank_has_its_shard(&worked)
}

/// Two ranks send as many bytes in each algorithm.
fn each_gradient_is_added_up_once(answer: Answer, &step: &Step) -> Outcome {
    let sent: Vec<Traffic> = step.found(answer)?.iter().map(|it| it.sent).collect();
    let model = Classifier::new(1, &Device::Cpu)?;
    let shapes: Vec<_> = model.parameters().iter().map(|it| it.value.shape().clone()).collect();
    let law = "each gradient is added up in one all-reduce";
    shards::sent_once(&sent, &shapes, Algorithm::default(), SLACK, law)
}

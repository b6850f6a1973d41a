//! Chapter 4, `book/src/ch04-data-parallel.md`: k devices, a batch k times as large.
//!
//! One device makes the same step on a batch of k·b samples. The check compares the samples, the weight of each sample and the
//! result. Then the check compares the share and the messages of each rank.

use std::ops::Range;

use crate::micro_batches::{Found, Update, trained};
use crate::prelude::*;
use crate::scaling::{RateRule, Tuned};
use crate::shards;

/// A rank, its model, an epoch, the number of the step, the settings of one device, and the rule of the rate.
pub type Answer = fn(&Rank, &Classifier, &Batch, usize, Tuned, RateRule) -> Result<(), Error>;

pub const LAWS: &[Law<Answer>] = laws![
    k_devices_with_b_samples_each_equal_one_with_k_times_b: update in steps(RateRule::Keep),
    the_rate_follows_the_rule: update in steps(RateRule::Linear),
    each_gradient_is_added_up_once in steps(RateRule::Keep).into_iter().filter(|it| it.devices == 2),
    errors_are_passed_on => (3, Sends::Buffered) |answer, rank|
        answer(rank, &Classifier::new(1, rank.device())?, &tracer::batch(0..SAMPLES)?, 0, TUNED[0], RateRule::Keep),
];

const SAMPLES: usize = 18;
/// An answer cannot have the numbers of both settings.
const TUNED: [Tuned; 2] =
    [Tuned { batch_size: 4, learning_rate: 0.5 }, Tuned { batch_size: 5, learning_rate: 0.2 }];

/// Bytes that another cut of the same numbers into messages may add.
const SLACK: u64 = 256;

const NEXT: &str = "the batch of k devices has the next k·b samples of the epoch, and each takes its own shard of them";
const KEEP: &str = "the rate is kept; sum, then divide once, by the size of the whole batch";
const LINEAR: &str = "k times the rate; sum, then divide once, by the size of the whole batch";
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

impl Step {
    fn samples(self) -> Range<usize> {
        let size = self.devices * self.tuned.batch_size;
        self.step * size..SAMPLES.min((self.step + 1) * size)
    }

    /// The factor of one device's rate.
    fn times(self) -> usize {
        if self.rule == RateRule::Linear { self.devices } else { 1 }
    }

    fn found(self, answer: Answer) -> Outcome<Vec<Found<()>>> {
        let Self { devices, step, tuned, rule } = self;
        trained(devices, self.samples().len() < devices, move |rank, model| {
            answer(rank, model, &tracer::batch(0..SAMPLES)?, step, tuned, rule)
        })
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
    let (weights, worked): (Vec<Weights>, Vec<usize>) = step
        .found(answer)?
        .into_iter()
        .map(|it| (it.weights, it.worked.iter().sum::<usize>()))
        .unzip();
    let Step { devices, tuned, rule, .. } = step;
    let shard = |rank| shard_range(step.samples().len(), devices, rank).len();
    let (shards, times) = ((0..devices).map(shard).collect(), step.times());
    let rate = tuned.learning_rate * times as f64;
    let update = Update::of(step.samples(), shards, "shards", devices, rate);
    let update = Update { times, full: devices * tuned.batch_size, ..update };
    let laws = [("wrong samples", NEXT), ("'s part is", if times > 1 { LINEAR } else { KEEP })];
    let made = update.is_made(&Classifier::new(1, &Device::Cpu)?, &weights);
    made.map_err(|it| it.law_by(&laws))?;
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

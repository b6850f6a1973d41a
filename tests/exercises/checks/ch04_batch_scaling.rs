//! Chapter 4, `book/src/ch04-data-parallel.md`: k devices, a batch k times as large.
//!
//! Each step is compared with one device and a batch of k·b: the samples, the weight of each sample, the result, and the
//! share of each rank.

use std::ops::Range;

use datasets::Batch;

use crate::panicking;
use crate::prelude::*;
use crate::scaling::{RateRule, Tuned};
use crate::tracer::counted;

/// A rank, its model, an epoch, the number of the step, the settings of one device, and the rule of the rate.
pub type Answer = fn(&Rank, &Classifier, &Batch, usize, Tuned, RateRule) -> Result<(), Error>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] =
    laws![k_devices_with_b_samples_each_equal_one_with_k_times_b, errors_are_passed_on];

const SEED: u64 = 1;
const SAMPLES: usize = 18;
/// Two settings, so that an answer cannot have the numbers of one.
const TUNED: [Tuned; 2] =
    [Tuned { batch_size: 4, learning_rate: 0.5 }, Tuned { batch_size: 5, learning_rate: 0.2 }];

#[derive(Clone, Copy)]
struct Step {
    devices: usize,
    step: usize,
    tuned: Tuned,
    rule: RateRule,
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

    fn given(self) -> String {
        let Self { devices, step, tuned, rule } = self;
        format!(
            "{devices} devices with {} samples each, an epoch of {SAMPLES}, RateRule::{rule:?}, \
             step {step}",
            tuned.batch_size
        )
    }

    fn told(self, what: &str) -> String {
        format!("{}: {what}", self.given())
    }

    fn fail(self, what: &str, expected: &str, got: &str, law: &str) -> ! {
        fail(&self.told(what), expected, got, law)
    }

    /// One device's weights after a batch of k·b.
    fn expected(self) -> Result<Weights> {
        let model = Classifier::new(SEED, &Device::Cpu)?;
        let batch = tracer::batch(self.samples())?;
        let gradients = model.gradients(&batch)?.gradients;
        sgd(model.parameters(), &gradients, self.rate(), batch.len())?;
        model.parameters().snapshot()
    }

    /// For each rank, the weights after the answer's step and the number of samples of its gradients.
    fn found(self, answer: Answer) -> (Vec<Weights>, Vec<usize>) {
        let outcomes = panicking::attempt(self.devices, Sends::Buffered, move |rank| {
            let model = Classifier::new(SEED, rank.device())?;
            let epoch = tracer::batch(0..SAMPLES)?;
            worked();
            answer(rank, &model, &epoch, self.step, self.tuned, self.rule)?;
            Ok((model.parameters().snapshot()?, worked().iter().sum::<usize>()))
        });
        let outcomes = outcomes.unwrap_or_else(|failure| {
            let law = "all ranks take part in every all-reduce, even a rank with an empty shard";
            let empty = self.samples().len() < self.devices;
            let what = self.told("there are no weights");
            panicking::fail_on_ranks(&what, "an update on every rank", &failure, law, empty)
        });
        outcomes.into_iter().unzip()
    }

    fn check(self, answer: Answer) -> Outcome {
        let (found, worked) = self.found(answer);
        let before = Classifier::new(SEED, &Device::Cpu)?;
        let on_ranks = found.iter().map(|weights| counted(&before, weights, SAMPLES));
        let on_ranks = on_ranks.collect::<Result<Vec<_>>>()?;
        self.all_ranks_use_the_same_samples(&on_ranks);
        self.the_next_samples_took_part(&on_ranks[0]);
        self.each_counts_as_it_should(&on_ranks[0]);
        replicas::agree(&self.given(), &found)?;
        let what = format!("{}: another result than on one device", self.given());
        let law = "k devices with batches of b equal one with a batch of k·b";
        replicas::equal(&what, &self.expected()?, &found[0], law)?;
        self.each_rank_has_its_shard(&worked);
        Ok(())
    }

    /// The updates of all ranks contain the same samples.
    fn all_ranks_use_the_same_samples(self, on_ranks: &[Vec<f64>]) {
        let samples: Vec<Vec<usize>> =
            on_ranks.iter().map(|counted| taking_part(counted)).collect();
        if samples.iter().any(|of_rank| *of_rank != samples[0]) {
            let each = samples.iter().enumerate();
            let each = each.map(|(rank, of_rank)| format!("rank {rank}: {}", in_words(of_rank)));
            let got = each.collect::<Vec<_>>().join("\n");
            let expected =
                format!("{} on every rank", in_words(&self.samples().collect::<Vec<_>>()));
            let law = "an all-reduce adds up the gradients of all ranks, and all ranks make the same update";
            self.fail("ranks use other samples", &expected, &got, law);
        }
    }

    fn the_next_samples_took_part(self, counted: &[f64]) {
        let found = taking_part(counted);
        let expected: Vec<usize> = self.samples().collect();
        if found != expected {
            let [expected, found] = [expected, found].map(|samples| in_words(&samples));
            let law = "the batch of k devices has the next k·b samples of the epoch, and each takes its own shard of them";
            self.fail(&format!("{found} took part"), &expected, &found, law);
        }
    }

    fn each_counts_as_it_should(self, counted: &[f64]) {
        let (rate, size) = (self.rate(), self.samples().len());
        let expected = rate / size as f64;
        let expected_in_words = format!(
            "{} times each sample's gradient: rate {rate} / {size} samples",
            short(expected)
        );
        let law = match self.rule {
            RateRule::Keep => {
                "the rate is kept; sum, then divide once, by the size of the whole batch"
            }
            RateRule::Linear => {
                "k times the rate for k times the batch; sum, then divide once, by the size of the \
                 whole batch"
            }
        };
        for sample in self.samples() {
            let times = counted[sample] / expected;
            if (times - 1.0).abs() > 1e-9 {
                let what = format!("the update is {} what it should be", multiple(times));
                let got = format!(
                    "{} times the gradient of sample {sample}{}",
                    short(counted[sample]),
                    self.guess(times)
                );
                self.fail(&what, &expected_in_words, &got, law);
            }
        }
    }

    /// A guess at the reason why each sample of a short last batch counts `times` as much as it should.
    fn guess(self, times: f64) -> String {
        let (size, full) = (self.samples().len(), self.devices * self.tuned.batch_size);
        if (times * full as f64 / size as f64 - 1.0).abs() > 1e-9 {
            return String::new();
        }
        format!(
            ": the last batch is short, and is divided by {full}, the samples of a full one, or has a rate in \
             proportion to its {size} samples; it divides by {size}, with the rate of all batches"
        )
    }

    /// The batch may be cut into equal shards, or into b samples for one rank after another.
    fn each_rank_has_its_shard(self, worked: &[usize]) {
        let (samples, most) = (self.samples().len(), self.tuned.batch_size);
        let law = "each rank computes the gradients of its own shard, and of no other";
        if let Some((rank, got)) = worked.iter().enumerate().find(|(_, got)| **got > most) {
            let what = format!("rank {rank} computes the gradients of {got} samples");
            self.fail(&what, &format!("at most {most}"), &got.to_string(), law);
        }
        let got: usize = worked.iter().sum();
        if got != samples {
            let what = format!("the ranks compute the gradients of {got} samples");
            self.fail(&what, &format!("{samples}, those of the batch"), &got.to_string(), law);
        }
    }
}

fn k_devices_with_b_samples_each_equal_one_with_k_times_b(answer: Answer) -> Outcome {
    for tuned in TUNED {
        for rule in [RateRule::Keep, RateRule::Linear] {
            for devices in [2, 1, 3, 4] {
                for step in 0..SAMPLES.div_ceil(devices * tuned.batch_size) {
                    Step { devices, step, tuned, rule }.check(answer)?;
                }
            }
        }
    }
    Ok(())
}

fn errors_are_passed_on(answer: Answer) -> Outcome {
    let step = Step { devices: 3, step: 0, tuned: TUNED[0], rule: RateRule::Keep };
    ranks::errors_are_passed_on(step.devices, Sends::Buffered, move |rank| {
        let model = Classifier::new(SEED, rank.device())?;
        answer(rank, &model, &tracer::batch(0..SAMPLES)?, step.step, step.tuned, step.rule)
    })
}

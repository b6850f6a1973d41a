#[path = "exercise.rs"]
mod exercise;

// Each step against one device with a batch of k·b: which samples, how much each counts, the result.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use exercises::classifier::Classifier;
use exercises::mismatch::fail;
use exercises::ranks::{self, Sends};
use exercises::scaling::{RateRule, Tuned};
use exercises::tracer::{self, counted, multiple};
use params_and_allreduce::communicator::Communicator as _;
use single_gpu::data::Batch;
use single_gpu::difference::largest_difference;
use single_gpu::sgd::sgd;
use single_gpu::weights_hash::WeightsHash;

const SEED: u64 = 1;
const SAMPLES: usize = 18;
/// Two, so that nobody's numbers are the answer's own.
const TUNED: [Tuned; 2] =
    [Tuned { batch_size: 4, learning_rate: 0.5 }, Tuned { batch_size: 5, learning_rate: 0.2 }];

/// Weights by name.
type Weights = Vec<(String, Tensor)>;

/// A step that is to be made.
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

    fn fail(self, what: &str, expected: &str, got: &str, law: &str) -> ! {
        let Self { devices, step, tuned, rule } = self;
        let what = format!(
            "{devices} devices with {} samples each, an epoch of {SAMPLES}, RateRule::{rule:?}, \
             step {step}: {what}",
            tuned.batch_size
        );
        fail(&what, expected, got, law)
    }

    /// One device's weights after a batch of k·b.
    fn expected(self) -> Result<Weights> {
        let (model, epoch) = (Classifier::new(SEED, &Device::Cpu)?, tracer::batch(SAMPLES)?);
        let Range { start, end } = self.samples();
        let cut = |tensor: &Tensor| tensor.narrow(0, start, end - start);
        let batch = Batch { images: cut(&epoch.images)?, labels: cut(&epoch.labels)? };
        let gradients = model.gradients(&batch)?.gradients;
        sgd(model.parameters(), &gradients, self.rate(), batch.len())?;
        model.parameters().snapshot()
    }

    /// Every rank's weights after the answer's step.
    fn found(self) -> Vec<Weights> {
        ranks::run(self.devices, Sends::Buffered, move |rank| {
            let model = Classifier::new(SEED, rank.device())?;
            let epoch = tracer::batch(SAMPLES)?;
            exercise::scaled_step(rank, &model, &epoch, self.step, self.tuned, self.rule)?;
            Ok(model.parameters().snapshot()?)
        })
    }

    /// Holds the answer's step against each law in turn.
    fn check(self) -> Result<()> {
        let found = self.found();
        let counted = counted(&Classifier::new(SEED, &Device::Cpu)?, &found[0], SAMPLES)?;
        self.the_next_samples_took_part(&counted);
        self.each_counts_as_it_should(&counted);
        let hashes = found.iter().map(|weights| WeightsHash::new(weights));
        let hashes: Vec<String> =
            hashes.map(|hash| Ok(hash?.to_string())).collect::<Result<_>>()?;
        if hashes.iter().any(|hash| *hash != hashes[0]) {
            let law = "all ranks make the same update";
            self.fail("replicas part", "one hash on all ranks", &hashes.join(" "), law);
        }
        let apart = largest_difference(&found[0], &self.expected()?)?;
        // Written so that NaN counts as a difference.
        let equal = apart <= 1e-10;
        if !equal {
            let got = format!("a relative difference of {apart:.1e}");
            let law = "k devices with batches of b equal one with a batch of k·b";
            self.fail("another result than on one device", "rounding (1e-10)", &got, law);
        }
        Ok(())
    }

    fn the_next_samples_took_part(self, counted: &[f64]) {
        let took_part = |sample: &usize| counted[*sample].abs() > 1e-12;
        let found: Vec<usize> = (0..SAMPLES).filter(took_part).collect();
        let expected: Vec<usize> = self.samples().collect();
        if found != expected {
            let [expected, found] = [expected, found].map(|samples| in_words(&samples));
            let law = "k devices with b samples each take the next k·b samples of the epoch";
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
                let got =
                    format!("{} times the gradient of sample {sample}", short(counted[sample]));
                self.fail(&what, &expected_in_words, &got, law);
            }
        }
    }
}

/// `samples 4 to 7`, or a list where there are gaps.
fn in_words(samples: &[usize]) -> String {
    match samples {
        [] => "no sample".to_owned(),
        [first, .., last] if last - first + 1 == samples.len() => {
            format!("samples {first} to {last}")
        }
        some => format!("samples {some:?}"),
    }
}

/// A number without the digits that are rounding.
fn short(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

#[test]
fn k_devices_with_b_samples_each_equal_one_with_k_times_b() -> Result<()> {
    for tuned in TUNED {
        for rule in [RateRule::Keep, RateRule::Linear] {
            for devices in [2, 1, 3, 4] {
                for step in 0..SAMPLES.div_ceil(devices * tuned.batch_size) {
                    Step { devices, step, tuned, rule }.check()?;
                }
            }
        }
    }
    Ok(())
}

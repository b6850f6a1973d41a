//! Compares runs from the same weights and with the same batches.

use clap::ValueEnum as _;
use devices::DevicePlan;
use harness::cli::name_of;
use harness::report::summary::Summary;
use harness::verdict::{accuracies, rounding, rounding_test, speed_up, times};
use model_state::weights_hash::WeightsHash;
use ops::difference::largest_difference;
use scratch_data_parallel::Method;
use scratch_data_parallel::breakage::Breakage;
use scratch_data_parallel::replicas::{check, verdict};
use scratch_data_parallel::train::Outcome;
use serde_json::{Value, json};

/// A finished run.
pub(crate) struct Run {
    pub(crate) plan: DevicePlan,
    pub(crate) method: Method,
    pub(crate) summary: Summary,
    pub(crate) outcome: Outcome,
}

/// The comparison of several devices with one device.
pub(crate) struct Comparison<'a> {
    /// One device, several devices, and one device with all cores.
    runs: &'a [Run],
    /// The largest relative difference between the weights of several devices and of one, after step 1.
    after_first_step: f64,
    /// The same at the end. `None` if the runs did not end at the same step.
    at_the_end: Option<f64>,
}

impl<'a> Comparison<'a> {
    /// Compares the first two runs. `None` if there are fewer.
    pub(crate) fn new(runs: &'a [Run]) -> candle_core::Result<Option<Self>> {
        let [one, several, ..] = runs else { return Ok(None) };
        let together = one.summary.epochs_trained == several.summary.epochs_trained;
        let (one, several) = (&one.outcome, &several.outcome);
        let at_the_end = together.then(|| largest_difference(&several.weights, &one.weights));
        let after_first_step =
            largest_difference(&several.after_first_step, &one.after_first_step)?;
        Ok(Some(Self { runs, after_first_step, at_the_end: at_the_end.transpose()? }))
    }

    /// The comparison as a line of `--metrics`. Without several runs, it has no difference.
    pub(crate) fn line(comparison: Option<&Self>, replicas: &[WeightsHash]) -> Value {
        let difference = comparison.map(|Self { after_first_step, at_the_end, .. }| {
            json!({ "after_first_step": after_first_step, "at_the_end": at_the_end })
        });
        json!({
            "weight_difference": difference,
            "replicas_agree": check(replicas).is_ok(),
            "replicas": replicas.len(),
        })
    }

    /// The lines about the weights.
    pub(crate) fn lines(&self) -> String {
        let at_the_end = self.at_the_end.map(|end| format!(", {} at the end", distance(end)));
        let at_the_end = at_the_end.unwrap_or_else(|| "; not compared at the end".to_owned());
        let first = distance(self.after_first_step);
        let replicas = verdict(&self.runs[1].outcome.hashes);
        format!("largest weight difference: {first} after step 1{at_the_end}\n{replicas}")
    }

    /// Returns the paragraphs about the times, the weights and the accuracy, as far as there is something to say.
    pub(crate) fn conclusion(&self) -> Vec<String> {
        let accuracy = match (&self.runs[1].method, self.at_the_end) {
            (Method::Reproducible { .. }, _) | (_, None) => String::new(),
            _ => accuracies(&self.runs[0].summary, &self.runs[1].summary, ""),
        };
        let paragraphs = [self.times(), self.weights(), accuracy];
        paragraphs.into_iter().filter(|text| !text.is_empty()).collect()
    }

    /// Compares the times. Wrong steps have no speed, but doubtful times.
    fn times(&self) -> String {
        let runs: Vec<&Summary> = self.runs.iter().map(|run| &run.summary).collect();
        let all_cores = |all: &&Summary| {
            let ratio = all.seconds_per_epoch / runs[1].seconds_per_epoch;
            format!(" {}", speed_up("They", "one device with all their cores", ratio))
        };
        times(&runs, "data parallel", |ratio| match self.runs[1].method {
            Method::Broken(..) => String::new(),
            _ => {
                let devices = format!("{} devices", runs[1].devices.len());
                speed_up(&devices, "one", ratio) + &runs.get(2).map_or_else(String::new, all_cores)
            }
        })
    }

    /// Judges the weights by the promise of the method: equal bits, or one device's weights up to rounding.
    fn weights(&self) -> String {
        let [one, several, rest @ ..] = self.runs else { return String::new() };
        let (dtype, hashes) = (&several.summary.dtype, &several.outcome.hashes);
        let (most, how, unlike) = match several.method {
            Method::Reproducible { .. } => {
                (0.0, "to the last bit", ", although --shards promises the same bits")
            }
            _ => {
                let most = rounding(dtype, several.plan.is_of_slices());
                (most, "up to rounding", " by more than rounding explains after step 1")
            }
        };
        let same = |run: &Run| {
            let together = run.summary.epochs_trained == one.summary.epochs_trained;
            !together || run.outcome.hashes[0] == one.outcome.hashes[0]
        };
        // A NaN is no agreement.
        let agrees = self.after_first_step <= most && (most > 0.0 || same(several));
        if let Method::Broken(bug, _) = several.method {
            return broken(bug, agrees, check(hashes).is_ok());
        }
        let end = match self.at_the_end {
            _ if !agrees => {
                return format!("The weights differ{unlike}: this is a mistake in the program.");
            }
            _ if !rest.iter().all(same) => {
                return "One device has other weights with all cores: this is a mistake in the program.".to_owned();
            }
            None => "The runs did not end at the same step, so the final weights are not compared.",
            Some(end) if end <= most => "At the end they still agree.",
            Some(_) => &format!("Training amplifies rounding.{}", rounding_test(dtype)),
        };
        format!("After step 1 the weights agree with one device {how}. {end}")
    }
}

/// Describes a bug, and the comparison that finds the bug.
fn broken(bug: Breakage, is_hidden: bool, replicas_agree: bool) -> String {
    let help = bug.to_possible_value().and_then(|value| value.get_help().cloned());
    let shows = match (replicas_agree, is_hidden) {
        (false, _) => "The replicas differ, so a comparison of their weights finds this bug.",
        (true, false) => {
            "The replicas are equal, so only the comparison with one device finds this bug."
        }
        (true, true) => "The weights agree with one device, so the bug does not show yet.",
    };
    format!("The bug of --break {}: {}. {shows}", name_of(&bug), help.unwrap_or_default())
}

/// Formats a difference: `0`, `1.3`, `2.0e-5`.
fn distance(number: f64) -> String {
    match number {
        0.0 => "0".to_owned(),
        _ if (0.1..1000.0).contains(&number) => format!("{number:.1}"),
        _ => format!("{number:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use devices::DevicePlan;
    use params_and_allreduce::Algorithm;
    use scratch_data_parallel::train::Outcome;

    use super::*;

    /// Weights of another name have another hash.
    fn hash(name: &str) -> WeightsHash {
        let one = candle_core::Tensor::new(1.0, &candle_core::Device::Cpu).unwrap();
        WeightsHash::new(&[(name.to_owned(), one)]).unwrap()
    }

    /// One device, two devices, and one device with all cores.
    fn healthy() -> Vec<Run> {
        let run = |devices: usize, hash: &str, test_accuracy, seconds_per_epoch| Run {
            plan: DevicePlan::slices(devices).unwrap(),
            method: Method::AllReduce(Algorithm::OneShot),
            summary: Summary {
                images: (60_000, 10_000),
                dtype: "f32".to_owned(),
                devices: vec![String::new(); devices],
                epochs_trained: 5.0,
                guessing: 0.1,
                test_accuracy,
                seconds_per_epoch,
                ..Summary::default()
            },
            outcome: Outcome {
                records: Vec::new(),
                after_first_step: Vec::new(),
                weights: Vec::new(),
                hashes: vec![self::hash(hash); devices],
            },
        };
        let (one, two) = (run(1, "one", 0.873, 1.83), run(2, "two", 0.868, 1.0));
        vec![one, two, run(1, "one", 0.873, 1.28)]
    }

    /// The conclusion after a step with such a difference, and after all steps.
    fn said(runs: &[Run], after_first_step: f64, at_the_end: Option<f64>) -> String {
        Comparison { runs, after_first_step, at_the_end }.conclusion().join("\n")
    }

    type Change = fn(&mut [Run]);

    /// Checks a part of the conclusion from runs with a change.
    fn check(cases: &[(Change, f64, Option<f64>, &str)]) {
        for (change, first, end, expected) in cases {
            let mut runs = healthy();
            change(&mut runs);
            let text = format!("^{}$", said(&runs, *first, *end));
            assert!(text.contains(expected), "{expected:?} is not in {text:?}");
        }
    }

    const SAME: Change = |_| ();

    #[test]
    fn a_healthy_run_has_a_paragraph_each_about_times_weights_and_accuracy() {
        assert_eq!(
            said(&healthy(), 3.1e-7, Some(1.3)),
            "2 devices are 1.83 times as fast as one. They are 1.28 times as fast as one device with all \
             their cores.\n\
             After step 1 the weights agree with one device up to rounding. Training amplifies rounding. --dtype f64 tests \
             whether rounding is the only cause.\n\
             Test accuracy is 0.868, and 0.873 on one device: 10,000 test images show no clear difference."
        );
        let f64: Change = |runs| "f64".clone_into(&mut runs[1].summary.dtype);
        let other_bits: Change = |runs| runs[2].outcome.hashes = vec![hash("two")];
        let interrupted: Change = |runs| {
            runs[2].summary.epochs_trained = 2.0;
            runs[2].outcome.hashes = vec![hash("two")];
        };
        let untested: Change = |runs| runs[1].summary.test_accuracy = f64::NAN;
        let guessing: Change = |runs| (0..3).for_each(|at| runs[at].summary.test_accuracy = 0.101);
        let untimed: Change = |runs| runs[1].summary.seconds_per_epoch = f64::NAN;
        let all_cores_equal: Change = |runs| runs[2].summary.seconds_per_epoch = 0.98;
        let all_cores_faster: Change = |runs| runs[2].summary.seconds_per_epoch = 0.5;
        let explained = "differ by more than rounding explains after step 1: this is a mistake";
        check(&[
            (f64, 2e-16, Some(4e-8), "up to rounding. Training amplifies rounding.\n"),
            (f64, 3.1e-7, Some(1.3), explained),
            (SAME, f64::NAN, Some(1.3), explained),
            (SAME, 2e-4, Some(1.3), explained),
            (SAME, 3e-7, Some(3e-6), "up to rounding. At the end they still agree.\n"),
            (SAME, 0.0, Some(0.0), "up to rounding. At the end they still agree.\n"),
            (SAME, 3e-7, None, "so the final weights are not compared.$"),
            (other_bits, 3e-7, Some(1.3), "One device has other weights with all cores: this is"),
            (interrupted, 3e-7, Some(1.3), "only cause.\nTest"),
            (untested, 3e-7, Some(1.3), "only cause.$"),
            (guessing, 3e-7, Some(1.3), "only cause.\nNeither run is clearly better than guessing"),
            (untimed, 3e-7, None, "^After step 1"),
            (
                all_cores_equal,
                3e-7,
                None,
                "They are no faster than one device with all their cores.\n",
            ),
            (
                all_cores_faster,
                3e-7,
                None,
                "They are slower than one device with all their cores: an epoch takes 2.00 times as long.\n",
            ),
        ]);
        assert!(
            said(&healthy()[..2], 3e-7, None)
                .starts_with("2 devices are 1.83 times as fast as one.\n")
        );
    }

    #[test]
    fn bits_of_shards() {
        let differ: Change = |runs| runs[1].method = Method::Reproducible { shards: 8 };
        let same: Change = |runs| {
            runs[1].method = Method::Reproducible { shards: 8 };
            runs[1].outcome.hashes[0] = hash("one");
        };
        let interrupted: Change = |runs| {
            runs[1].method = Method::Reproducible { shards: 8 };
            runs[1].summary.epochs_trained = 2.0;
        };
        check(&[
            (same, 0.0, Some(0.0), "^2 devices are 1.83 times as fast"),
            (
                same,
                0.0,
                Some(0.0),
                "\nAfter step 1 the weights agree with one device to the last bit. At the end they still agree.$",
            ),
            (
                differ,
                0.0,
                Some(1e-9),
                "\nThe weights differ, although --shards promises the same bits: this is a mistake",
            ),
            (
                interrupted,
                0.0,
                None,
                "one device to the last bit. The runs did not end at the same step",
            ),
            (
                interrupted,
                1e-7,
                None,
                "although --shards promises the same bits: this is a mistake",
            ),
        ]);
    }

    const BUG: Change =
        |runs| runs[1].method = Method::Broken(Breakage::MeanForSum, Algorithm::OneShot);

    #[test]
    fn bugs() {
        let other_replica: Change = |runs| {
            runs[1].method = Method::Broken(Breakage::SkipAllreduce, Algorithm::OneShot);
            runs[1].outcome.hashes[1] = hash("other");
        };
        let worse: Change = |runs| {
            BUG(runs);
            runs[1].summary.test_accuracy = 0.71;
        };
        check(&[
            // Wrong steps have no speed.
            (
                BUG,
                1.2e-3,
                Some(1.3),
                "^The bug of --break mean-for-sum: Gradients are averaged over",
            ),
            (
                BUG,
                1.2e-3,
                Some(1.3),
                "are equal, so only the comparison with one device finds this bug",
            ),
            (BUG, 1.2e-3, Some(1.3), "one device: 10,000 test images show no clear difference.$"),
            (
                BUG,
                1e-8,
                Some(1.3),
                "The weights agree with one device, so the bug does not show yet.\n",
            ),
            (
                other_replica,
                1.2e-3,
                Some(1.3),
                "The replicas differ, so a comparison of their weights",
            ),
            (
                worse,
                1.2e-3,
                Some(1.3),
                "\nTest accuracy is 0.710, lower than 0.873 on one device.$",
            ),
        ]);
    }

    /// Wrong steps have no speed, and their doubtful times are called doubtful.
    #[test]
    fn with_a_doubt_about_times_nothing_is_ranked() {
        let busy: Change = |runs| runs[2].summary.busy = Some(String::new());
        let busy_and_broken: Change = |runs| {
            BUG(runs);
            runs[2].summary.busy = Some(String::new());
        };
        let implausible: Change = |runs| runs[0].summary.seconds_per_epoch = 2.6;
        for (change, doubt) in [
            (busy, "Other programs used the cores"),
            (busy_and_broken, "Other programs used the cores"),
            (implausible, "The speed-up of data parallel is 2.60"),
        ] {
            let mut runs = healthy();
            change(&mut runs);
            let comparison = Comparison { runs: &runs, after_first_step: 1.2e-3, at_the_end: None };
            let text = comparison.conclusion().join("\n");
            assert!(text.starts_with(doubt) && !text.contains("as fast"), "{text}");
            let lines = comparison.lines();
            assert!(!lines.contains("speed-up") && !lines.contains('×'), "{lines}");
        }
    }
}

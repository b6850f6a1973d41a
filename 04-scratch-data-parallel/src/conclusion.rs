//! The conclusion from the numbers of the runs, in plain sentences.

use clap::ValueEnum as _;
use harness::cli::name_of;
use harness::report::summary::Summary;
use harness::report::{accuracy, thousands};
use harness::verdict::{Accuracies, Doubt, Speed, ranked, rounding, rounding_test, speed_up};
use scratch_data_parallel::Method;
use scratch_data_parallel::breakage::Breakage;
use scratch_data_parallel::replicas::check;

use crate::comparison::{Comparison, distance, end_together};

const NOT_COMPARED: &str =
    "The runs did not end at the same step, so the final weights are not compared.";

impl Comparison<'_> {
    /// Returns the paragraphs about the weights, the results and the speed, as far as there is something to say.
    pub(crate) fn conclusion(&self) -> Vec<String> {
        let speed = self.speed();
        let paragraphs = match self.runs[1].method {
            Method::AllReduce(_) => vec![self.weights(), self.results(), speed],
            Method::Reproducible { shards } => vec![self.bits(shards), speed],
            Method::Broken(bug, _) => vec![self.broken(bug), speed],
        };
        paragraphs.into_iter().filter(|text| !text.is_empty()).collect()
    }

    /// The largest difference after step 1 that rounding explains.
    fn rounding(&self) -> f64 {
        rounding(&self.runs[1].summary.dtype, self.runs[1].plan.is_of_slices())
    }

    /// Judges the weights of healthy runs.
    fn weights(&self) -> String {
        let (devices, most) = (self.runs[1].plan.len(), self.rounding());
        let first = match self.after_first_step {
            0.0 => "are equal to the last bit".to_owned(),
            first if first <= most => format!("agree to rounding ({first:.1e})"),
            // A NaN is no agreement.
            first => {
                let first = distance(first);
                return format!(
                    "After step 1 the weights differ by {first}, and rounding explains at most {most:.0e}: this is a mistake \
                     in the program."
                );
            }
        };
        let end = match self.at_the_end {
            None => NOT_COMPARED.to_owned(),
            Some(0.0) => "At the end they are equal to the last bit.".to_owned(),
            Some(end) if end <= most => {
                format!("At the end they still agree to rounding ({end:.1e}).")
            }
            Some(end) => {
                let (end, test) = (distance(end), rounding_test(&self.runs[1].summary.dtype));
                format!(
                    "Training amplifies rounding: at the end the weights differ by {end}.{test}"
                )
            }
        };
        format!("After step 1 the weights of one device and of {devices} devices {first}. {end}")
    }

    /// Compares one device with few cores and with all cores, and the test accuracies.
    fn results(&self) -> String {
        let all_cores = self.runs.get(2).filter(|all_cores| end_together(&self.runs[0], all_cores));
        let same = match all_cores.map(|it| it.outcome.hashes == self.runs[0].outcome.hashes) {
            Some(true) => "One device has the same weights with all cores, to the last bit.",
            Some(false) => {
                "One device has other weights with all cores: this is a mistake in the program."
            }
            None => "",
        };
        format!("{same} {}", self.accuracy()).trim().to_owned()
    }

    /// Compares the test accuracies. Empty if the runs did not end at the same step.
    fn accuracy(&self) -> String {
        let [one, several] = [0, 1].map(|run| &self.runs[run].summary);
        let explains = match Accuracies::of(one, several) {
            _ if self.at_the_end.is_none() => return String::new(),
            Accuracies::Unknown => return String::new(),
            Accuracies::Guesses(text) => return text,
            Accuracies::Chance => "explains",
            Accuracies::Differ(_) => "does not explain",
        };
        format!(
            "Data parallel has test accuracy {}, and one device {}: with {} test images, chance {explains} this difference.",
            accuracy(several.test_accuracy),
            accuracy(one.test_accuracy),
            thousands(several.images.1)
        )
    }

    /// Judges the bits of the reproducible mode.
    fn bits(&self, shards: usize) -> String {
        let mut pairs = self.runs.windows(2);
        let same = pairs.all(|pair| pair[0].outcome.hashes[0] == pair[1].outcome.hashes[0]);
        match self.at_the_end {
            None if self.after_first_step == 0.0 => {
                format!("After step 1 the weights are equal to the last bit. {NOT_COMPARED}")
            }
            Some(_) if same => format!(
                "With --shards {shards} all runs end with the same weights, to the last bit. The order of additions \
                 does not depend on the number of devices."
            ),
            _ => format!(
                "The weights differ, although --shards {shards} promises the same bits: this is a mistake in the program."
            ),
        }
    }

    /// Says what a bug does, and how it shows.
    fn broken(&self, bug: Breakage) -> String {
        let help = bug.to_possible_value().and_then(|value| value.get_help().cloned());
        let (first, most) = (self.after_first_step, self.rounding());
        let weights = match first <= most {
            true => "agree with one device, so the bug does not show yet".to_owned(),
            false => format!(
                "of rank 0 differ from one device by {}; rounding explains at most {most:.0e}",
                distance(first)
            ),
        };
        let replicas = match check(&self.runs[1].outcome.hashes) {
            Err(_) => "differ, so a comparison of their weights finds this bug",
            Ok(()) if first <= most => "are equal",
            Ok(()) => "are equal, so only the comparison with one device finds this bug",
        };
        let text = format!(
            "The bug of --break {}: {}. After step 1 the weights {weights}. The replicas {replicas}. {}",
            name_of(&bug),
            help.unwrap_or_default(),
            self.accuracy()
        );
        text.trim_end().to_owned()
    }

    /// Compares the times. Wrong steps have no speed, but doubtful times.
    fn speed(&self) -> String {
        let (count, ratios) = (self.runs[1].plan.len(), self.speed_ups());
        let ratios: Vec<f64> = ratios.map(|it| it.0).filter(|ratio| ratio.is_finite()).collect();
        let runs: Vec<&Summary> = self.runs.iter().map(|run| &run.summary).collect();
        let mut doubts = Doubt::about(&runs);
        let doubt = |&ratio: &f64| Doubt::of_speed_up("data parallel", ratio, count, 0.0);
        doubts.extend(ratios.first().and_then(doubt));
        ranked(&doubts, || match (ratios.as_slice(), self.runs[1].method) {
            ([], _) | (_, Method::Broken(..)) => String::new(),
            ([ratio, rest @ ..], _) => {
                let over_one = speed_up(&format!("{count} devices"), count, "", *ratio);
                rest.first().map_or(over_one.clone(), |&it| format!("{over_one} {}", all_cores(it)))
            }
        })
    }
}

/// Compares the times of several devices and of one device with all their cores.
fn all_cores(ratio: f64) -> String {
    match Speed::of(ratio) {
        Speed::Faster => {
            format!("They are {ratio:.2} times as fast as one device with all their cores.")
        }
        Speed::Equal => {
            "One device with all their cores is as fast: the cores count, not the number of devices."
                .to_owned()
        }
        Speed::Slower => format!(
            "One device with all their cores is {:.2} times as fast as they are.",
            1.0 / ratio
        ),
    }
}

#[cfg(test)]
mod tests {
    use devices::DevicePlan;
    use model_state::weights_hash::WeightsHash;
    use params_and_allreduce::Algorithm;
    use scratch_data_parallel::train::Outcome;

    use super::*;
    use crate::comparison::Run;

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
            let text = said(&runs, *first, *end);
            assert!(text.contains(expected), "{expected:?} is not in {text:?}");
        }
    }

    const SAME: Change = |_| ();

    #[test]
    fn a_healthy_run_has_a_paragraph_each_about_weights_results_and_speed() {
        assert_eq!(
            said(&healthy(), 3.1e-7, Some(1.3)),
            "After step 1 the weights of one device and of 2 devices agree to rounding (3.1e-7). Training amplifies rounding: \
             at the end the weights differ by 1.3. --dtype f64 tests whether rounding is the only cause.\n\
             One device has the same weights with all cores, to the last bit. Data parallel has test accuracy 0.868, and one \
             device 0.873: with 10,000 test images, chance explains this difference.\n\
             2 devices are 1.83 times as fast as one; 2 times is ideal. They are 1.28 times as fast as one device with all \
             their cores."
        );
        let f64: Change = |runs| "f64".clone_into(&mut runs[1].summary.dtype);
        let other_bits: Change = |runs| runs[2].outcome.hashes = vec![hash("two")];
        let interrupted: Change = |runs| runs[2].summary.epochs_trained = 2.0;
        let untested: Change = |runs| runs[1].summary.test_accuracy = f64::NAN;
        let guessing: Change = |runs| (0..3).for_each(|at| runs[at].summary.test_accuracy = 0.101);
        let all_cores_equal: Change = |runs| runs[2].summary.seconds_per_epoch = 0.98;
        let all_cores_faster: Change = |runs| runs[2].summary.seconds_per_epoch = 0.5;
        check(&[
            (f64, 2e-16, Some(4e-8), "(2.0e-16). Training amplifies rounding"),
            (f64, 2e-16, Some(4e-8), "the weights differ by 4.0e-8.\n"),
            (f64, 3.1e-7, Some(1.3), "differ by 3.1e-7, and rounding explains at most 1e-10"),
            (SAME, f64::NAN, Some(1.3), "differ by NaN, and rounding"),
            (SAME, 2e-4, Some(1.3), "a mistake in the program"),
            (SAME, 3e-7, Some(3e-6), "still agree to rounding (3.0e-6)."),
            (SAME, 3e-7, None, "did not end at the same step"),
            (SAME, 3e-7, None, "to the last bit.\n2 devices are"),
            (
                SAME,
                0.0,
                Some(0.0),
                "of 2 devices are equal to the last bit. At the end they are equal",
            ),
            (other_bits, 3e-7, Some(1.3), "has other weights with all cores"),
            (interrupted, 3e-7, Some(1.3), "only cause.\nData"),
            (untested, 3e-7, Some(1.3), "to the last bit.\n2 devices are"),
            (
                guessing,
                3e-7,
                Some(1.3),
                "to the last bit. Neither run is clearly better than guessing",
            ),
            (all_cores_equal, 3e-7, None, "One device with all their cores is as fast: the"),
            (all_cores_faster, 3e-7, None, "cores is 2.00 times as fast as they are."),
        ]);
        assert!(said(&healthy()[..2], 3e-7, None).ends_with("2 times is ideal."));
        let mut untimed = healthy();
        untimed[1].summary.seconds_per_epoch = f64::NAN;
        assert!(said(&untimed, 3e-7, None).ends_with("with all cores, to the last bit."));
    }

    #[test]
    fn bits_of_shards() {
        let differ: Change = |runs| runs[1].method = Method::Reproducible { shards: 8 };
        let same: Change = |runs| {
            runs[1].method = Method::Reproducible { shards: 8 };
            runs[1].outcome.hashes[0] = hash("one");
        };
        check(&[
            (
                same,
                0.0,
                Some(0.0),
                "With --shards 8 all runs end with the same weights, to the last bit.",
            ),
            (same, 0.0, Some(0.0), "number of devices.\n2 devices are 1.83 times as fast"),
            (differ, 0.0, Some(1e-9), "although --shards 8 promises the same bits"),
            (differ, 0.0, None, "After step 1 the weights are equal to the last bit. The"),
            (differ, 1e-7, None, "promises the same bits"),
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
            (
                BUG,
                1.2e-3,
                Some(1.3),
                "--break mean-for-sum: Gradients are averaged over the devices",
            ),
            (
                BUG,
                1.2e-3,
                Some(1.3),
                "differ from one device by 1.2e-3; rounding explains at most 1e-5",
            ),
            (
                BUG,
                1.2e-3,
                Some(1.3),
                "are equal, so only the comparison with one device finds this bug",
            ),
            (BUG, 1.2e-3, Some(1.3), "with 10,000 test images, chance explains this difference."),
            (BUG, 1e-8, Some(1.3), "the bug does not show yet. The replicas are equal. Data"),
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
                "0.710, and one device 0.873: with 10,000 test images, chance does not",
            ),
        ]);
        let mut broken = healthy();
        BUG(&mut broken);
        assert!(said(&broken, 1.2e-3, None).ends_with("finds this bug."), "no speed");
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
            let text = said(&runs, 1.2e-3, None);
            assert!(text.contains(&format!("\n{doubt}")) && !text.contains("as fast"), "{text}");
        }
    }
}

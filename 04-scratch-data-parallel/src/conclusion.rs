//! The conclusion from the numbers of the runs, in plain sentences.

use clap::ValueEnum as _;
use harness::cli::name_of;
use harness::report::{accuracy, thousands};
use harness::verdict::{self, Accuracies, Speed, ranked};
use scratch_data_parallel::Method;
use scratch_data_parallel::breakage::Breakage;

use crate::comparison::{Comparison, WeightDifference, distance};

const NOT_COMPARED: &str =
    "The runs did not end at the same step, so the final weights are not compared.";

impl Comparison {
    /// Returns the paragraphs about the weights, the results and the speed, as far as there is something to say.
    pub(crate) fn conclusion(&self) -> Vec<String> {
        let Some(difference) = self.weight_difference else { return Vec::new() };
        let paragraphs = match self.method {
            Method::AllReduce(_) => {
                vec![self.weights(difference), self.results(difference), self.speed()]
            }
            Method::Reproducible { shards } => vec![self.bits(difference, shards), self.speed()],
            // The speed of wrong steps means nothing, but the program has printed times.
            Method::Broken(bug, _) => {
                vec![self.broken(difference, bug), ranked(&self.doubts, String::new)]
            }
        };
        paragraphs.into_iter().filter(|text| !text.is_empty()).collect()
    }

    /// Judges the weights of healthy runs.
    fn weights(
        &self,
        WeightDifference { after_first_step, at_the_end }: WeightDifference,
    ) -> String {
        let most = self.rounding;
        let after_first = match after_first_step {
            0.0 => "are equal to the last bit".to_owned(),
            first if first <= most => format!("agree to rounding ({first:.1e})"),
            // A NaN is no agreement.
            first => {
                return format!(
                    "After step 1 the weights differ by {}, and rounding explains at most {most:.0e}: this is a mistake in \
                     the program.",
                    distance(first)
                );
            }
        };
        let at_the_end = match at_the_end {
            None => NOT_COMPARED.to_owned(),
            Some(0.0) => "At the end they are equal to the last bit.".to_owned(),
            Some(end) if end <= most => {
                format!("At the end they still agree to rounding ({end:.1e}).")
            }
            Some(end) => format!(
                "Training amplifies rounding: at the end the weights differ by {}.{}",
                distance(end),
                verdict::rounding_test(&self.runs[1].dtype)
            ),
        };
        format!(
            "After step 1 the weights of one device and of {} devices {after_first}. {at_the_end}",
            self.replicas
        )
    }

    /// Compares one device with few cores and with all cores, and the test accuracies.
    fn results(&self, difference: WeightDifference) -> String {
        let same = match self.same_bits_alone {
            Some(true) => "One device has the same weights with all cores, to the last bit.",
            Some(false) => {
                "One device has other weights with all cores: this is a mistake in the program."
            }
            None => "",
        };
        format!("{same} {}", self.accuracy(difference)).trim().to_owned()
    }

    /// Compares the test accuracies. Empty if the runs did not end at the same step.
    fn accuracy(&self, difference: WeightDifference) -> String {
        let [one, several] = &self.runs;
        let explains = match Accuracies::of(one, several) {
            _ if difference.at_the_end.is_none() => return String::new(),
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
    fn bits(&self, difference: WeightDifference, shards: usize) -> String {
        match difference.at_the_end {
            None if difference.after_first_step == 0.0 => {
                format!("After step 1 the weights are equal to the last bit. {NOT_COMPARED}")
            }
            Some(_) if self.same_bits => format!(
                "With --shards {shards} all runs end with the same weights, to the last bit. The order of additions \
                 does not depend on the number of devices."
            ),
            _ => format!(
                "The weights differ, although --shards {shards} promises the same bits: this is a mistake in the program."
            ),
        }
    }

    /// Says what a bug does, and how it shows.
    fn broken(&self, difference: WeightDifference, bug: Breakage) -> String {
        let help = bug.to_possible_value().and_then(|value| value.get_help().cloned());
        let help = help.map_or_else(String::new, |help| format!(": {help}"));
        let first = difference.after_first_step;
        let equal = first <= self.rounding;
        let weights = match equal {
            true => "agree with one device, so the bug does not show yet".to_owned(),
            false => format!(
                "of rank 0 differ from one device by {}; rounding explains at most {:.0e}",
                distance(first),
                self.rounding
            ),
        };
        let replicas = match (self.replicas_agree, equal) {
            (false, _) => "differ, so a comparison of their weights finds this bug",
            (true, false) => "are equal, so only the comparison with one device finds this bug",
            (true, true) => "are equal",
        };
        let (name, accuracy) = (name_of(&bug), self.accuracy(difference));
        let text = format!(
            "The bug of --break {name}{help}. After step 1 the weights {weights}. The replicas {replicas}. {accuracy}"
        );
        text.trim_end().to_owned()
    }

    /// Compares the times.
    fn speed(&self) -> String {
        let ratio = |place: usize| self.speed_ups.get(place).map_or(f64::NAN, |it| it.ratio);
        let devices = self.replicas;
        ranked(&self.doubts, || {
            let one = verdict::speed_up(&format!("{devices} devices"), devices, "", ratio(0));
            let all_cores = match ratio(1) {
                ratio if !ratio.is_finite() => return one,
                ratio => match Speed::of(ratio) {
                    Speed::Faster => format!("They are {ratio:.2} times as fast as one device with all their cores."),
                    Speed::Equal => "One device with all their cores is as fast: the cores count, not the number of devices.".to_owned(),
                    Speed::Slower => format!("One device with all their cores is {:.2} times as fast as they are.", 1.0 / ratio),
                },
            };
            format!("{one} {all_cores}")
        })
    }
}

#[cfg(test)]
mod tests {
    use harness::report::summary::Summary;
    use harness::verdict::Doubt;
    use params_and_allreduce::Algorithm;

    use super::*;
    use crate::comparison::SpeedUp;

    /// One device, two devices, and one device with all cores.
    fn healthy() -> Comparison {
        let run = |devices, test_accuracy| Summary {
            images: (60_000, 10_000),
            dtype: "f32".to_owned(),
            devices: vec![String::new(); devices],
            guessing: 0.1,
            test_accuracy,
            ..Summary::default()
        };
        let ratio = |ratio| SpeedUp { over_run: String::new(), over: String::new(), ratio };
        Comparison {
            speed_ups: [1.83, 1.28].map(ratio).to_vec(),
            weight_difference: Some(WeightDifference {
                after_first_step: 3.1e-7,
                at_the_end: Some(1.3),
            }),
            replicas_agree: true,
            replicas: 2,
            verdict: String::new(),
            method: Method::AllReduce(Algorithm::OneShot),
            runs: [run(1, 0.873), run(2, 0.868)],
            doubts: Vec::new(),
            rounding: 1e-5,
            same_bits: false,
            same_bits_alone: Some(true),
        }
    }

    fn differs(it: &mut Comparison, after_first_step: f64, at_the_end: Option<f64>) {
        it.weight_difference = Some(WeightDifference { after_first_step, at_the_end });
    }

    fn of_shards(it: &mut Comparison, same_bits: bool, first: f64, end: Option<f64>) {
        (it.method, it.same_bits) = (Method::Reproducible { shards: 8 }, same_bits);
        differs(it, first, end);
    }

    fn bug(it: &mut Comparison, bug: Breakage) {
        it.method = Method::Broken(bug, Algorithm::OneShot);
        differs(it, 1.2e-3, Some(1.3));
    }

    fn of_accuracies(it: &mut Comparison, accuracies: [f64; 2]) {
        it.runs.iter_mut().zip(accuracies).for_each(|(run, it)| run.test_accuracy = it);
    }

    fn of_ratios(it: &mut Comparison, ratios: &[f64]) {
        it.speed_ups.truncate(ratios.len());
        it.speed_ups.iter_mut().zip(ratios).for_each(|(it, &ratio)| it.ratio = ratio);
    }

    #[test]
    fn a_healthy_run_has_a_paragraph_each_about_weights_results_and_speed() {
        assert_eq!(
            healthy().conclusion(),
            [
                "After step 1 the weights of one device and of 2 devices agree to rounding (3.1e-7). Training amplifies \
                 rounding: at the end the weights differ by 1.3. --dtype f64 tests whether rounding is the only cause.",
                "One device has the same weights with all cores, to the last bit. Data parallel has test accuracy 0.868, \
                 and one device 0.873: with 10,000 test images, chance explains this difference.",
                "2 devices are 1.83 times as fast as one; 2 times is ideal. They are 1.28 times as fast as one device with \
                 all their cores.",
            ]
        );
    }

    #[test]
    fn each_case_has_its_sentence() {
        type Change = fn(&mut Comparison);
        let cases: &[(Change, &str)] = &[
            // The weights of healthy runs.
            (
                |it| {
                    "f64".clone_into(&mut it.runs[1].dtype);
                    (it.rounding, it.same_bits_alone) = (1e-10, None);
                    differs(it, 2e-16, Some(4e-8));
                },
                "(2.0e-16). Training amplifies rounding: at the end the weights differ by 4.0e-8.\nData",
            ),
            (|it| it.same_bits_alone = Some(false), "has other weights with all cores"),
            (
                |it| it.rounding = 1e-10,
                "the weights differ by 3.1e-7, and rounding explains at most 1e-10",
            ),
            (|it| differs(it, f64::NAN, Some(1.3)), "differ by NaN, and rounding"),
            (|it| differs(it, 2e-4, Some(1.3)), "a mistake in the program"),
            (|it| differs(it, 3e-7, Some(3e-6)), "still agree to rounding (3.0e-6)."),
            (|it| differs(it, 3e-7, None), "did not end at the same step"),
            (
                |it| differs(it, 0.0, Some(0.0)),
                "of 2 devices are equal to the last bit. At the end they are equal to the last bit.",
            ),
            // The bits of shards.
            (
                |it| of_shards(it, true, 0.0, Some(0.0)),
                "With --shards 8 all runs end with the same weights, to the last bit.",
            ),
            (|it| of_shards(it, true, 0.0, Some(0.0)), "2 devices are 1.83 times as fast"),
            (
                |it| of_shards(it, false, 0.0, Some(1e-9)),
                "although --shards 8 promises the same bits",
            ),
            (
                |it| of_shards(it, false, 0.0, None),
                "After step 1 the weights are equal to the last bit. The",
            ),
            (|it| of_shards(it, false, 1e-7, None), "promises the same bits"),
            // Bugs.
            (
                |it| bug(it, Breakage::MeanForSum),
                "--break mean-for-sum: Gradients are averaged over the devices",
            ),
            (
                |it| bug(it, Breakage::MeanForSum),
                "differ from one device by 1.2e-3; rounding explains at most 1e-5. The replicas are equal, so only the \
                 comparison with one device finds this bug. Data parallel has test accuracy 0.868, and one device 0.873: \
                 with 10,000 test images, chance explains",
            ),
            (
                |it| {
                    bug(it, Breakage::SkipAllreduce);
                    it.replicas_agree = false;
                },
                "The replicas differ, so a comparison of their weights finds this bug.",
            ),
            (
                |it| {
                    bug(it, Breakage::MeanForSum);
                    of_accuracies(it, [0.873, 0.71]);
                },
                "test accuracy 0.710, and one device 0.873: with 10,000 test images, chance does not",
            ),
            (
                |it| {
                    bug(it, Breakage::MeanForSum);
                    differs(it, 1e-8, Some(1.3));
                },
                "the bug does not show yet. The replicas are equal. Data",
            ),
            // Accuracies.
            (|it| of_accuracies(it, [0.1, 0.101]), "bit. Neither run is clearly better than"),
            (|it| of_accuracies(it, [0.1, f64::NAN]), "to the last bit.\n2 devices are"),
            (|it| differs(it, 3e-7, None), "to the last bit.\n2 devices are"),
            // Speed.
            (
                |it| of_ratios(it, &[1.83, 0.98]),
                "One device with all their cores is as fast: the cores count",
            ),
            (
                |it| of_ratios(it, &[1.83, 0.5]),
                "One device with all their cores is 2.00 times as fast as they are.",
            ),
        ];
        for (change, expected) in cases {
            let mut it = healthy();
            change(&mut it);
            let text = it.conclusion().join("\n");
            assert!(text.contains(expected), "{expected:?} is not in {text:?}");
        }
    }

    #[test]
    fn a_run_alone_and_runs_without_a_time_are_not_compared() {
        for (ratios, ends) in [(&[1.83][..], "2 times is ideal."), (&[f64::NAN], "difference.")] {
            let mut it = healthy();
            of_ratios(&mut it, ratios);
            assert!(it.conclusion().join("\n").ends_with(ends), "{it:?}");
        }
        assert!(Comparison { weight_difference: None, ..healthy() }.conclusion().is_empty());
    }

    /// Wrong steps have no speed, and their doubtful times are called doubtful.
    #[test]
    fn with_a_doubt_about_times_nothing_is_ranked() {
        let mut broken = healthy();
        bug(&mut broken, Breakage::MeanForSum);
        assert_eq!(broken.conclusion().len(), 1, "no speed");
        for it in [healthy(), broken] {
            let said = Comparison { doubts: vec![Doubt::Busy], ..it }.conclusion().join("\n");
            assert!(said.ends_with(&format!("\n{}", Doubt::Busy)), "{said}");
            assert!(!said.contains("as fast"), "{said}");
        }
    }
}

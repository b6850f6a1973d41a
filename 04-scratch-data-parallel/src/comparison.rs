//! Compares runs from the same weights and with the same batches.

use devices::DevicePlan;
use harness::cli::{help_of, name_of};
use harness::report::summary::Summary;
use harness::report::{Table, accuracy, line, paragraph};
use harness::verdict::{accuracies, rounding, rounding_test, speed_up, times};
use ops::difference::largest_difference;
use scratch_data_parallel::Method;
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
    one: &'a Run,
    several: &'a Run,
    /// One device with all cores.
    all_cores: Option<&'a Run>,
    /// The largest relative difference between the weights of several devices and of one, after step 1.
    after_first_step: f64,
    /// The same at the end. `None` if the runs did not end at the same step.
    at_the_end: Option<f64>,
}

impl<'a> Comparison<'a> {
    /// Compares several devices with one. Fails when weights cannot be compared.
    pub(crate) fn new(
        one: &'a Run,
        several: &'a Run,
        all_cores: Option<&'a Run>,
    ) -> candle_core::Result<Self> {
        let together = one.summary.epochs_trained == several.summary.epochs_trained;
        let (theirs, ones) = (&several.outcome, &one.outcome);
        let at_the_end = together.then(|| largest_difference(&theirs.weights, &ones.weights));
        let after_first_step =
            largest_difference(&theirs.after_first_step, &ones.after_first_step)?;
        Ok(Self { one, several, all_cores, after_first_step, at_the_end: at_the_end.transpose()? })
    }

    /// The largest relative differences of the weights, for `--metrics`.
    pub(crate) fn differences(&self) -> Value {
        json!({ "after_first_step": self.after_first_step, "at_the_end": self.at_the_end })
    }

    /// The lines about the weights.
    pub(crate) fn lines(&self) -> String {
        let at_the_end = self.at_the_end.map(|end| format!(", {} at the end", distance(end)));
        let at_the_end = at_the_end.unwrap_or_else(|| "; not compared at the end".to_owned());
        let first = distance(self.after_first_step);
        let replicas = verdict(&self.several.outcome.hashes);
        format!("largest weight difference: {first} after step 1{at_the_end}\n{replicas}")
    }

    /// Returns the paragraphs about the times, the weights and the accuracy, as far as there is something to say.
    pub(crate) fn conclusion(&self) -> Vec<String> {
        let accuracy = match (&self.several.method, self.at_the_end) {
            (Method::Reproducible { .. }, _) | (_, None) => String::new(),
            _ => accuracies(&self.one.summary, &self.several.summary, ""),
        };
        let paragraphs = [self.times(), self.weights(), accuracy];
        paragraphs.into_iter().filter(|text| !text.is_empty()).collect()
    }

    /// Compares the times. Wrong steps have no speed, but doubtful times.
    fn times(&self) -> String {
        let runs = [self.one, self.several].into_iter().chain(self.all_cores);
        let runs: Vec<&Summary> = runs.map(|run| &run.summary).collect();
        let all_cores = |all: &&Summary| {
            let ratio = all.seconds_per_epoch / runs[1].seconds_per_epoch;
            format!(" {}", speed_up("They", "one device with all their cores", ratio))
        };
        times(&runs, "data parallel", |ratio| match self.several.method {
            Method::Broken(..) => String::new(),
            _ => {
                let devices = format!("{} devices", runs[1].devices.len());
                speed_up(&devices, "one", ratio) + &runs.get(2).map_or_else(String::new, all_cores)
            }
        })
    }

    /// The largest difference after step 1 that the method allows: none, or rounding.
    fn allowed(&self) -> f64 {
        let Run { plan, method, summary, .. } = self.several;
        match method {
            Method::Reproducible { .. } => 0.0,
            _ => rounding(&summary.dtype, plan.is_of_slices()),
        }
    }

    /// Whether a run ended with the bits of one device, as far as both trained together.
    fn ends_as_one(&self, run: &Run) -> bool {
        let together = run.summary.epochs_trained == self.one.summary.epochs_trained;
        !together || run.outcome.hashes[0] == self.one.outcome.hashes[0]
    }

    /// The sign of the bug of several devices. A NaN is no agreement.
    fn sign(&self) -> Sign {
        match check(&self.several.outcome.hashes) {
            Err(_) => REPLICAS,
            Ok(()) if self.after_first_step <= self.allowed() => NOTHING,
            Ok(()) => ONE_DEVICE,
        }
    }

    /// Judges the weights by the promise of the method: equal bits, or one device's weights up to rounding.
    fn weights(&self) -> String {
        let (how, unlike) = match self.several.method {
            Method::Broken(bug, _) => {
                let (name, help) = (name_of(&bug), help_of(&bug));
                return format!("The bug of --break {name}: {help}. {}", self.sign().1);
            }
            Method::Reproducible { .. } => {
                ("to the last bit", ", although --shards promises the same bits")
            }
            Method::AllReduce(_) => {
                ("up to rounding", " by more than rounding explains after step 1")
            }
        };
        let most = self.allowed();
        // A NaN is no agreement.
        let agrees =
            self.after_first_step <= most && (most > 0.0 || self.ends_as_one(self.several));
        let end = match self.at_the_end {
            _ if !agrees => {
                return format!("The weights differ{unlike}: this is a mistake in the program.");
            }
            _ if !self.all_cores.is_none_or(|all| self.ends_as_one(all)) => {
                return "One device has other weights with all cores: this is a mistake in the program.".to_owned();
            }
            None => "The runs did not end at the same step, so the final weights are not compared.",
            Some(end) if end <= most => "At the end they still agree.",
            Some(_) => &format!(
                "Training amplifies rounding.{}",
                rounding_test(&self.several.summary.dtype)
            ),
        };
        format!("After step 1 the weights agree with one device {how}. {end}")
    }
}

/// The sign that shows a bug, and a sentence about the sign.
type Sign = (&'static str, &'static str);

const ERROR: Sign = ("an error", "The run ends with an error.");
const REPLICAS: Sign =
    ("the replicas", "The replicas differ, so a comparison of their weights finds this bug.");
const ONE_DEVICE: Sign = (
    "only one device",
    "The replicas are equal, so only the comparison with one device finds this bug.",
);
const NOTHING: Sign =
    ("nothing yet", "The weights agree with one device, so the bug does not show yet.");

/// Prints a table of the healthy run and of runs with a bug, after the run on one device. `failed` are the bugs whose runs ended
/// with an error. Fails when weights cannot be compared, or printing fails.
pub(crate) fn show_bugs(runs: &[Run], failed: &[String]) -> anyhow::Result<()> {
    let [one, several @ ..] = runs else { return Ok(()) };
    let mut table = Table::new("run").column("last loss", 0).column("test acc", 1);
    table = table.column("difference\nafter step 1", 0).words("found by", 0);
    let mut signs = Vec::new();
    for run in several {
        let comparison = Comparison::new(one, run, None)?;
        let sign = matches!(run.method, Method::Broken(..)).then(|| comparison.sign());
        signs.extend(sign);
        let loss = run.outcome.records.last().map_or(f64::NAN, |record| record.train_loss);
        let (accuracy, first) = (accuracy(run.summary.test_accuracy), comparison.after_first_step);
        let sign = sign.map_or_else(String::new, |(sign, _)| sign.to_owned());
        table.row([run.summary.run.clone(), format!("{loss:.4}"), accuracy, distance(first), sign]);
    }
    for name in failed {
        signs.push(ERROR);
        let none = String::new;
        table.row([name.clone(), none(), none(), none(), ERROR.0.to_owned()]);
    }
    line("")?;
    table.print()?;
    Ok(paragraph(format_args!("\n{}", found(&signs)))?)
}

/// Counts the bugs by their signs.
fn found(signs: &[Sign]) -> String {
    let count = |wanted: Sign| signs.iter().filter(|&&sign| sign == wanted).count();
    let (silent, all) = (signs.len() - count(ERROR), signs.len());
    let hidden = match count(NOTHING) {
        0 => String::new(),
        hidden => format!(" {hidden} of them do not show yet."),
    };
    format!(
        "{silent} of {all} runs with a bug end without an error. A comparison of the replicas finds {} of them, and only the \
         comparison with one device finds {}.{hidden}",
        count(REPLICAS),
        count(ONE_DEVICE)
    )
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
    use model_state::weights_hash::WeightsHash;
    use params_and_allreduce::Algorithm;
    use scratch_data_parallel::breakage::Breakage;

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

    fn of(runs: &[Run], after_first_step: f64, at_the_end: Option<f64>) -> Comparison<'_> {
        let (one, several, all_cores) = (&runs[0], &runs[1], runs.get(2));
        Comparison { one, several, all_cores, after_first_step, at_the_end }
    }

    /// The conclusion after a step with such a difference, and after all steps.
    fn said(runs: &[Run], after_first_step: f64, at_the_end: Option<f64>) -> String {
        of(runs, after_first_step, at_the_end).conclusion().join("\n")
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

    #[test]
    fn bugs_are_counted_by_their_signs() {
        assert_eq!(
            found(&[REPLICAS, ONE_DEVICE, ERROR, ONE_DEVICE]),
            "3 of 4 runs with a bug end without an error. A comparison of the replicas finds 1 of them, and only the comparison \
             with one device finds 2."
        );
        assert!(found(&[NOTHING, ERROR]).ends_with("finds 0. 1 of them do not show yet."));
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
            let comparison = of(&runs, 1.2e-3, None);
            let text = comparison.conclusion().join("\n");
            assert!(text.starts_with(doubt) && !text.contains("as fast"), "{text}");
            let lines = comparison.lines();
            assert!(!lines.contains("speed-up") && !lines.contains('×'), "{lines}");
        }
    }
}

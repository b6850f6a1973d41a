//! The conclusion from the numbers of the runs, in plain sentences.

use clap::ValueEnum as _;
use datasets::GUESSING;
use harness::cli::name_of;
use harness::load::why_no_speed_up;
use harness::report::{accuracy, thousands};
use harness::statistics::{chance, chance_explains};
use scratch_data_parallel::Method;
use scratch_data_parallel::breakage::Breakage;

/// Two times that differ by less than this share count as equal.
const EQUAL_TIMES: f64 = 0.05;

/// The numbers that the conclusion depends on, of one device and of several devices.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) method: Method,
    /// The number of devices of the parallel run.
    pub(crate) devices: usize,
    /// Whether the weights have 64 bits.
    pub(crate) f64: bool,
    /// Whether the devices are slices of the CPU.
    pub(crate) slices: bool,
    /// Whether devices share a core or a GPU.
    pub(crate) shared: bool,
    /// Whether other programs used the cores.
    pub(crate) busy: bool,
    /// Whether a run is too short to compare times.
    pub(crate) short: bool,
    /// How many times as fast the devices are as one device, and as one device with all cores.
    pub(crate) speed_ups: Vec<f64>,
    /// The relative difference between the weights of one device and of several, after step 1.
    pub(crate) after_first_step: f64,
    /// The same at the end. `None` if the runs did not end at the same step.
    pub(crate) at_the_end: Option<f64>,
    /// Whether all runs ended with the same bits.
    pub(crate) same_bits: bool,
    /// Whether one device ended with the same bits with few and with all cores. `None` if only one of the two was trained.
    pub(crate) same_bits_alone: Option<bool>,
    pub(crate) replicas_agree: bool,
    /// The test accuracy of one device and of several.
    pub(crate) accuracies: [f64; 2],
    /// The number of test images.
    pub(crate) test_images: usize,
}

impl Facts {
    /// Returns the paragraphs about the weights, the results and the speed, as far as there is something to say.
    pub(crate) fn conclusion(&self) -> Vec<String> {
        let speed = self.speed();
        match self.method {
            Method::AllReduce(_) => vec![self.rounding(), self.results(), speed],
            Method::Reproducible { shards } => vec![self.same_bits(shards), speed],
            // The speed of wrong steps means nothing.
            Method::Broken(bug, _) => vec![self.broken(bug)],
        }
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect()
    }

    /// The largest difference after one step that rounding explains.
    fn tolerance(&self) -> f64 {
        match (self.f64, self.slices) {
            (true, _) => 1e-10,
            (false, true) => 1e-5,
            // The algorithms of cuDNN, and TF32.
            (false, false) => 1e-3,
        }
    }

    /// Judges the weights of healthy runs.
    fn rounding(&self) -> String {
        let (first, most) = (self.after_first_step, self.tolerance());
        // A NaN is no agreement.
        let agree = first <= most;
        if !agree {
            return format!(
                "After step 1 the weights differ by {}, and rounding explains at most {most:.0e}: \
                 this is a mistake in the program.",
                distance(first)
            );
        }
        let ways =
            format!("After step 1 the weights of one device and of {} devices", self.devices);
        let after_first = match first {
            0.0 => format!("{ways} are equal to the last bit."),
            _ => format!("{ways} agree to rounding ({first:.1e})."),
        };
        let hint = match self.f64 {
            true => "",
            false => " --dtype f64 tests whether rounding is the only cause.",
        };
        let at_the_end = match self.at_the_end {
            None => NOT_COMPARED.to_owned(),
            Some(0.0) => "At the end they are equal to the last bit.".to_owned(),
            Some(end) if end <= most => {
                format!("At the end they still agree to rounding ({end:.1e}).")
            }
            Some(end) => {
                format!(
                    "Training amplifies rounding: at the end the weights differ by {}.{hint}",
                    distance(end)
                )
            }
        };
        format!("{after_first} {at_the_end}")
    }

    /// Compares one device with few cores and with all cores, and the test accuracies.
    fn results(&self) -> String {
        let same = match self.same_bits_alone {
            Some(true) => "One device has the same weights with all cores, to the last bit.",
            Some(false) => {
                "One device has other weights with all cores: this is a mistake in the program."
            }
            None => "",
        };
        format!("{same}{}", self.accuracy()).trim_start().to_owned()
    }

    /// Compares the test accuracies. Empty if neither run has learned, or the runs did not end at the same step.
    fn accuracy(&self) -> String {
        let [one, several] = self.accuracies;
        let guesses = one.max(several) <= GUESSING + chance(GUESSING, self.test_images);
        if self.at_the_end.is_none() || guesses {
            return String::new();
        }
        let images = thousands(self.test_images);
        let explains = match chance_explains(self.accuracies, self.test_images) {
            true => "explains",
            false => "does not explain",
        };
        let [one, several] = self.accuracies.map(accuracy);
        format!(
            " Data parallel has test accuracy {several}, and one device {one}: with {images} test images, chance {explains} \
             this difference."
        )
    }

    /// Judges the bits of the reproducible mode.
    fn same_bits(&self, shards: usize) -> String {
        match self.at_the_end {
            None if self.after_first_step == 0.0 => {
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
    fn broken(&self, bug: Breakage) -> String {
        let help = bug.to_possible_value().and_then(|value| value.get_help().cloned());
        let help = help.map_or_else(String::new, |help| format!(": {help}"));
        let mut text = format!("The bug of --break {}{help}.", name_of(&bug));
        let (first, most) = (self.after_first_step, self.tolerance());
        let equal = first <= most;
        text += &match equal {
            true => {
                " After step 1 the weights agree with one device, so the bug does not show yet."
                    .to_owned()
            }
            false => format!(
                " After step 1 the weights of rank 0 differ from one device by {}; rounding explains at most {most:.0e}.",
                distance(first)
            ),
        };
        text += match (self.replicas_agree, equal) {
            (false, _) => " The replicas differ, so a comparison of their weights finds this bug.",
            (true, false) => {
                " The replicas are equal, so only the comparison with one device finds this bug."
            }
            (true, true) => " The replicas are equal.",
        };
        text + &self.accuracy()
    }

    /// Compares the times. Empty if there are no times.
    fn speed(&self) -> String {
        let devices = self.devices;
        let Some(&ratio) = self.speed_ups.first().filter(|ratio| ratio.is_finite()) else {
            return String::new();
        };
        if let Some(reason) = why_no_speed_up(devices, self.shared, self.busy) {
            return reason;
        }
        let short = if self.short { " The runs are too short for exact times." } else { "" };
        let over_one = match Ratio::of(ratio) {
            Ratio::Faster => format!(
                "{devices} devices are {ratio:.2} times as fast as one; {devices} times is ideal."
            ),
            Ratio::Equal => format!(
                "{devices} devices are no faster than one: the all-reduces cost as much time as they save."
            ),
            Ratio::Slower => format!(
                "{devices} devices are slower than one: an epoch takes {:.2} times as long.",
                1.0 / ratio
            ),
        };
        let Some(&all_cores) = self.speed_ups.get(1).filter(|ratio| ratio.is_finite()) else {
            return over_one + short;
        };
        let over_all_cores = match Ratio::of(all_cores) {
            Ratio::Faster => {
                format!("They are {all_cores:.2} times as fast as one device with all their cores.")
            }
            Ratio::Equal => {
                "One device with all their cores is as fast: the cores count, not the number of devices.".to_owned()
            }
            Ratio::Slower => {
                format!("One device with all their cores is {:.2} times as fast as they are.", 1.0 / all_cores)
            }
        };
        format!("{over_one} {over_all_cores}{short}")
    }
}

const NOT_COMPARED: &str =
    "The runs did not end at the same step, so the final weights are not compared.";

/// Formats a difference: `0`, `1.3`, `2.0e-5`.
pub(crate) fn distance(number: f64) -> String {
    match number {
        0.0 => "0".to_owned(),
        _ if (0.1..1000.0).contains(&number) => format!("{number:.1}"),
        _ => format!("{number:.1e}"),
    }
}

enum Ratio {
    Faster,
    Equal,
    Slower,
}

impl Ratio {
    fn of(ratio: f64) -> Self {
        match ratio {
            _ if ratio > 1.0 + EQUAL_TIMES => Self::Faster,
            _ if ratio < 1.0 - EQUAL_TIMES => Self::Slower,
            _ => Self::Equal,
        }
    }
}

#[cfg(test)]
mod tests {
    use params_and_allreduce::Algorithm;

    use super::*;

    fn facts() -> Facts {
        Facts {
            method: Method::AllReduce(Algorithm::OneShot),
            devices: 2,
            f64: false,
            slices: true,
            shared: false,
            busy: false,
            short: false,
            speed_ups: vec![1.83, 1.28],
            after_first_step: 3.1e-7,
            at_the_end: Some(1.3),
            same_bits: false,
            same_bits_alone: Some(true),
            replicas_agree: true,
            accuracies: [0.873, 0.868],
            test_images: 10_000,
        }
    }

    fn says(facts: &Facts, expected: &str) {
        let text = facts.conclusion().join("\n");
        assert!(text.contains(expected), "{expected:?} is not in {text:?}");
    }

    #[test]
    fn weights_of_healthy_runs() {
        let text = &facts().conclusion()[0];
        assert_eq!(
            text,
            "After step 1 the weights of one device and of 2 devices agree to rounding (3.1e-7). Training amplifies rounding: \
             at the end the weights differ by 1.3. --dtype f64 tests whether rounding is the only cause."
        );
        assert_eq!(
            facts().conclusion()[1],
            "One device has the same weights with all cores, to the last bit. Data parallel has test accuracy 0.868, and one \
             device 0.873: with 10,000 test images, chance explains this difference."
        );
        let double =
            Facts { f64: true, after_first_step: 2e-16, at_the_end: Some(4e-8), ..facts() };
        says(
            &double,
            "(2.0e-16). Training amplifies rounding: at the end the weights differ by 4.0e-8.",
        );
        says(
            &Facts { same_bits_alone: Some(false), ..facts() },
            "has other weights with all cores",
        );
        let alone = Facts { same_bits_alone: None, accuracies: [0.1, 0.101], ..facts() };
        assert!(alone.conclusion()[1].starts_with("2 devices are"), "{alone:?}");
        let wrong = "the weights differ by 3.1e-7, and rounding explains at most 1e-10";
        says(&Facts { f64: true, ..facts() }, wrong);
        says(&Facts { after_first_step: f64::NAN, ..facts() }, "differ by NaN");
        says(&Facts { after_first_step: 2e-4, ..facts() }, "a mistake in the program");
        let gpus = Facts { after_first_step: 2e-4, slices: false, ..facts() };
        says(&gpus, "agree to rounding (2.0e-4)");
        says(&Facts { at_the_end: Some(3e-6), ..facts() }, "still agree to rounding (3.0e-6).");
        says(&Facts { at_the_end: None, ..facts() }, "did not end at the same step");
        let equal = Facts { after_first_step: 0.0, at_the_end: Some(0.0), ..facts() };
        says(&equal, "of 2 devices are equal to the last bit. At the end they are");
    }

    #[test]
    fn bits_of_shards() {
        let shards = |same_bits, after_first_step, at_the_end| {
            let method = Method::Reproducible { shards: 8 };
            Facts { method, same_bits, after_first_step, at_the_end, ..facts() }
        };
        let same = shards(true, 0.0, Some(0.0));
        says(&same, "With --shards 8 all runs end with the same weights, to the last bit.");
        says(&same, "2 devices are 1.83 times as fast");
        says(&shards(false, 0.0, Some(1e-9)), "although --shards 8 promises the same bits");
        says(&shards(false, 0.0, None), "After step 1 the weights are equal to the last bit. The");
        says(&shards(false, 1e-7, None), "promises the same bits");
    }

    #[test]
    fn bugs() {
        let bug = |bug| {
            let method = Method::Broken(bug, Algorithm::OneShot);
            Facts { method, after_first_step: 1.2e-3, ..facts() }
        };
        let mean = bug(Breakage::MeanForSum);
        says(&mean, "--break mean-for-sum: Gradients are averaged over the devices");
        says(&mean, "differ from one device by 1.2e-3; rounding explains at most 1e-5.");
        says(&mean, "only the comparison with one device finds this bug.");
        says(
            &mean,
            "test accuracy 0.868, and one device 0.873: with 10,000 test images, chance explains",
        );
        assert_eq!(mean.conclusion().len(), 1, "no speed");
        let apart = Facts { replicas_agree: false, ..bug(Breakage::SkipAllreduce) };
        says(&apart, "The replicas differ, so a comparison of their weights finds this bug.");
        let worse = Facts { accuracies: [0.873, 0.71], ..mean.clone() };
        says(
            &worse,
            "test accuracy 0.710, and one device 0.873: with 10,000 test images, chance does not",
        );
        for silent in [
            Facts { accuracies: [0.1, 0.101], ..mean.clone() },
            Facts { at_the_end: None, ..mean.clone() },
        ] {
            assert!(!silent.conclusion()[0].contains("accuracy"), "{silent:?}");
        }
        let hidden = Facts { after_first_step: 1e-8, ..mean };
        says(&hidden, "the bug does not show yet. The replicas are equal.");
    }

    #[test]
    fn speeds() {
        let speed = |speed_ups: &[f64]| Facts { speed_ups: speed_ups.to_vec(), ..facts() };
        for (speed_ups, expected) in [
            (&[1.83, 1.28][..], "2 devices are 1.83 times as fast as one; 2 times is ideal."),
            (&[1.83, 1.28], "They are 1.28 times as fast as one device with all their cores."),
            (&[1.83, 0.98], "One device with all their cores is as fast"),
            (&[1.83, 0.5], "One device with all their cores is 2.00 times as fast as they are."),
            (&[1.83], "2 times is ideal."),
            (&[1.02], "2 devices are no faster than one"),
            (&[0.5], "2 devices are slower than one: an epoch takes 2.00 times as long."),
        ] {
            says(&speed(speed_ups), expected);
        }
        let short = Facts { short: true, ..facts() };
        says(&short, "with all their cores. The runs are too short for exact times.");
        for none in [&[][..], &[f64::NAN]] {
            assert_eq!(speed(none).conclusion().len(), 2, "{none:?}");
        }
        let shared = Facts { shared: true, busy: true, devices: 4, ..facts() };
        says(&shared, "The 4 devices share hardware, so the times show");
        says(&Facts { busy: true, ..facts() }, "Other programs used the cores");
    }
}

//! What measured times, accuracies and weights allow to conclude. Each doubt has one threshold for all programs. Doubts about
//! times come first: with a doubt, [`ranked`] ranks nothing.

use itertools::Itertools as _;

use crate::records::Unit;
use crate::report::summary::Summary;
use crate::report::thousands;
use crate::statistics::chance_explains;

/// Times that differ by less than this share count as equal. Repeated runs on a quiet machine differ by as much.
pub const EQUAL_TIMES: f64 = 0.05;

/// Measurements of fewer seconds are too short: a single pause decides their times.
pub const SHORTEST: f64 = 0.5;

/// Fewer repetitions are too few for a median.
const FEWEST: u32 = 5;

/// A speed-up above this multiple of the most that devices can reach is implausible: caches explain less.
const IMPLAUSIBLE: f64 = 1.25;

/// A reason why measured times say little, as a sentence.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Doubt {
    /// So many devices share cores or a GPU.
    #[error(
        "The {0} devices share hardware, so the times show the cost of messages and no speed-up."
    )]
    Shared(usize),
    /// Other programs used the cores.
    #[error(
        "Other programs used the cores, so the times are not reliable: repeat the run on a quiet machine."
    )]
    Busy,
    /// A run took less than [`SHORTEST`].
    #[error("Runs below {} s are too short for reliable times.", SHORTEST)]
    Short,
    /// Ctrl-C ended a run.
    #[error("A run was interrupted, so its times are of fewer steps.")]
    Interrupted,
    /// Few repetitions were measured.
    #[error("With so few runs, chance decides much: repeat with more --runs.")]
    FewRepetitions,
    /// Devices have a higher speed-up than they can reach with their idle time.
    #[error("{0}")]
    Implausible(String),
}

impl Doubt {
    /// Returns the doubts about the times of some runs.
    pub fn about(runs: &[&Summary]) -> Vec<Self> {
        let any = |of: fn(&Summary) -> bool| runs.iter().any(|run| of(run));
        let shared = runs.iter().filter(|run| run.shared).map(|run| run.devices.len()).max();
        let is_short = |run: &Summary| run.seconds_per_epoch * run.epochs_trained < SHORTEST;
        let doubts = [
            shared.map(Self::Shared),
            any(|run| run.busy.is_some()).then_some(Self::Busy),
            any(is_short).then_some(Self::Short),
            any(|run| run.interrupted).then_some(Self::Interrupted),
        ];
        doubts.into_iter().flatten().collect()
    }

    /// Returns a doubt if a median has so few repetitions.
    pub fn of_repetitions(repetitions: u32) -> Option<Self> {
        (repetitions < FEWEST).then_some(Self::FewRepetitions)
    }

    /// Returns a doubt if devices, called `name`, with this share of idle time cannot be so many times as fast as one.
    pub fn of_speed_up(name: &str, speed_up: f64, devices: usize, idle: f64) -> Option<Self> {
        let most = devices as f64 * (1.0 - idle);
        (speed_up > IMPLAUSIBLE * most).then(|| {
            Self::Implausible(format!(
                "The speed-up of {name} is {speed_up:.2}, and {devices} devices that are idle for {:.0} % of the time reach \
                 {most:.2} at most: other work disturbed a run, so repeat them all.",
                100.0 * idle
            ))
        })
    }
}

/// Returns the doubts about times, in sentences; without any doubt, the ranking.
pub fn ranked(doubts: &[Doubt], ranking: impl FnOnce() -> String) -> String {
    if doubts.is_empty() { ranking() } else { doubts.iter().join(" ") }
}

/// Compares the times of one device, of several, and of further runs: the doubts about them, or else `ranking` of the
/// speed-up over one device. `method` is the name of the work of several devices. Empty if there is no speed-up.
pub fn times(runs: &[&Summary], method: &str, ranking: impl FnOnce(f64) -> String) -> String {
    let [one, several, ..] = runs else { return String::new() };
    let ratio = one.seconds_per_epoch / several.seconds_per_epoch;
    let mut doubts = Doubt::about(runs);
    doubts.extend(Doubt::of_speed_up(method, ratio, several.devices.len(), 0.0));
    ranked(&doubts, || if ratio.is_finite() { ranking(ratio) } else { String::new() })
}

/// A ratio of times, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// Faster by more than [`EQUAL_TIMES`].
    Faster,
    /// As fast.
    Equal,
    /// Slower by more than [`EQUAL_TIMES`].
    Slower,
}

impl Speed {
    /// Judges how many times as fast something is.
    pub fn of(ratio: f64) -> Self {
        match ratio {
            _ if ratio > 1.0 + EQUAL_TIMES => Self::Faster,
            _ if ratio * (1.0 + EQUAL_TIMES) < 1.0 => Self::Slower,
            _ => Self::Equal,
        }
    }
}

/// Compares the speed of several devices with that of `one`: `2 devices are 1.93 times as fast as one.`
pub fn speed_up(devices: &str, one: &str, ratio: f64) -> String {
    match Speed::of(ratio) {
        Speed::Faster => format!("{devices} are {ratio:.2} times as fast as {one}."),
        Speed::Equal => format!("{devices} are no faster than {one}."),
        Speed::Slower => {
            let longer = 1.0 / ratio;
            format!("{devices} are slower than {one}: an epoch takes {longer:.2} times as long.")
        }
    }
}

/// Compares the test accuracy of one run with guessing.
pub fn of_one(run: &Summary) -> String {
    let noun = run.unit.names().0;
    let does = if run.unit == Unit::Images { "classifies" } else { "predicts" };
    match run.has_learned() {
        _ if run.test_accuracy.is_nan() => {
            format!("No test {noun} was evaluated, so nothing is known of the accuracy.")
        }
        true => format!(
            "The network {does} {:.0} % of the test {noun}s correctly; guessing gives {:.0} %.",
            100.0 * run.test_accuracy,
            100.0 * run.guessing
        ),
        false => not_learned("The network is not", run),
    }
}

fn not_learned(subject: &str, run: &Summary) -> String {
    format!(
        "{subject} clearly better than guessing ({:.3}): train for more epochs, or with another --lr.",
        run.guessing
    )
}

/// Compares the test accuracies of one device and of several. If chance does not explain the difference, `cause` follows.
/// Empty if a run was not tested.
pub fn accuracies(one: &Summary, several: &Summary, cause: &str) -> String {
    let accuracies @ [before, after] = [one, several].map(|run| run.test_accuracy);
    let images = several.images.1;
    match () {
        () if before.is_nan() || after.is_nan() => String::new(),
        () if !one.has_learned() && !several.has_learned() => {
            not_learned("Neither run is", several)
        }
        () if chance_explains(accuracies, images) => format!(
            "Test accuracy is {after:.3}, and {before:.3} on one device: {} test {}s show no clear difference.",
            thousands(images),
            several.unit.names().0
        ),
        () => {
            let than = if after > before { "higher than" } else { "lower than" };
            let text =
                format!("Test accuracy is {after:.3}, {than} {before:.3} on one device. {cause}");
            text.trim_end().to_owned()
        }
    }
}

/// Returns the largest relative difference of weights that rounding explains after one step, on `slices` of the CPU or on GPUs.
pub fn rounding(dtype: &str, slices: bool) -> f64 {
    match (dtype, slices) {
        ("f64", _) => 1e-10,
        (_, true) => 1e-5,
        // The algorithms of cuDNN, and TF32.
        (_, false) => 1e-3,
    }
}

/// Returns a sentence, after a space, on how to test that a difference is rounding. Empty in f64, which is the test.
pub fn rounding_test(dtype: &str) -> &'static str {
    match dtype {
        "f64" => "",
        _ => " --dtype f64 tests whether rounding is the only cause.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of ten seconds on so many devices, with 2,000 test images.
    fn run(devices: usize, test_accuracy: f64) -> Summary {
        Summary {
            images: (60_000, 2_000),
            devices: vec![String::new(); devices],
            epochs_trained: 5.0,
            seconds_per_epoch: 2.0,
            test_accuracy,
            guessing: 0.1,
            ..Summary::default()
        }
    }

    fn said(runs: &[&Summary]) -> String {
        ranked(&Doubt::about(runs), || "ranked".to_owned())
    }

    #[test]
    fn each_doubt_about_times_is_named_and_nothing_is_ranked() {
        let (one, two) = (run(1, 0.5), || run(2, 0.5));
        assert_eq!(said(&[&one, &two()]), "ranked");
        let shared = Summary { shared: true, ..run(4, 0.5) };
        let busy = Summary { busy: Some(String::new()), ..two() };
        let long_enough = Summary { seconds_per_epoch: 0.1, ..two() };
        let short = Summary { seconds_per_epoch: 0.099, ..two() };
        let interrupted = Summary { interrupted: true, ..two() };
        let of_shared =
            "The 4 devices share hardware, so the times show the cost of messages and no speed-up.";
        let of_busy = "Other programs used the cores, so the times are not reliable: repeat the run on a quiet machine.";
        for (other, expected) in [
            (&shared, of_shared),
            (&busy, of_busy),
            (&long_enough, "ranked"),
            (&short, "Runs below 0.5 s are too short for reliable times."),
            (&interrupted, "A run was interrupted, so its times are of fewer steps."),
        ] {
            assert_eq!(said(&[&one, other]), expected);
            assert_eq!(said(&[other, &one]), expected);
        }
        let all = said(&[&interrupted, &short, &busy, &shared]);
        assert!(all.starts_with(of_shared) && all.matches(". ").count() == 3, "{all}");
    }

    #[test]
    fn a_speed_up_is_ranked_only_without_doubts() {
        let of = |one: &Summary, several: &Summary| {
            times(&[one, several], "DDP", |ratio| format!("{ratio:.1} times"))
        };
        let (one, two) =
            (run(1, 0.5), |seconds_per_epoch| Summary { seconds_per_epoch, ..run(2, 0.5) });
        assert_eq!(of(&one, &two(1.0)), "2.0 times");
        assert_eq!(of(&one, &two(f64::NAN)), "");
        let busy = Summary { busy: Some(String::new()), ..two(1.0) };
        assert_eq!(of(&one, &busy), Doubt::Busy.to_string());
        assert!(of(&one, &two(0.5)).starts_with("The speed-up of DDP is 4.00"));
        assert_eq!(times(&[&one], "DDP", |_| unreachable!()), "");
    }

    #[test]
    fn few_repetitions_and_implausible_speed_ups_are_doubts() {
        assert_eq!([4, 5].map(Doubt::of_repetitions), [Some(Doubt::FewRepetitions), None]);
        let doubt = |speed_up, idle| {
            Doubt::of_speed_up("naive", speed_up, 2, idle).map(|doubt| doubt.to_string())
        };
        assert_eq!(
            doubt(1.56, 0.59).expect("a contradiction"),
            "The speed-up of naive is 1.56, and 2 devices that are idle for 59 % of the time reach 0.82 at most: other work \
             disturbed a run, so repeat them all."
        );
        let without_idle_time = doubt(2.6, 0.0).expect("more than two devices can do");
        assert!(without_idle_time.contains("for 0 % of the time reach 2.00 at most:"));
        // Caches explain a quarter more.
        assert_eq!([doubt(2.5, 0.0), doubt(1.0, 0.59), doubt(f64::NAN, 0.0)], [const { None }; 3]);
    }

    #[test]
    fn times_within_five_per_cent_are_equal() {
        let judged = [2.0, 1.06, 1.04, 1.0, 0.96, 0.95, 0.5].map(Speed::of);
        let [faster, equal, slower] = [Speed::Faster, Speed::Equal, Speed::Slower];
        assert_eq!(judged, [faster, faster, equal, equal, equal, slower, slower]);
        for (ratio, expected) in [
            (1.93, "2 devices are 1.93 times as fast as one."),
            (1.02, "2 devices are no faster than one."),
            (0.5, "2 devices are slower than one: an epoch takes 2.00 times as long."),
        ] {
            assert_eq!(speed_up("2 devices", "one", ratio), expected);
        }
    }

    #[test]
    fn an_accuracy_is_compared_with_guessing_and_with_another() {
        let guesses = "The network is not clearly better than guessing (0.100): train for more epochs, or with another --lr.";
        let learned =
            "The network classifies 89 % of the test images correctly; guessing gives 10 %.";
        let untested = "No test image was evaluated, so nothing is known of the accuracy.";
        for (accuracy, expected) in [(0.894, learned), (0.11, guesses), (f64::NAN, untested)] {
            assert_eq!(of_one(&run(1, accuracy)), expected);
        }
        let text = Summary { unit: Unit::Tokens, ..run(1, 0.517) };
        let predicts =
            "The network predicts 52 % of the test tokens correctly; guessing gives 10 %.";
        assert_eq!(of_one(&text), predicts);
        let alike = "0.630, and 0.620 on one device: 2,000 test images show no clear difference.";
        for (before, after, expected) in [
            (f64::NAN, 0.5, ""),
            (0.5, f64::NAN, ""),
            (0.11, 0.09, "Neither run is clearly better than guessing (0.100): train for"),
            (0.62, 0.63, alike),
            (0.62, 0.7, "Test accuracy is 0.700, higher than 0.620 on one device. A cause."),
            (0.62, 0.1, "Test accuracy is 0.100, lower than 0.620 on one device. A cause."),
        ] {
            let text = accuracies(&run(1, before), &run(2, after), "A cause.");
            assert!(text.contains(expected) && text.is_empty() == expected.is_empty(), "{text}");
        }
        let bare = accuracies(&run(1, 0.62), &run(2, 0.1), "");
        assert!(bare.ends_with("on one device."), "{bare}");
    }

    #[test]
    fn rounding_depends_on_the_precision_and_on_the_device() {
        let limits = [("f64", true), ("f64", false), ("f32", true), ("f32", false)];
        assert_eq!(
            limits.map(|(dtype, slices)| rounding(dtype, slices)),
            [1e-10, 1e-10, 1e-5, 1e-3]
        );
        assert_eq!(rounding_test("f64"), "");
    }
}

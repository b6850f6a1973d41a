//! What measured times, accuracies and weights allow to conclude. Each doubt has one threshold for all programs.
//!
//! Doubts about times come first: with a doubt, [`ranked`] ranks nothing.

use std::fmt;

use crate::report::summary::Summary;
use crate::report::counted;

/// Times that differ by less than this share count as equal. Repeated runs on a quiet machine differ by as much.
pub const EQUAL_TIMES: f64 = 0.05;

/// Measurements of fewer seconds are too short: the system counts processor time in hundredths of a second.
pub const SHORTEST: f64 = 0.5;

/// Fewer repetitions are too few for a median.
const FEWEST: u32 = 5;

/// The speed-up that devices can reach at most, by their number and their idle time, times this factor is implausible.
/// Caches explain smaller factors.
const IMPLAUSIBLE: f64 = 1.25;

/// A reason why measured times say little.
#[derive(Clone, Debug, PartialEq)]
pub enum Doubt {
    /// So many devices share cores or a GPU.
    Shared(usize),
    /// Other programs used the cores.
    Busy,
    /// A run took less than [`SHORTEST`].
    Short,
    /// Ctrl-C ended a run.
    Interrupted,
    /// Few repetitions were measured.
    FewRepetitions,
    /// Devices are faster than their number and their idle time allow.
    Implausible {
        /// The devices or their schedule.
        name: String,
        /// How many times as fast as one device they are.
        speed_up: f64,
        /// The number of devices.
        devices: usize,
        /// The share of the time in which they are idle.
        idle: f64,
    },
}

impl Doubt {
    /// Returns the doubts about the times of some runs.
    pub fn about<'a>(runs: impl IntoIterator<Item = &'a Summary>) -> Vec<Self> {
        let runs: Vec<&Summary> = runs.into_iter().collect();
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

    /// Returns a doubt if devices that are idle for a share of the time cannot be so many times as fast as one.
    pub fn of_speed_up(name: &str, speed_up: f64, devices: usize, idle: f64) -> Option<Self> {
        let name = name.to_owned();
        let most = devices as f64 * (1.0 - idle);
        (speed_up > IMPLAUSIBLE * most).then_some(Self::Implausible {
            name,
            speed_up,
            devices,
            idle,
        })
    }
}

impl fmt::Display for Doubt {
    /// A sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared(devices) => write!(
                f,
                "The {} share hardware, so the times show the cost of messages and no speed-up.",
                counted(*devices, "device")
            ),
            Self::Busy => f.write_str(
                "Other programs used the cores, so the times are not reliable: repeat the run on a quiet machine.",
            ),
            Self::Short => write!(f, "Runs below {SHORTEST} s are too short for reliable times."),
            Self::Interrupted => {
                f.write_str("A run was interrupted, so its times are of fewer steps.")
            }
            Self::FewRepetitions => {
                f.write_str("With so few runs, chance decides much: repeat with more --runs.")
            }
            Self::Implausible { name, speed_up, devices, idle } => {
                let most = *devices as f64 * (1.0 - idle);
                let (devices, idle) = (counted(*devices, "device"), 100.0 * idle);
                let that_are_idle = match idle.round() {
                    0.0 => String::new(),
                    idle => format!(" that are idle for {idle} % of the time"),
                };
                write!(
                    f,
                    "The speed-up of {name} is {speed_up:.2}, and {devices}{that_are_idle} reach {most:.2} at most: other \
                     work disturbed a run, so repeat them all."
                )
            }
        }
    }
}

/// Returns the doubts about times, in sentences; without any doubt, the ranking.
pub fn ranked(doubts: &[Doubt], ranking: impl FnOnce() -> String) -> String {
    match doubts {
        [] => ranking(),
        doubts => doubts.iter().map(Doubt::to_string).collect::<Vec<_>>().join(" "),
    }
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

/// Compares several devices with one: `2 devices are 1.93 times as fast as one; 2 times is ideal.` `devices` names the
/// `count` devices, and `link` their link, such as ` over a link of 20 MB/s`. Empty if there is no ratio.
pub fn speed_up(devices: &str, count: usize, link: &str, ratio: f64) -> String {
    match Speed::of(ratio) {
        _ if !ratio.is_finite() => String::new(),
        Speed::Faster => {
            format!(
                "{devices} are {ratio:.2} times as fast as one{link}; {count} times is ideal."
            )
        }
        Speed::Equal => format!(
            "{devices} are no faster than one{link}: messages cost as much time as they save."
        ),
        Speed::Slower => format!(
            "{devices} are slower than one{link}: an epoch takes {:.2} times as long.",
            1.0 / ratio
        ),
    }
}

/// Returns how far a share of samples, such as an accuracy, lies from its true value by chance: two standard deviations of
/// a binomial distribution.
pub fn chance(share: f64, samples: usize) -> f64 {
    2.0 * (share * (1.0 - share) / samples as f64).sqrt()
}

/// Whether chance explains the difference between two shares that were measured on so many samples each.
pub fn chance_explains(shares: [f64; 2], samples: usize) -> bool {
    let [a, b] = shares.map(|share| chance(share, samples));
    (shares[0] - shares[1]).abs() <= a.hypot(b)
}

/// Whether a run ended with a test accuracy that guessing does not explain.
pub fn has_learned(run: &Summary) -> bool {
    run.test_accuracy > run.guessing + chance(run.guessing, run.images.1)
}

/// Compares the test accuracy of one run with guessing.
pub fn of_one(run: &Summary) -> String {
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    match has_learned(run) {
        _ if run.test_accuracy.is_nan() => {
            "No test image was evaluated, so nothing is known of the accuracy.".to_owned()
        }
        true => format!(
            "The network classifies {} of the test images correctly; guessing gives {}.",
            percent(run.test_accuracy),
            percent(run.guessing)
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

/// The comparison of the test accuracies of two runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accuracies {
    /// A run was not tested.
    Unknown,
    /// Neither run has learned: a sentence.
    Guesses(String),
    /// Chance explains the difference.
    Chance,
    /// The second run is `higher` or `lower`.
    Differ(&'static str),
}

impl Accuracies {
    /// Compares a second run with a first.
    pub fn of(first: &Summary, second: &Summary) -> Self {
        let accuracies @ [before, after] = [first, second].map(|run| run.test_accuracy);
        match () {
            () if before.is_nan() || after.is_nan() => Self::Unknown,
            () if !has_learned(first) && !has_learned(second) => {
                Self::Guesses(not_learned("Neither run is", second))
            }
            () if chance_explains(accuracies, second.images.1) => {
                Self::Chance
            }
            () => Self::Differ(if after > before { "higher" } else { "lower" }),
        }
    }
}

/// Returns the largest relative difference between weights that rounding explains after one step from equal weights, on
/// `slices` of the CPU or on GPUs.
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

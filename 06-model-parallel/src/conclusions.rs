//! The conclusions from the results of all ways, in sentences.

use harness::report::{joined, seconds};
use harness::verdict::{Doubt, Speed, ranked, rounding_test};

/// The numbers of a way that the conclusions need.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    /// The name in sentences, such as `1F1B` or `one device on 8 micro-batches`.
    pub(crate) name: String,
    pub(crate) devices: usize,
    pub(crate) replicas: usize,
    /// Whether the weights have the bits of one device on the same micro-batches. Sums over parts of a layer, and over replicas
    /// without `--shards`, round in another way.
    pub(crate) has_same_bits: bool,
    /// The number of micro-batches of a batch, on all replicas together.
    pub(crate) shards: usize,
    /// The number of epochs that were trained.
    pub(crate) epochs: f64,
    pub(crate) seconds_per_step: f64,
    /// The predicted and the measured share of the time in which the devices of a pipeline are idle.
    pub(crate) idle: Option<[f64; 2]>,
    /// The bytes of the fullest device.
    pub(crate) bytes: usize,
    /// The largest error of predicted bytes, as a share of the measured bytes.
    pub(crate) error_of_bytes: Option<f64>,
    /// The largest differences from the weights of one device, after the first step and at the end.
    pub(crate) errors: [Option<f64>; 2],
    /// The hash of the weights.
    pub(crate) hash: String,
}

impl Figures {
    fn is_alone(&self) -> bool {
        self.devices == 1
    }
}

fn names<'a>(all: impl IntoIterator<Item = &'a Figures>) -> String {
    joined(all.into_iter().map(|it| it.name.clone()))
}

/// Adds the first split whose speed-up its idle time does not allow, if there is no other doubt. A split is compared with one
/// device on as many micro-batches, because small batches may be faster by themselves.
pub(crate) fn doubts_about_times(all: &[Figures], mut doubts: Vec<Doubt>) -> Vec<Doubt> {
    let alone = || all.iter().filter(|it| it.is_alone());
    let doubt = |split: &Figures, one: Option<&Figures>, idle| {
        let name = format!("{} over {}", split.name, one?.name);
        let ratio = one?.seconds_per_step / split.seconds_per_step;
        Doubt::of_speed_up(&name, ratio, split.devices, idle)
    };
    let implausible = |split: &Figures| {
        let alike = alone().find(|it| it.shards == split.shards).or(alone().next());
        let idle = split.idle.map_or(0.0, |[_, measured]| measured);
        doubt(split, alike, idle).or_else(|| doubt(split, alone().next(), 0.0))
    };
    if doubts.is_empty() {
        doubts.extend(all.iter().filter(|it| !it.is_alone()).find_map(implausible));
    }
    doubts
}

/// Names the doubts about times; without a doubt, the fastest splits and the error of the predicted idle time. Empty without
/// splits.
pub(crate) fn of_times(all: &[Figures], doubts: &[Doubt]) -> String {
    let splits = || all.iter().filter(|it| !it.is_alone() && it.seconds_per_step.is_finite());
    let one = all.iter().find(|it| it.is_alone()).map(|one| one.seconds_per_step);
    let ranking = |best: f64| {
        let close = |it: &&Figures| Speed::of(it.seconds_per_step / best) == Speed::Equal;
        let (fastest, several) =
            (names(splits().filter(close)), splits().filter(close).count() > 1);
        let speed = match one.map(|one| one / best) {
            None => format!("{} s per step", seconds(best)),
            Some(ratio) if Speed::of(ratio) == Speed::Faster => {
                let up_to = if several { "up to " } else { "" };
                format!("{up_to}{ratio:.2} times as fast as one device")
            }
            Some(_) => "no faster than one device".to_owned(),
        };
        let percent = |share: f64| (100.0 * share).round();
        let points =
            |[predicted, measured]: [f64; 2]| (percent(measured) - percent(predicted)).abs();
        let off = all.iter().filter_map(|it| it.idle).map(points).reduce(f64::max);
        let sums = match all.iter().any(|it| it.replicas > 1) {
            true => " A sum over replicas is predicted as additions, without messages.",
            false => "",
        };
        let idle = off.map(|off| {
            format!(" The prediction of the idle time is off by {off:.0} % of a step at most: it leaves out messages and other programs.{sums}")
        });
        format!("Fastest: {fastest}, {speed}.{}", idle.unwrap_or_default())
    };
    let best = splits().map(|it| it.seconds_per_step).reduce(f64::min);
    ranked(doubts, || best.map_or_else(String::new, ranking))
}

/// Names the split whose fullest device holds least, and the error of the prediction. Empty without splits.
pub(crate) fn of_memory(all: &[Figures]) -> String {
    let splits = all.iter().filter(|it| !it.is_alone());
    let Some(least) = splits.min_by_key(|it| it.bytes) else { return String::new() };
    let one = all.iter().find(|it| it.is_alone());
    let one = one.map(|one| format!(" One device alone needs {} MB.", megabytes(one.bytes)));
    let (name, bytes, one) = (&least.name, megabytes(least.bytes), one.unwrap_or_default());
    let errors = all.iter().filter_map(|it| it.error_of_bytes).filter(|it| it.is_finite());
    let error = errors.reduce(f64::max).map(|error| {
        format!(" The predicted peak of each kind is off by {:.0} % at most.", 100.0 * error)
    });
    let error = error.unwrap_or_default();
    format!("Least memory: {name}, {bytes} MB on the fullest device.{one}{error}")
}

/// Names the ways that ended with the bits of one device, and judges the errors of the others by the largest difference that
/// rounding explains.
pub(crate) fn of_weights(all: &[Figures], dtype: &str, of_rounding: f64) -> String {
    let mut sentences = Vec::new();
    for one in all.iter().filter(|it| it.is_alone()) {
        let is_alike = |it: &&Figures| (it.shards, it.epochs) == (one.shards, one.epochs);
        let splits = all.iter().filter(|it| it.has_same_bits && !it.is_alone()).filter(is_alike);
        let (equal, others): (Vec<_>, Vec<_>) = splits.partition(|it| it.hash == one.hash);
        let how =
            [(equal, "the weights of", ", to the last bit"), (others, "other weights than", "")];
        for (ways, what, end) in how.into_iter().filter(|(ways, ..)| !ways.is_empty()) {
            sentences.push(format!("{} ended with {what} {}{end}.", names(ways), one.name));
        }
    }
    sentences.extend(rounding(all, dtype, of_rounding));
    sentences.join(" ")
}

/// Judges the largest error after step 1. `None` where all errors are 0 or unknown.
fn rounding(all: &[Figures], dtype: &str, of_rounding: f64) -> Option<String> {
    /// In f32, rounding can move the input of a relu across 0, which changes the gradient of one sample.
    const OF_RELU: f64 = 1e-2;
    let largest = |at: usize| {
        all.iter().filter_map(|it| it.errors[at]).filter(|it| it.is_finite()).reduce(f64::max)
    };
    let (first, is_zero) = (largest(0)?, |at| largest(at).is_none_or(|error| error == 0.0));
    let judged = match first {
        _ if is_zero(0) && is_zero(1) => return None,
        _ if first <= of_rounding => {
            "Errors above 0 are rounding, because sums have another order.".to_owned()
        }
        _ if dtype != "f64" && first <= OF_RELU => format!(
            "An error of {first:.1e} after step 1 may be rounding that moves the input of a relu across 0."
        ),
        _ => format!("An error of {first:.1e} after step 1 is more than rounding usually causes."),
    };
    Some(judged + rounding_test(dtype))
}

/// Names the schedules with the least idle time.
pub(crate) fn of_drawings(all: &[(String, f64)]) -> String {
    let least = all.iter().map(|(_, idle)| *idle).fold(f64::INFINITY, f64::min);
    let best = all.iter().filter(|(_, idle)| *idle <= least + 1e-9).map(|(name, _)| name.clone());
    format!("Least idle time: {}, {:.1} %.", joined(best), 100.0 * least)
}

/// Formats bytes as megabytes.
pub(crate) fn megabytes(bytes: usize) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(name: &str, devices: usize, shards: usize) -> Figures {
        Figures {
            name: name.to_owned(),
            devices,
            replicas: 1,
            has_same_bits: true,
            shards,
            epochs: 1.0,
            seconds_per_step: 1.0,
            ..Figures::default()
        }
    }

    /// One device, one device on micro-batches, and two schedules.
    fn four() -> [Figures; 4] {
        [
            way("one device", 1, 1),
            way("one device on 8 micro-batches", 1, 8),
            way("GPipe", 2, 8),
            way("1F1B", 2, 8),
        ]
    }

    fn timed(times: [f64; 4]) -> [Figures; 4] {
        let mut all = four();
        all.iter_mut().zip(times).for_each(|(it, time)| it.seconds_per_step = time);
        all
    }

    #[test]
    fn the_fastest_splits_are_named() {
        let both = "Fastest: GPipe and 1F1B, up to 2.00 times as fast as one device.";
        for (times, expected) in [
            ([1.0, 1.1, 0.7, 0.5], "Fastest: 1F1B, 2.00 times as fast as one device."),
            ([1.0, 1.1, 0.51, 0.5], both),
            ([1.0, 1.1, 1.2, 1.3], "Fastest: GPipe, no faster than one device."),
            ([1.0, 1.1, 0.99, 1.3], "Fastest: GPipe, no faster than one device."),
            // A run that was interrupted before its first step has no time.
            ([1.0, 1.1, f64::NAN, 0.5], "Fastest: 1F1B, 2.00 times as fast as one device."),
            ([f64::NAN; 4], ""),
        ] {
            assert_eq!(of_times(&timed(times), &[]), expected);
        }
        let all = timed([1.0, 1.1, 0.7, 0.5]);
        assert_eq!(of_times(&all[2..], &[]), "Fastest: 1F1B, 0.50 s per step.");
        assert_eq!(of_times(&all[..2], &[]), "");
    }

    #[test]
    fn the_idle_time_is_compared_with_the_prediction() {
        let mut all = four();
        for (idle, expected) in [
            ([0.10, 0.11], "off by 1 % of a step at most:"),
            ([0.10, 0.26], "off by 16 % of a step at most:"),
        ] {
            (all[2].idle, all[3].idle) = (Some([0.50, 0.50]), Some(idle));
            assert!(of_times(&all, &[]).contains(expected), "{all:?}");
        }
    }

    #[test]
    fn with_a_doubt_about_times_nothing_is_ranked() {
        let text = |all: &[Figures], doubts| of_times(all, &doubts_about_times(all, doubts));
        let busy = text(&timed([1.0, 1.1, 0.7, 0.5]), vec![Doubt::Busy]);
        assert_eq!(busy, Doubt::Busy.to_string());
        // Two devices that are idle for 59 % of the time do 0.82 times the work of one.
        let mut all = timed([1.56, 1.1, 1.0, 1.0]);
        all[2] = Figures { idle: Some([0.5, 0.59]), ..way("naive", 2, 1) };
        let doubt =
            Doubt::of_speed_up("naive over one device", 1.56, 2, 0.59).expect("a contradiction");
        assert_eq!(text(&all[..3], Vec::new()), doubt.to_string());
        // Small batches may be faster by themselves.
        let mut all = timed([1.0, 0.7, 0.6, 0.6]);
        all[3].idle = Some([0.1, 0.4]);
        assert!(text(&all, Vec::new()).starts_with("Fastest: GPipe and 1F1B, up to 1.67 times"));
        let slow = text(&timed([1.0, 0.7, 0.7, 0.3]), Vec::new());
        let implausible =
            "The speed-up of 1F1B over one device is 3.33, and 2 devices that are idle";
        assert!(slow.starts_with(implausible), "{slow}");
    }

    #[test]
    fn the_least_memory_is_named() {
        let mut all = four();
        for (it, bytes) in all.iter_mut().zip([36_000_000, 43_000_000, 41_900_000, 24_600_000]) {
            it.bytes = bytes;
        }
        let least = "Least memory: 1F1B, 24.6 MB on the fullest device.";
        assert_eq!(of_memory(&all), format!("{least} One device alone needs 36.0 MB."));
        assert_eq!(of_memory(&all[2..]), least);
        (all[2].error_of_bytes, all[3].error_of_bytes) = (Some(0.04), Some(0.061));
        let error = "The predicted peak of each kind is off by 6 % at most.";
        assert_eq!(of_memory(&all[2..]), format!("{least} {error}"));
        // An interrupted run has no peaks.
        (all[2].error_of_bytes, all[3].error_of_bytes) = (None, Some(f64::INFINITY));
        assert_eq!(of_memory(&all[2..]), least);
        assert_eq!(of_memory(&all[..2]), "");
    }

    #[test]
    fn equal_weights_are_told_from_rounding_and_from_mistakes() {
        let f32 = |all: &[Figures]| of_weights(all, "f32", 1e-5);
        let f64 = |all: &[Figures]| of_weights(all, "f64", 1e-10);
        let mut all = four();
        for it in &mut all[1..] {
            "other".clone_into(&mut it.hash);
            it.errors = [Some(3.3e-7), Some(0.13)];
        }
        assert_eq!(
            f32(&all),
            "GPipe and 1F1B ended with the weights of one device on 8 micro-batches, to the last bit. Errors above 0 are \
             rounding, because sums have another order. --dtype f64 tests whether rounding is the only cause."
        );
        "third".clone_into(&mut all[3].hash);
        let text = f32(&all);
        assert!(text.contains("1F1B ended with other weights than one device on 8"), "{text}");
        // Replicas without --shards, and parts of layers, have other bits, which is no mistake.
        all[3].has_same_bits = false;
        assert!(!f32(&all).contains("other weights"));
        all[3].has_same_bits = true;
        // An interrupted run has fewer epochs, and no error at the end.
        (all[3].epochs, all[3].errors[1]) = (0.5, None);
        assert!(!f32(&all).contains("1F1B"));
        all.iter_mut().for_each(|it| it.errors = [Some(7.5e-16), Some(3.8e-16)]);
        assert!(f64(&all).ends_with("because sums have another order."));
        all[2].errors[0] = Some(1.3e-3);
        assert!(f64(&all).contains("error of 1.3e-3 after step 1 is more than rounding"));
        assert!(f32(&all).contains("error of 1.3e-3 after step 1 may be rounding that moves"));
        all[2].errors[0] = Some(0.5);
        assert!(f32(&all).contains("error of 5.0e-1 after step 1 is more than rounding"));
        all.iter_mut().for_each(|it| it.errors = [Some(0.0); 2]);
        assert!(!f32(&all).contains("rounding"));
        assert_eq!(f32(&all[..1]), "");
    }

    #[test]
    fn schedules_are_compared_without_training() {
        let drawn = [("GPipe", 1.0 / 3.0), ("1F1B", 1.0 / 3.0), ("interleaved 1F1B", 0.2)];
        let drawn = drawn.map(|(name, idle)| (name.to_owned(), idle));
        assert_eq!(of_drawings(&drawn), "Least idle time: interleaved 1F1B, 20.0 %.");
        assert_eq!(of_drawings(&drawn[..2]), "Least idle time: GPipe and 1F1B, 33.3 %.");
    }
}

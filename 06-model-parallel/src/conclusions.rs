//! The conclusions from the results of all ways, in sentences.

use harness::report::{joined, number, seconds};
use harness::verdict::{Doubt, EQUAL_TIMES, Speed, ranked, rounding_test};
use itertools::Itertools as _;

/// The numbers of a way that the conclusions need.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    /// The name in sentences, such as `1F1B` or `one device on 8 micro-batches`.
    pub(crate) name: String,
    /// The number of devices along each axis: replicas, stages, and parts of each layer.
    pub(crate) mesh: [usize; 3],
    /// The number of micro-batches of a batch, on all replicas together.
    pub(crate) shards: usize,
    /// The number of epochs that were trained.
    pub(crate) epochs: f64,
    pub(crate) seconds_per_step: f64,
    /// The predicted and the measured share of the time in which the devices of a pipeline are idle.
    pub(crate) idle: Option<[f64; 2]>,
    /// The bytes of the fullest device.
    pub(crate) bytes: usize,
    /// The most bytes of activations on a device.
    pub(crate) activations: usize,
    /// The most bytes of gradients on a device.
    pub(crate) gradients: usize,
    /// The largest differences from the weights of one device, after the first step and at the end.
    pub(crate) errors: [Option<f64>; 2],
    /// The hash of the weights.
    pub(crate) hash: String,
}

impl Figures {
    fn devices(&self) -> usize {
        self.mesh.iter().product()
    }

    fn is_alone(&self) -> bool {
        self.devices() == 1
    }

    fn has_stages(&self) -> bool {
        self.mesh[1] > 1
    }
}

fn names<'a>(all: impl IntoIterator<Item = &'a Figures>) -> String {
    joined(all.into_iter().map(|it| it.name.clone()))
}

/// Adds the first split whose speed-up its idle time does not allow, if there is no other doubt.
pub(crate) fn doubts_about_times(all: &[Figures], mut doubts: Vec<Doubt>) -> Vec<Doubt> {
    if doubts.is_empty() {
        doubts.extend(all.iter().find_map(|it| implausible(all, it)));
    }
    doubts
}

/// Names the doubts about times. Without a doubt, names the fastest way and the idle time of pipelines.
pub(crate) fn of_times(all: &[Figures], doubts: &[Doubt]) -> String {
    ranked(doubts, || format!("{} {}", speed(all), idle(all)).trim_end().to_owned())
}

/// Doubts a split that is faster than its idle time allows. It is compared with one device on as many micro-batches, because
/// small batches may be faster by themselves.
fn implausible(all: &[Figures], split: &Figures) -> Option<Doubt> {
    let alone = || all.iter().filter(|it| it.is_alone());
    let alike = alone().find(|it| it.shards == split.shards).or(alone().next());
    let of = |one: Option<&Figures>, idle| {
        let (one, Figures { name, seconds_per_step, .. }) = (one?, split);
        let name = format!("{name} over {}", one.name);
        Doubt::of_speed_up(&name, one.seconds_per_step / seconds_per_step, split.devices(), idle)
    };
    let idle = split.idle.map_or(0.0, |[_, measured]| measured);
    of(alike, idle).or(of(alone().next(), 0.0)).filter(|_| !split.is_alone())
}

/// Names the fastest way, and the ways that are as fast.
fn speed(all: &[Figures]) -> String {
    let timed = all.iter().filter(|it| it.seconds_per_step.is_finite());
    let timed: Vec<&Figures> =
        timed.sorted_by(|a, b| a.seconds_per_step.total_cmp(&b.seconds_per_step)).collect();
    let Some((fastest, rest)) = timed.split_first() else {
        return "No step was timed.".to_owned();
    };
    let slower = |it: &Figures| it.seconds_per_step / fastest.seconds_per_step;
    let nearly = rest.iter().copied().filter(|it| Speed::of(slower(it)) == Speed::Equal);
    let nearly = match names(nearly) {
        names if names.is_empty() => names,
        names => format!(" Less than {:.0} % slower: {names}.", 100.0 * EQUAL_TIMES),
    };
    let (name, devices) = (&fastest.name, fastest.devices());
    let ratio = all.iter().find(|it| it.is_alone()).map(slower);
    match ratio.map(|ratio| (ratio, Speed::of(ratio))) {
        _ if all.len() == 1 => "One run alone: there is no other time to compare.".to_owned(),
        _ if all.iter().all(Figures::is_alone) => format!("Fastest: {name}."),
        _ if fastest.is_alone() => {
            format!("Fastest: {name}. No split of the model is faster here.")
        }
        None => {
            let time = seconds(fastest.seconds_per_step);
            format!("Fastest: {name}, with {time} s per step.{nearly}")
        }
        Some((ratio, Speed::Faster)) => format!(
            "Fastest on {devices} devices: {name}, {ratio:.2} times as fast as one device.{nearly}"
        ),
        Some(_) => {
            format!("Fastest: {name}, but no split of the model is clearly faster than one device.")
        }
    }
}

/// Compares the measured idle time of pipelines with each other and with the prediction. Empty without pipelines.
fn idle(all: &[Figures]) -> String {
    let points = |share: f64| (100.0 * share).round();
    let of_way = |it: &Figures| Some((it.idle?.map(points), it.name.clone()));
    let all = all.iter().filter_map(of_way).sorted_by(|a, b| a.0[1].total_cmp(&b.0[1]));
    let all: Vec<([f64; 2], String)> = all.collect();
    let (Some(([_, least], first)), Some(([_, most], last))) = (all.first(), all.last()) else {
        return String::new();
    };
    let measured = match all.len() {
        1 => format!("Under {first} the devices are idle for {least} % of the time."),
        _ if least == most => {
            format!("The devices are idle for {least} % of the time under every schedule.")
        }
        _ => format!(
            "Devices are idle least under {first} ({least} % of the time) and most under {last} ({most} %)."
        ),
    };
    let off = all.iter().map(|([predicted, measured], _)| (measured - predicted).abs());
    match off.fold(0.0, f64::max) {
        ..=5.0 => format!("{measured} The prediction is within 5 points."),
        off => format!(
            "{measured} The prediction is up to {off} points off: it leaves out messages and all other work of the machine."
        ),
    }
}

/// Names the split whose fullest device holds least, the splits that need more than one device alone, and what micro-batches
/// change.
pub(crate) fn of_memory(all: &[Figures]) -> String {
    let split = || all.iter().filter(|it| !it.is_alone());
    let (least, one) = (split().min_by_key(|it| it.bytes), all.iter().find(|it| it.is_alone()));
    let of_least = |it: &Figures| {
        let (name, bytes) = (&it.name, megabytes(it.bytes));
        format!("Least memory per device: {name}, {bytes} MB on the fullest device.")
    };
    let mut sentences = Vec::new();
    match (least, one) {
        (Some(least), Some(one)) if least.bytes < one.bytes => {
            let bytes = megabytes(one.bytes);
            sentences.extend([of_least(least), format!("One device alone needs {bytes} MB.")]);
            let more = split().filter(|it| it.bytes > one.bytes);
            let more = joined(more.map(|it| format!("{} ({} MB)", it.name, megabytes(it.bytes))));
            if !more.is_empty() {
                sentences.push(format!("Each device needs even more under {more}."));
            }
        }
        (Some(least), Some(one)) => sentences.push(format!(
            "No split saves memory here: the fullest device needs at least {} MB ({}), and one device alone {} MB.",
            megabytes(least.bytes),
            least.name,
            megabytes(one.bytes)
        )),
        (Some(least), None) => sentences.push(of_least(least)),
        (None, Some(one)) => sentences
            .push(format!("The whole model on one device needs {} MB.", megabytes(one.bytes))),
        (None, None) => {}
    }
    let pipelines: Vec<_> = all.iter().filter(|it| it.has_stages() && it.shards > 1).collect();
    if pipelines.len() > 1 {
        let each = |it: &Figures| format!("{} MB under {}", megabytes(it.activations), it.name);
        let each = joined(pipelines.into_iter().map(each));
        sentences.push(format!("The most activations of a device are {each}."));
    }
    let parts = all.iter().find(|it| it.is_alone() && it.shards > 1);
    if let (Some(one), Some(parts)) = (one.filter(|it| it.shards == 1), parts) {
        sentences.push(format!(
            "On one device, {} micro-batches need {} MB of activations in place of {} MB, and {} MB of gradients in place of \
             {} MB: a tree adds up gradients in a fixed order, and keeps several sums.",
            parts.shards,
            megabytes(parts.activations),
            megabytes(one.activations),
            megabytes(parts.gradients),
            megabytes(one.gradients),
        ));
    }
    sentences.join(" ")
}

/// Names the ways that ended with the bits of one device, and judges the errors of the others by the largest difference that
/// rounding explains.
pub(crate) fn of_weights(all: &[Figures], dtype: &str, of_rounding: f64) -> String {
    let mut sentences = Vec::new();
    for one in all.iter().filter(|it| it.is_alone()) {
        // Sums over parts of a layer round in another way.
        let comparable = |it: &&Figures| {
            it.has_stages() && (it.shards, it.mesh[2], it.epochs) == (one.shards, 1, one.epochs)
        };
        let ways = all.iter().filter(comparable);
        let (equal, others): (Vec<_>, Vec<_>) = ways.partition(|it| it.hash == one.hash);
        let how =
            [("the weights of", equal, ", to the last bit"), ("other weights than", others, "")];
        for (what, ways, end) in how.into_iter().filter(|(_, ways, _)| !ways.is_empty()) {
            sentences.push(format!("{} ended with {what} {}{end}.", names(ways), one.name));
        }
    }
    sentences.extend(rounding(all, dtype, of_rounding));
    sentences.join(" ")
}

/// Judges the largest errors. `None` where all are 0 or unknown.
fn rounding(all: &[Figures], dtype: &str, of_rounding: f64) -> Option<String> {
    /// In f32, rounding can move the input of a relu across 0, which changes the gradient of one sample.
    const OF_RELU: f64 = 1e-2;
    let digits = |error: f64| number(format!("{error:.1e}").parse().unwrap_or(error));
    // The largest error, and its text with the names of the ways that have the same number in the table.
    let largest = |at: usize| {
        let errors = all.iter().filter_map(|it| it.errors[at]).filter(|it| it.is_finite());
        let largest = errors.reduce(f64::max)?;
        let same = |it: &&Figures| it.errors[at].is_some_and(|it| digits(it) == digits(largest));
        let same: Vec<&Figures> = all.iter().filter(same).collect();
        let names = match same.len() {
            count @ 3.. => format!("{} and {} others", same[0].name, count - 1),
            _ => names(same),
        };
        Some((largest, format!("{} ({names})", digits(largest))))
    };
    let ((first, of_first), last) = (largest(0)?, largest(1));
    if first == 0.0 && last.as_ref().is_none_or(|(last, _)| *last == 0.0) {
        return None;
    }
    let is_explained = first <= of_rounding || dtype != "f64" && first <= OF_RELU;
    let first_is = match is_explained {
        true if first <= of_rounding => format!(
            "Errors above 0 are rounding, because sums have another order: at most {of_first} after step 1."
        ),
        true => format!(
            "After step 1 the largest error is {of_first}. A possible cause is rounding that moves the input of a relu across 0."
        ),
        false => format!(
            "After step 1 the largest error is {of_first}, which is more than rounding usually causes."
        ),
    };
    let last_is = match last {
        Some((last, text)) if last > of_rounding && is_explained => {
            format!(" Training amplifies rounding: at the end the largest error is {text}.")
        }
        Some((_, text)) => format!(" At the end the largest error is {text}."),
        None => String::new(),
    };
    Some(format!("{first_is}{last_is}{}", rounding_test(dtype)))
}

/// A schedule in a drawing.
#[derive(Clone, Debug)]
pub(crate) struct Drawn {
    pub(crate) name: String,
    /// The share of the time in which the devices are idle.
    pub(crate) idle: f64,
    /// The largest number of micro-batches that a stage keeps. A chunk's micro-batch is a part of one.
    pub(crate) kept: f64,
}

/// Names the schedules with the least idle time, and those whose stages keep the fewest micro-batches.
pub(crate) fn of_drawings(all: &[Drawn]) -> String {
    let best = |of: fn(&Drawn) -> f64| {
        let least = all.iter().map(of).fold(f64::INFINITY, f64::min);
        let nearly = all.iter().filter(|it| of(it) <= least + 1e-9);
        (least, joined(nearly.map(|it| it.name.clone())))
    };
    let ((idle, idlest), (kept, keepers)) = (best(|it| it.idle), best(|it| it.kept));
    let all_keep = all.iter().all(|it| it.kept <= kept + 1e-9);
    let (idle, kept) = (format!("{:.1} %", 100.0 * idle), number((10.0 * kept).round() / 10.0));
    match all {
        [only] => format!("Under {} the devices are idle for {idle} of the time.", only.name),
        _ if all_keep => format!(
            "Least idle time: {idlest}, {idle}. The fullest stage keeps {kept} micro-batches under each schedule."
        ),
        _ => format!(
            "Least idle time: {idlest}, {idle}. The fullest stage keeps fewest micro-batches under {keepers}: {kept}."
        ),
    }
}

/// Formats bytes as megabytes.
pub(crate) fn megabytes(bytes: usize) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(name: &str, mesh: [usize; 3], shards: usize) -> Figures {
        let name = name.to_owned();
        Figures { name, mesh, shards, epochs: 1.0, seconds_per_step: 1.0, ..Figures::default() }
    }

    /// One device, one device on micro-batches, and two schedules.
    fn four() -> [Figures; 4] {
        let stages = [1, 2, 1];
        [
            way("one device", [1; 3], 1),
            way("one device on 8 micro-batches", [1; 3], 8),
            way("GPipe", stages, 8),
            way("1F1B", stages, 8),
        ]
    }

    fn timed(times: [f64; 4]) -> [Figures; 4] {
        let mut all = four();
        all.iter_mut().zip(times).for_each(|(it, time)| it.seconds_per_step = time);
        all
    }

    #[test]
    fn the_fastest_way_is_named() {
        let text = |times| of_times(&timed(times), &[]);
        assert_eq!(
            text([1.0, 1.1, 0.7, 0.5]),
            "Fastest on 2 devices: 1F1B, 2.00 times as fast as one device."
        );
        assert!(
            text([1.0, 1.1, 0.51, 0.5])
                .contains("1F1B, 2.00 times as fast as one device. Less than 5 % slower: GPipe.")
        );
        assert_eq!(
            text([1.0, 1.1, 1.2, 1.3]),
            "Fastest: one device. No split of the model is faster here."
        );
        assert!(
            text([1.0, 1.1, 0.99, 1.3])
                .contains("GPipe, but no split of the model is clearly faster")
        );
        // A run that was interrupted before its first step has no time.
        assert!(text([1.0, 1.1, f64::NAN, 0.5]).contains("1F1B, 2.00 times"));
        assert_eq!(text([f64::NAN; 4]), "No step was timed.");
    }

    #[test]
    fn without_one_device_or_without_a_split_there_is_no_ratio() {
        let all = timed([1.0, 1.1, 0.7, 0.5]);
        let text = |some: &[Figures]| of_times(some, &[]);
        assert_eq!(text(&all[2..]), "Fastest: 1F1B, with 0.50 s per step.");
        assert_eq!(text(&all[..2]), "Fastest: one device.");
        assert!(text(&all[..1]).starts_with("One run alone"));
        assert!(text(&all[3..]).starts_with("One run alone"));
    }

    #[test]
    fn with_a_doubt_about_times_nothing_is_ranked() {
        let text = |all: &[Figures], doubts| of_times(all, &doubts_about_times(all, doubts));
        let busy = text(&timed([1.0, 1.1, 0.7, 0.5]), vec![Doubt::Busy]);
        assert_eq!(busy, Doubt::Busy.to_string());
        // Two devices that are idle for 59 % of the time do 0.82 times the work of one.
        let mut all = timed([1.56, 1.1, 1.0, 1.0]);
        all[2] = Figures { idle: Some([0.5, 0.59]), ..way("naive", [1, 2, 1], 1) };
        let doubt =
            Doubt::of_speed_up("naive over one device", 1.56, 2, 0.59).expect("a contradiction");
        assert_eq!(text(&all[..3], Vec::new()), doubt.to_string());
        // Small batches may be faster by themselves.
        let mut all = timed([1.0, 0.7, 0.6, 0.6]);
        all[3].idle = Some([0.1, 0.4]);
        assert!(text(&all, Vec::new()).starts_with("Fastest on 2 devices"));
        let slow = text(&timed([1.0, 0.7, 0.7, 0.3]), Vec::new());
        assert!(
            slow.starts_with(
                "The speed-up of 1F1B over one device is 3.33, and 2 devices that are idle"
            ),
            "{slow}"
        );
    }

    #[test]
    fn idle_time_is_compared_with_other_schedules_and_with_the_prediction() {
        let mut all = four();
        (all[2].idle, all[3].idle) = (Some([0.50, 0.504]), Some([0.10, 0.11]));
        assert_eq!(
            idle(&all),
            "Devices are idle least under 1F1B (11 % of the time) and most under GPipe (50 %). The prediction is within 5 \
             points."
        );
        all[2].idle = Some([0.10, 0.26]);
        assert!(idle(&all).contains("up to 16 points off"));
        all[2].idle = all[3].idle;
        assert!(idle(&all).starts_with("The devices are idle for 11 % of the time under"));
        all[2].idle = None;
        assert!(idle(&all).starts_with("Under 1F1B the devices are idle for 11 %"));
        assert_eq!(idle(&all[..2]), "");
    }

    #[test]
    fn the_least_memory_is_named() {
        let mut all = four();
        for (it, bytes) in all.iter_mut().zip([36_000_000, 43_000_000, 31_000_000, 24_600_000]) {
            it.bytes = bytes;
        }
        for (it, bytes) in all.iter_mut().zip([15_000_000, 2_000_000, 9_500_000, 2_400_000]) {
            it.activations = bytes;
        }
        (all[0].gradients, all[1].gradients) = (6_900_000, 27_500_000);
        let text = of_memory(&all);
        let least = "Least memory per device: 1F1B, 24.6 MB on the fullest device. One device alone needs 36.0 MB.";
        assert!(text.starts_with(least), "{text}");
        let rest = "The most activations of a device are 9.5 MB under GPipe and 2.4 MB under 1F1B. On one device, 8 \
                    micro-batches need 2.0 MB of activations in place of 15.0 MB, and 27.5 MB of gradients in place of 6.9 MB: a \
                    tree adds up gradients in a fixed order, and keeps several sums.";
        assert!(text.ends_with(rest), "{text}");
        assert!(!text.contains("even more"), "{text}");
        all[2].bytes = 41_900_000;
        assert!(
            of_memory(&all).contains("36.0 MB. Each device needs even more under GPipe (41.9 MB).")
        );
        assert!(of_memory(&all[2..]).starts_with("Least memory per device: 1F1B, 24.6 MB"));
        assert!(of_memory(&all[3..]).ends_with("1F1B, 24.6 MB on the fullest device."));
        assert_eq!(of_memory(&all[..1]), "The whole model on one device needs 36.0 MB.");
        (all[2].bytes, all[3].bytes) = (37_000_000, 36_000_000);
        assert!(of_memory(&all).starts_with("No split saves memory here"), "{}", of_memory(&all));
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
        let text = f32(&all);
        assert_eq!(
            text,
            "GPipe and 1F1B ended with the weights of one device on 8 micro-batches, to the last bit. Errors above 0 are \
             rounding, because sums have another order: at most 3.3e-7 (one device on 8 micro-batches and 2 others) after \
             step 1. Training amplifies rounding: at the end the largest error is 0.13 (one device on 8 micro-batches and 2 \
             others). --dtype f64 tests whether rounding is the only cause."
        );
        "third".clone_into(&mut all[3].hash);
        let text = f32(&all);
        assert!(text.contains("1F1B ended with other weights than one device on 8"), "{text}");
        // An interrupted run has fewer epochs, and no error at the end.
        (all[3].epochs, all[3].errors[1]) = (0.5, None);
        assert!(!f32(&all).contains("1F1B"));
        all.iter_mut().for_each(|it| it.errors = [Some(7.5e-16), Some(3.8e-16)]);
        let text = f64(&all);
        let end = "others) after step 1. At the end the largest error is 3.8e-16 (one device and 3 others).";
        assert!(text.ends_with(end), "{text}");
        all[2].errors[0] = Some(1.3e-3);
        assert!(f64(&all).contains("is 0.0013 (GPipe), which is more than rounding"));
        assert!(f32(&all).contains("is 0.0013 (GPipe). A possible cause is rounding that moves"));
        all[2].errors[0] = Some(0.5);
        assert!(f32(&all).contains("is 0.5 (GPipe), which is more than rounding"));
        all.iter_mut().for_each(|it| it.errors = [Some(0.0); 2]);
        assert!(!f32(&all).contains("rounding"));
        assert_eq!(f32(&all[..1]), "");
    }

    #[test]
    fn schedules_are_compared_without_training() {
        let drawn = |name: &str, idle, kept| Drawn { name: name.to_owned(), idle, kept };
        let all = [
            drawn("GPipe", 1.0 / 3.0, 4.0),
            drawn("1F1B", 1.0 / 3.0, 2.0),
            drawn("interleaved 1F1B (2 chunks)", 0.2, 2.5),
        ];
        assert_eq!(
            of_drawings(&all),
            "Least idle time: interleaved 1F1B (2 chunks), 20.0 %. The fullest stage keeps fewest micro-batches under 1F1B: 2."
        );
        let equal = of_drawings(&[all[0].clone(), all[0].clone()]);
        assert!(
            equal.ends_with("The fullest stage keeps 4 micro-batches under each schedule."),
            "{equal}"
        );
        assert!(of_drawings(&all[..2]).starts_with("Least idle time: GPipe and 1F1B, 33.3 %."));
        assert_eq!(
            of_drawings(&all[..1]),
            "Under GPipe the devices are idle for 33.3 % of the time."
        );
    }
}

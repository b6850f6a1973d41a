//! The conclusions from the results of all ways, in sentences.

use candle_core::DType;
use harness::report::{joined, number, seconds};
use itertools::Itertools as _;

/// A faster way counts as faster from this ratio on.
const FASTER: f64 = 1.03;

/// A split that is so much faster than its number of devices is compared with a run that was disturbed.
const PLAUSIBLE: f64 = 1.25;

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

/// The circumstances in which times say little.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Doubts {
    /// The devices shared cores or a GPU.
    pub(crate) shared: bool,
    /// Other programs used the cores.
    pub(crate) busy: bool,
    /// A run took less than half a second.
    pub(crate) short: bool,
    /// Ctrl-C ended a run.
    pub(crate) interrupted: bool,
}

/// Names the fastest way, the idle time of pipelines, and the doubts about all times.
pub(crate) fn of_times(all: &[Figures], doubts: Doubts) -> String {
    let mut sentences = vec![speed(all)];
    sentences.extend(idle(all));
    let reasons = [
        (
            doubts.shared,
            "The devices share cores or a GPU, so the times show overhead, not speed-up.",
        ),
        (
            doubts.busy,
            "Other programs used the cores, so the times are not reliable: repeat the run on a quiet machine.",
        ),
        (doubts.short, "Runs below half a second are too short for reliable times."),
        (doubts.interrupted, "A run was interrupted, so its times are of fewer steps."),
    ];
    sentences.extend(reasons.iter().filter(|it| it.0).map(|it| it.1.to_owned()));
    sentences.join(" ")
}

fn speed(all: &[Figures]) -> String {
    let timed = || all.iter().filter(|it| it.seconds_per_step.is_finite());
    let by_time = |a: &&Figures, b: &&Figures| a.seconds_per_step.total_cmp(&b.seconds_per_step);
    let Some(fastest) = timed().min_by(by_time) else {
        return "No step was timed.".to_owned();
    };
    if all.len() == 1 {
        return "One run alone: there is no other time to compare.".to_owned();
    }
    if fastest.is_alone() {
        return match all.iter().all(Figures::is_alone) {
            true => format!("Fastest: {}.", fastest.name),
            false => format!("Fastest: {}. No split of the model is faster here.", fastest.name),
        };
    }
    let nearly = |it: &&Figures| it.seconds_per_step < FASTER * fastest.seconds_per_step;
    let nearly =
        joined(timed().filter(nearly).sorted_by(by_time).skip(1).map(|it| it.name.clone()));
    let nearly = match nearly.is_empty() {
        true => String::new(),
        false => format!(" Less than {:.0} % slower: {nearly}.", 100.0 * (FASTER - 1.0)),
    };
    let name = &fastest.name;
    match timed().find(|it| it.is_alone()) {
        None => {
            format!(
                "Fastest: {name}, with {} s per step.{nearly}",
                seconds(fastest.seconds_per_step)
            )
        }
        Some(one) => match one.seconds_per_step / fastest.seconds_per_step {
            ratio if ratio >= FASTER => format!(
                "Fastest on {} devices: {name}, {ratio:.2} times as fast as one device.{nearly}{}",
                fastest.devices(),
                match ratio > PLAUSIBLE * fastest.devices() as f64 {
                    true =>
                        " No split explains so much: the run on one device was slow for another reason.",
                    false => "",
                }
            ),
            _ => format!(
                "Fastest: {name}, but no split of the model is clearly faster than one device."
            ),
        },
    }
}

/// Compares the measured idle time of pipelines with each other and with the prediction. `None` without pipelines.
fn idle(all: &[Figures]) -> Option<String> {
    let points = |share: f64| (100.0 * share).round();
    let of_way = |it: &Figures| Some((it.idle?.map(points), it.name.clone()));
    let mut all: Vec<([f64; 2], String)> = all.iter().filter_map(of_way).collect();
    all.sort_by(|a, b| a.0[1].total_cmp(&b.0[1]));
    let (([_, least], first), ([_, most], last)) = (all.first()?, all.last()?);
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
    let off = off.fold(0.0, f64::max);
    let prediction = match off {
        off if off <= 5.0 => "The prediction is within 5 points.".to_owned(),
        off => format!(
            "The prediction is up to {off} points off: it leaves out messages and all other work of the machine."
        ),
    };
    Some(format!("{measured} {prediction}"))
}

/// Names the split whose fullest device holds least, the splits that need more than one device alone, and what micro-batches
/// change.
pub(crate) fn of_memory(all: &[Figures]) -> String {
    let split = || all.iter().filter(|it| !it.is_alone());
    let (least, one) = (split().min_by_key(|it| it.bytes), all.iter().find(|it| it.is_alone()));
    let mut sentences = Vec::new();
    match (least, one) {
        (Some(least), Some(one)) if least.bytes < one.bytes => {
            sentences.push(format!(
                "Least memory per device: {}, {} MB on the fullest device. One device alone needs {} MB.",
                least.name,
                megabytes(least.bytes),
                megabytes(one.bytes)
            ));
            let more = split().filter(|it| it.bytes > one.bytes);
            let more = more.map(|it| format!("{} ({} MB)", it.name, megabytes(it.bytes)));
            let more = joined(more);
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
        (Some(least), None) => sentences.push(format!(
            "Least memory per device: {}, {} MB on the fullest device.",
            least.name,
            megabytes(least.bytes)
        )),
        (None, Some(one)) => {
            sentences.push(format!("The whole model on one device needs {} MB.", megabytes(one.bytes)));
        }
        (None, None) => {}
    }
    let pipelines = || all.iter().filter(|it| it.has_stages() && it.shards > 1);
    if pipelines().count() > 1 {
        let each = |it: &Figures| format!("{} MB under {}", megabytes(it.activations), it.name);
        let each = joined(pipelines().map(each));
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

/// Names the ways that ended with the bits of one device, and judges the errors of the others.
pub(crate) fn of_weights(all: &[Figures], dtype: DType) -> String {
    let mut sentences = Vec::new();
    for one in all.iter().filter(|it| it.is_alone()) {
        // Sums over parts of a layer round in another way.
        let comparable = |it: &&Figures| {
            it.has_stages() && (it.shards, it.mesh[2], it.epochs) == (one.shards, 1, one.epochs)
        };
        for (equal, text) in [(true, "the weights of"), (false, "other weights than")] {
            let ways = all.iter().filter(comparable).filter(|it| (it.hash == one.hash) == equal);
            let names = joined(ways.map(|it| it.name.clone()));
            let end = if equal { ", to the last bit" } else { "" };
            if !names.is_empty() {
                sentences.push(format!("{names} ended with {text} {}{end}.", one.name));
            }
        }
    }
    sentences.extend(rounding(all, dtype));
    sentences.join(" ")
}

/// Judges the largest errors. `None` where all are 0 or unknown.
///
/// The limits are the course's rules for one step. In f32, rounding can also move the input of a relu across 0, which changes
/// the gradient of one sample.
fn rounding(all: &[Figures], dtype: DType) -> Option<String> {
    /// Training amplifies rounding if errors grow by this factor.
    const GROWTH: f64 = 10.0;
    let largest = |at: usize| {
        let errors = all.iter().filter_map(|it| it.errors[at]).filter(|it| it.is_finite());
        errors.reduce(f64::max)
    };
    let (first, last) = (largest(0)?, largest(1));
    if first == 0.0 && last.unwrap_or(0.0) == 0.0 {
        return None;
    }
    let digits = |error: f64| number(format!("{error:.1e}").parse().unwrap_or(error));
    // A number with the names of the ways that have the same number in the table.
    let short = |error: f64, at: usize| {
        let same = |it: &&Figures| it.errors[at].is_some_and(|it| digits(it) == digits(error));
        let names = || all.iter().filter(same).map(|it| it.name.clone());
        let names = match names().count() {
            count @ 3.. => {
                format!("{} and {} others", names().next().unwrap_or_default(), count - 1)
            }
            _ => joined(names()),
        };
        format!("{} ({names})", digits(error))
    };
    let (of_rounding, of_relu) = if dtype == DType::F64 { (1e-8, 1e-8) } else { (1e-5, 1e-2) };
    let first_is = match first {
        first if first <= of_rounding => format!(
            "Errors above 0 are rounding, because sums have another order: at most {} after step 1.",
            short(first, 0)
        ),
        first if first <= of_relu => format!(
            "After step 1 the largest error is {}. A possible cause is rounding that moves the input of a relu across 0.",
            short(first, 0)
        ),
        first => format!(
            "After step 1 the largest error is {}, which is more than rounding usually causes.",
            short(first, 0)
        ),
    };
    let last_is = match last {
        Some(last) if last > GROWTH * first && first <= of_relu => {
            format!(
                " Training amplifies rounding: at the end the largest error is {}.",
                short(last, 1)
            )
        }
        Some(last) => format!(" At the end the largest error is {}.", short(last, 1)),
        None => String::new(),
    };
    let proof = match dtype {
        DType::F64 => "",
        _ => " --dtype f64 tests whether rounding is the only cause.",
    };
    Some(format!("{first_is}{last_is}{proof}"))
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
        let text = |times| of_times(&timed(times), Doubts::default());
        assert_eq!(
            text([1.0, 1.1, 0.7, 0.5]),
            "Fastest on 2 devices: 1F1B, 2.00 times as fast as one device."
        );
        assert!(text([1.0, 1.1, 0.7, 0.3]).ends_with("was slow for another reason."));
        assert!(
            text([1.0, 1.1, 0.51, 0.5])
                .contains("1F1B, 2.00 times as fast as one device. Less than 3 % slower: GPipe.")
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
        let text = |some: &[Figures]| of_times(some, Doubts::default());
        assert_eq!(text(&all[2..]), "Fastest: 1F1B, with 0.50 s per step.");
        assert_eq!(text(&all[..2]), "Fastest: one device.");
        assert!(text(&all[..1]).starts_with("One run alone"));
        assert!(text(&all[3..]).starts_with("One run alone"));
    }

    #[test]
    fn doubts_about_times_are_named() {
        let text =
            of_times(&four(), Doubts { shared: true, busy: true, short: true, interrupted: true });
        for doubt in
            ["overhead, not speed-up", "Other programs used", "too short", "was interrupted"]
        {
            assert!(text.contains(doubt), "{text}");
        }
    }

    #[test]
    fn idle_time_is_compared_with_other_schedules_and_with_the_prediction() {
        let mut all = four();
        (all[2].idle, all[3].idle) = (Some([0.50, 0.504]), Some([0.10, 0.11]));
        assert_eq!(
            idle(&all).unwrap(),
            "Devices are idle least under 1F1B (11 % of the time) and most under GPipe (50 %). The prediction is within 5 \
             points."
        );
        all[2].idle = Some([0.10, 0.26]);
        assert!(idle(&all).unwrap().contains("up to 16 points off"));
        all[2].idle = all[3].idle;
        assert!(idle(&all).unwrap().starts_with("The devices are idle for 11 % of the time under"));
        all[2].idle = None;
        assert!(idle(&all).unwrap().starts_with("Under 1F1B the devices are idle for 11 %"));
        assert_eq!(idle(&all[..2]), None);
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
        let mut all = four();
        for it in &mut all[1..] {
            "other".clone_into(&mut it.hash);
            it.errors = [Some(3.3e-7), Some(0.13)];
        }
        let text = of_weights(&all, DType::F32);
        assert_eq!(
            text,
            "GPipe and 1F1B ended with the weights of one device on 8 micro-batches, to the last bit. Errors above 0 are \
             rounding, because sums have another order: at most 3.3e-7 (one device on 8 micro-batches and 2 others) after \
             step 1. Training amplifies rounding: at the end the largest error is 0.13 (one device on 8 micro-batches and 2 \
             others). --dtype f64 tests whether rounding is the only cause."
        );
        "third".clone_into(&mut all[3].hash);
        let text = of_weights(&all, DType::F32);
        assert!(text.contains("1F1B ended with other weights than one device on 8"), "{text}");
        // An interrupted run has fewer epochs, and no error at the end.
        (all[3].epochs, all[3].errors[1]) = (0.5, None);
        assert!(!of_weights(&all, DType::F32).contains("1F1B"));
        all.iter_mut().for_each(|it| it.errors = [Some(7.5e-16), Some(3.8e-16)]);
        let text = of_weights(&all, DType::F64);
        let end = "others) after step 1. At the end the largest error is 3.8e-16 (one device and 3 others).";
        assert!(text.ends_with(end), "{text}");
        all[2].errors[0] = Some(1.3e-3);
        assert!(
            of_weights(&all, DType::F64).contains("is 0.0013 (GPipe), which is more than rounding")
        );
        assert!(
            of_weights(&all, DType::F32)
                .contains("is 0.0013 (GPipe). A possible cause is rounding that moves")
        );
        all[2].errors[0] = Some(0.5);
        assert!(
            of_weights(&all, DType::F32).contains("is 0.5 (GPipe), which is more than rounding")
        );
        all.iter_mut().for_each(|it| it.errors = [Some(0.0); 2]);
        assert!(!of_weights(&all, DType::F32).contains("rounding"));
        assert_eq!(of_weights(&all[..1], DType::F32), "");
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

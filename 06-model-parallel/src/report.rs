//! The results of all ways: tables, each with its conclusion in sentences, and files.

use std::iter::repeat;

use concise_wrapper::replicas::verdict;
use harness::records::Unit;
use harness::report::{Table, joined, seconds};
use harness::verdict::{Doubt, Speed, ranked, rounding, rounding_test};
use itertools::Itertools as _;
use model_parallel::Timeline;
use model_parallel::bytes::megabytes;
use model_parallel::runs::{
    self, BYTES, Block, cells_of_bytes, error_of_peaks, largest_error, table,
};
use model_parallel::simulate::Held;

use crate::plan::{Prepared, range};

/// The results of a way.
type Outcome<'a> = runs::Outcome<'a, ()>;

/// The doubts about the times, and tables of the results with a conclusion each.
pub(crate) fn conclude(
    all: &[Outcome<'_>],
    Prepared { flags, training, .. }: &Prepared,
) -> (Vec<Doubt>, Vec<Block>) {
    let doubts = doubts_about(all);
    let of_sums = (training.several.is_of_slices(), flags.shards.is_some());
    let title = "Weights: the largest difference from the weights of one device (error)";
    let weights = all.iter().any(|it| it.errors[0].is_some());
    let weights = weights.then(|| (Some((title, errors(all))), of_weights(all, of_sums)));
    let replicas = all.iter().filter(|it| it.trained.replicas.len() > 1);
    let mut replicas =
        replicas.map(|it| format!("{}: {}.", it.run.name, verdict(&it.trained.replicas)));
    let time = ("Time of a step, and the devices' idle time (bubble)", times(all, &doubts));
    let held = ("Memory of each device, and what a stage sends in a step, in MB", memory(all));
    let blocks = [
        (None, replicas.join("\n")),
        (Some(time), of_times(all, &doubts)),
        (Some(held), of_memory(all)),
    ];
    (doubts, weights.into_iter().chain(blocks).collect())
}

/// The cell of a column that the table may not have. A dash stands in for a missing number.
fn cell(has_column: bool, number: Option<String>) -> String {
    let text = number.unwrap_or_else(|| "–".to_owned());
    if has_column { text } else { String::new() }
}

/// The ways of one device, which come first, and the ways of several devices.
fn alone_and_split<'a>(all: &'a [Outcome<'a>]) -> (&'a [Outcome<'a>], &'a [Outcome<'a>]) {
    all.split_at(all.partition_point(|it| it.run.is_alone()))
}

fn names<'a>(all: impl IntoIterator<Item = &'a Outcome<'a>>) -> String {
    joined(all.into_iter().map(|it| it.run.said()))
}

/// The differences from one device.
fn errors(outcomes: &[Outcome<'_>]) -> Table {
    let error = |error: f64| if error == 0.0 { "0".to_owned() } else { format!("{error:.1e}") };
    let row = |Outcome { run, errors, .. }: &Outcome<'_>| {
        let [first, last] = errors.map(|it| cell(true, it.map(error)));
        vec![run.label.clone(), run.shards().to_string(), first, last]
    };
    let columns = [("micro-\nbatches", 1), ("error\nafter 1 step", 0), ("error\nat the end", 0)];
    table(&columns, outcomes.iter().map(row))
}

/// Names the ways that ended with the bits of one device, and judges the errors of the others by the largest difference that
/// rounding explains, on slices of the CPU or on GPUs. Sums over parts of a layer, and over replicas that do not add by shards,
/// round in another way than one device.
fn of_weights(all: &[Outcome<'_>], (on_slices, by_shards): (bool, bool)) -> String {
    let has_same_bits = |it: &Outcome<'_>| {
        let mesh = it.run.mesh;
        mesh.tensor == 1 && (mesh.data == 1 || by_shards)
    };
    let ((alone, splits), mut sentences) = (alone_and_split(all), Vec::new());
    for one in alone {
        let key = |it: &Outcome<'_>| (it.run.shards(), it.summary.epochs_trained);
        let alike = splits.iter().filter(|it| has_same_bits(it) && key(it) == key(one));
        let is_equal = |it: &&Outcome<'_>| it.summary.weights_hash == one.summary.weights_hash;
        let (equal, others): (Vec<_>, Vec<_>) = alike.partition(is_equal);
        let how =
            [(equal, "the weights of", ", to the last bit"), (others, "other weights than", "")];
        for (ways, what, end) in how.into_iter().filter(|(ways, ..)| !ways.is_empty()) {
            sentences.push(format!("{} ended with {what} {}{end}.", names(ways), one.run.said()));
        }
    }
    let dtype = all.first().map_or("", |it| &it.summary.dtype);
    // AdamW, which trains on text, divides by the size of a gradient: in f32, errors of small gradients grow.
    let grows = dtype != "f64" && all.iter().any(|it| it.summary.unit == Unit::Tokens);
    let of_rounding = if grows { 1e-3 } else { rounding(dtype, on_slices) };
    sentences.extend(of_errors(all, dtype, of_rounding));
    sentences.join(" ")
}

/// Judges the largest error after step 1. `None` where all errors are 0 or unknown.
fn of_errors(all: &[Outcome<'_>], dtype: &str, of_rounding: f64) -> Option<String> {
    /// In f32, rounding can move the input of a relu across 0, which changes the gradient of one sample.
    const OF_RELU: f64 = 1e-2;
    let (first, last) = (largest_error(all, 0)?, largest_error(all, 1).unwrap_or(0.0));
    let judged = match first {
        0.0 if last == 0.0 => return None,
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

/// The doubts about the times. If there is no other doubt, the first split whose speed-up its idle time does not allow. A split
/// is compared with one device on as many micro-batches, because small batches may be faster by themselves.
fn doubts_about(all: &[Outcome<'_>]) -> Vec<Doubt> {
    let (alone, splits) = alone_and_split(all);
    let implausible = |split: &Outcome<'_>| {
        let doubt = |one: &Outcome<'_>, idle| {
            let name = format!("{} over {}", split.run.said(), one.run.said());
            let ratio = one.seconds_per_step / split.seconds_per_step;
            Doubt::of_speed_up(&name, ratio, split.run.mesh.devices(), idle)
        };
        let alike = alone.iter().find(|it| it.run.shards() == split.run.shards());
        let idle = idle(split).map_or(0.0, |[_, measured]| measured);
        let first = alone.first()?;
        doubt(alike.unwrap_or(first), idle).or_else(|| doubt(first, 0.0))
    };
    let mut doubts = Doubt::about(&all.iter().map(|it| &it.summary).collect_vec());
    if doubts.is_empty() {
        doubts.extend(splits.iter().find_map(implausible));
    }
    doubts
}

/// The predicted and the measured share of the time in which the devices of a pipeline are idle.
fn idle(it: &Outcome<'_>) -> Option<[f64; 2]> {
    let steps = it.steps.as_ref().filter(|_| it.run.mesh.pipeline > 1)?;
    Some(steps.each_ref().map(Timeline::bubble))
}

/// The time of a step, and the idle time of pipelines. With doubts about the times, the table has no speed-ups.
fn times(outcomes: &[Outcome<'_>], doubts: &[Doubt]) -> Table {
    let stages = outcomes.iter().any(|it| it.run.mesh.pipeline > 1);
    let one = alone_and_split(outcomes).0.first();
    let row = |it: &Outcome<'_>| {
        let ratio = one.map(|one| one.seconds_per_step / it.seconds_per_step);
        let idle = idle(it).map_or([None; 2], |both| both.map(Some));
        let idle = idle.map(|it| cell(stages, it.map(|share| format!("{:.0}", 100.0 * share))));
        let [label, shards] = [it.run.label.clone(), it.run.shards().to_string()];
        let ratio = cell(doubts.is_empty(), ratio.map(|ratio| format!("{ratio:.2}×")));
        [&[label, shards, seconds(it.seconds_per_step), ratio], &idle[..]].concat()
    };
    let idle = [("idle, %,\npredicted", 2), ("idle, %,\nmeasured", 1)];
    let columns = [&[("micro-\nbatches", 1), ("s/step", 0), ("speed-up", 0)], &idle[..]].concat();
    table(&columns, outcomes.iter().map(row))
}

/// Names the doubts about times; without a doubt, the fastest splits and the error of the predicted idle time. Empty without
/// splits.
fn of_times(all: &[Outcome<'_>], doubts: &[Doubt]) -> String {
    let (alone, splits) = alone_and_split(all);
    let timed = splits.iter().filter(|it| it.seconds_per_step.is_finite());
    let best = timed.clone().map(|it| it.seconds_per_step).reduce(f64::min);
    let (true, Some(best)) = (doubts.is_empty(), best) else { return ranked(doubts, String::new) };
    let is_close = |it: &&Outcome<'_>| Speed::of(it.seconds_per_step / best) == Speed::Equal;
    let fastest = timed.filter(is_close).collect_vec();
    let speed = match alone.first().map(|one| one.seconds_per_step / best) {
        None => format!("{} s per step", seconds(best)),
        Some(ratio) if Speed::of(ratio) == Speed::Faster => {
            let up_to = if fastest.len() > 1 { "up to " } else { "" };
            format!("{up_to}{ratio:.2} times as fast as one device")
        }
        Some(_) => "no faster than one device".to_owned(),
    };
    let mut text = format!("Fastest: {}, {speed}.", names(fastest));
    let percent = |idle: [f64; 2]| idle.map(|share| (100.0 * share).round());
    let off = splits.iter().filter_map(idle).map(percent).map(|[a, b]| (a - b).abs());
    if let Some(off) = off.reduce(f64::max) {
        text += &format!(
            " The prediction of the idle time is off by {off:.0} % of a step at most: it leaves out messages and other \
             programs."
        );
    }
    text
}

/// The bytes that devices hold and send. Devices with the same numbers share a row. For a text, the table also has the
/// predicted bytes.
fn memory(outcomes: &[Outcome<'_>]) -> Table {
    let stages = outcomes.iter().any(|it| it.run.mesh.pipeline > 1);
    let of_text = outcomes.iter().any(|it| it.summary.unit == Unit::Tokens);
    let rows = outcomes.iter().flat_map(|Outcome { run, trained, .. }| {
        let names = [run.label.clone()].into_iter().chain(repeat(String::new()));
        names.zip(groups(&trained.held)).map(move |(name, group)| {
            let held = &trained.held[group[0]];
            let predicted = run.held.get(group[0]).map(|it| megabytes(it.total));
            let sent = (held.sent > 0).then(|| megabytes(held.sent));
            let more = [cell(of_text, predicted), cell(stages, sent)];
            [&[name, ranges(&group)], &cells_of_bytes(held, !of_text)[..], &more].concat()
        })
    });
    table(&[&[("device", 0)], &BYTES[..], &[("pre-\ndicted", 0), ("sent", 5)]].concat(), rows)
}

/// The devices with the same numbers. Of more than four groups, the one with the fullest devices and the one with the emptiest.
fn groups(held: &[Held]) -> Vec<Vec<usize>> {
    /// The most rows of a way.
    const MOST_ROWS: usize = 4;
    let first = |device: &usize| !held[..*device].contains(&held[*device]);
    let alike = |first: usize| held.iter().positions(|it| *it == held[first]).collect_vec();
    let groups = (0..held.len()).filter(first).map(alike).collect_vec();
    let ends = groups.iter().minmax_by_key(|group| held[group[0]].total).into_option();
    match ends.filter(|_| groups.len() > MOST_ROWS) {
        Some((emptiest, fullest)) => vec![fullest.clone(), emptiest.clone()],
        None => groups,
    }
}

/// `0–1, 4–5`
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    runs.map(|run| range(run[0], run[run.len() - 1])).join(", ")
}

/// Names the split whose fullest device holds least, and the error of the prediction. Empty without splits.
fn of_memory(all: &[Outcome<'_>]) -> String {
    let (alone, splits) = alone_and_split(all);
    let Some(least) = splits.iter().min_by_key(|it| it.bytes()) else { return String::new() };
    let (name, bytes) = (least.run.said(), megabytes(least.bytes()));
    let mut text = format!("Least memory: {name}, {bytes} MB on the fullest device.");
    if let Some(one) = alone.first() {
        text += &format!(" One device alone needs {} MB.", megabytes(one.bytes()));
    }
    if let Some(percent) = error_of_peaks(splits) {
        text += &format!(" The predicted peaks of all kinds are off by {percent:.0} % at most.");
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use harness::report::summary::Summary;
    use model_parallel::Bytes;
    use model_parallel::instructions::{Action, Instruction};
    use model_parallel::layers::Layers;
    use model_parallel::mesh::Mesh;
    use model_parallel::runs::Trained;
    use model_parallel::simulate::Span;

    use super::*;
    use crate::arguments::Arguments;
    use crate::plan::Run;

    /// The ways of a program with such flags, on two devices.
    fn ways(flags: &str) -> Vec<Run> {
        let flags = ["model-parallel"].into_iter().chain(flags.split_whitespace());
        let (flags, mesh, layers) =
            (Arguments::parse_from(flags), Mesh::pipeline(2), Layers::lenet());
        flags.ways(mesh, &layers, &mut Vec::new()).expect("ways")
    }

    /// Results with these times of a step, in seconds. Everything else is the same for all ways.
    fn outcomes<'a>(ways: &'a [Run], times: &[f64]) -> Vec<Outcome<'a>> {
        let summary = Summary {
            dtype: "f32".to_owned(),
            epochs_trained: 1.0,
            seconds_per_epoch: 10.0,
            ..Summary::default()
        };
        let outcome = |(run, &seconds_per_step)| {
            let (trained, summary) = (Trained::default(), summary.clone());
            Outcome { run, trained, summary, seconds_per_step, errors: [None; 2], steps: None }
        };
        ways.iter().zip(times).map(outcome).collect()
    }

    /// One stage that is busy for a second, and done after so many.
    fn step(makespan: f64) -> Timeline {
        let span = |action, start, end| Span {
            stage: 0,
            instruction: Instruction { unit: 0, action },
            held: Bytes::default(),
            start,
            end,
        };
        let spans = vec![
            span(Action::Forward(0), 0.0, 1.0),
            span(Action::SendActivation(0), 1.0, makespan),
        ];
        Timeline { stages: 1, spans }
    }

    #[test]
    fn the_middle_step_is_shown_and_the_first_does_not_count() {
        let of = |makespans: &[f64]| {
            let steps: Vec<_> = makespans.iter().map(|&end| step(end)).collect();
            Timeline::median(&steps, Timeline::bubble).cloned()
        };
        assert_eq!(of(&[100.0, 4.0, 2.0, 50.0]), Some(step(4.0)));
        assert_eq!(step(4.0).bubble(), 0.75);
        // One step is better than none.
        assert_eq!(of(&[10.0]), Some(step(10.0)));
        assert_eq!(of(&[]), None);
    }

    /// One device, one device on micro-batches, and two schedules.
    fn four() -> Vec<Run> {
        ways("--schedule gpipe,1f1b")
    }

    fn idle(shares: [f64; 2]) -> Option<[Timeline; 2]> {
        Some(shares.map(|share| step(1.0 / (1.0 - share))))
    }

    #[test]
    fn the_fastest_splits_are_named() {
        let ways = four();
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
            assert_eq!(of_times(&outcomes(&ways, &times), &[]), expected);
        }
        let all = outcomes(&ways, &[1.0, 1.1, 0.7, 0.5]);
        assert_eq!(of_times(&all[2..], &[]), "Fastest: 1F1B, 0.50 s per step.");
        assert_eq!(of_times(&all[..2], &[]), "");
    }

    #[test]
    fn the_idle_time_is_compared_with_the_prediction() {
        let ways = four();
        let mut all = outcomes(&ways, &[1.0; 4]);
        for (shares, expected) in [
            ([0.10, 0.11], "off by 1 % of a step at most:"),
            ([0.10, 0.26], "off by 16 % of a step at most:"),
        ] {
            (all[2].steps, all[3].steps) = (idle([0.50, 0.50]), idle(shares));
            let text = of_times(&all, &[]);
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn with_a_doubt_about_times_nothing_is_ranked() {
        let (naive, ways) = (ways("--schedule naive"), four());
        let text = |all: &[Outcome<'_>]| of_times(all, &doubts_about(all));
        let mut all = outcomes(&ways, &[1.0, 1.1, 0.7, 0.5]);
        all[1].summary.busy = Some(String::new());
        assert_eq!(text(&all), Doubt::Busy.to_string());
        // Two devices that are idle for 59 % of the time do 0.82 times the work of one.
        let mut all = outcomes(&naive, &[1.56, 1.0]);
        all[1].steps = idle([0.5, 0.59]);
        let doubt =
            Doubt::of_speed_up("naive over one device", 1.56, 2, 0.59).expect("a contradiction");
        assert_eq!(text(&all), doubt.to_string());
        // Small batches may be faster by themselves.
        let mut all = outcomes(&ways, &[1.0, 0.7, 0.6, 0.6]);
        all[3].steps = idle([0.1, 0.4]);
        assert!(text(&all).starts_with("Fastest: GPipe and 1F1B, up to 1.67 times"));
        let slow = text(&outcomes(&ways, &[1.0, 0.7, 0.7, 0.3]));
        let implausible =
            "The speed-up of 1F1B over one device is 3.33, and 2 devices that are idle";
        assert!(slow.starts_with(implausible), "{slow}");
    }

    #[test]
    fn the_least_memory_is_named() {
        let mut ways = four();
        for (way, predicted) in ways[2..].iter_mut().zip([1040, 1061]) {
            let peak = Bytes { parameters: predicted, ..Bytes::default() };
            way.held = vec![Held { peak, ..Held::default() }];
        }
        let mut all = outcomes(&ways, &[1.0; 4]);
        for (it, total) in all.iter_mut().zip([36_000_000, 43_000_000, 41_900_000, 24_600_000]) {
            let peak = Bytes { parameters: 1000, ..Bytes::default() };
            it.trained.held = vec![Held { peak, total, sent: 0 }];
        }
        let least = "Least memory: 1F1B, 24.6 MB on the fullest device.";
        let one = "One device alone needs 36.0 MB.";
        let error = "The predicted peaks of all kinds are off by 7 % at most.";
        assert_eq!(of_memory(&all), format!("{least} {one} {error}"));
        assert_eq!(of_memory(&all[2..]), format!("{least} {error}"));
        assert_eq!(of_memory(&all[..2]), "");
        // An interrupted run has no peaks.
        all.iter_mut().for_each(|it| it.trained.held[0].peak = Bytes::default());
        assert_eq!(of_memory(&all[2..]), least);
    }

    #[test]
    fn equal_weights_are_told_from_rounding_and_from_mistakes() {
        let text = |all: &[Outcome<'_>]| of_weights(all, (true, false));
        let (ways, mut others) = (four(), four());
        let mut all = outcomes(&ways, &[1.0; 4]);
        for it in &mut all[1..] {
            "other".clone_into(&mut it.summary.weights_hash);
            it.errors = [Some(3.3e-7), Some(0.13)];
        }
        assert_eq!(
            text(&all),
            "GPipe and 1F1B ended with the weights of one device on 8 micro-batches, to the last bit. Errors above 0 are \
             rounding, because sums have another order. --dtype f64 tests whether rounding is the only cause."
        );
        "third".clone_into(&mut all[3].summary.weights_hash);
        let told = text(&all);
        assert!(told.contains("1F1B ended with other weights than one device on 8"), "{told}");
        // Replicas without --shards, and parts of layers, have other bits, which is no mistake.
        others[3].mesh.tensor = 2;
        all[3].run = &others[3];
        assert!(!text(&all).contains("other weights"));
        all[3].run = &ways[3];
        // An interrupted run has fewer epochs, and no error at the end.
        (all[3].summary.epochs_trained, all[3].errors[1]) = (0.5, None);
        assert!(!text(&all).contains("1F1B"));
        let mut with = |dtype: &str, errors: [f64; 2]| {
            for it in &mut all {
                (it.errors, it.summary.dtype) = (errors.map(Some), dtype.to_owned());
            }
            text(&all)
        };
        assert!(with("f64", [7.5e-16, 3.8e-16]).ends_with("because sums have another order."));
        assert!(
            with("f64", [1.3e-3, 0.1])
                .ends_with("1.3e-3 after step 1 is more than rounding usually causes.")
        );
        assert!(
            with("f32", [1.3e-3, 0.1])
                .contains("of 1.3e-3 after step 1 may be rounding that moves")
        );
        assert!(
            with("f32", [0.5, 0.1]).contains("error of 5.0e-1 after step 1 is more than rounding")
        );
        assert!(!with("f32", [0.0, 0.0]).contains("rounding"));
        assert_eq!(text(&all[..1]), "");
    }

    #[test]
    fn with_a_doubt_about_times_there_is_no_ratio() {
        let ways = ways("--schedule naive");
        let all = outcomes(&ways, &[1.0, 0.5]);
        let text = |all, doubts: &[Doubt]| times(all, doubts).text(80);
        assert!(text(&all, &[]).contains("2.00×"));
        assert!(text(&all[1..], &[]).contains("–"));
        assert!(!text(&all, &[Doubt::Busy]).contains("speed-up"));
    }

    #[test]
    fn devices_with_the_same_numbers_share_a_row() {
        let groups = |totals: &[usize]| {
            let held = totals.iter().map(|&total| Held { total, ..Held::default() });
            groups(&held.collect_vec()).iter().map(|group| ranges(group)).collect_vec()
        };
        assert_eq!(groups(&[7, 7, 3, 3, 7, 7, 3, 3]), ["0–1, 4–5", "2–3, 6–7"]);
        assert_eq!(groups(&[1, 2, 3, 4]), ["0", "1", "2", "3"]);
        // The fullest and the emptiest of many.
        assert_eq!(groups(&[4, 9, 3, 1, 2, 1]), ["1", "3, 5"]);
    }
}

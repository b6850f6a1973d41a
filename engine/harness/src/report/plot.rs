//! `--plot FILE`: accuracy and loss by epoch, as an SVG picture.

use drawing::chart::{Chart, Curve, Panel, stroke};
use drawing::{Axis, Heading, Place};
use itertools::Itertools as _;

use super::accuracy;
use super::summary::FinishedRun;
use crate::records::{EpochRecord, epochs_trained};

/// A number of an epoch.
type Number = fn(&EpochRecord) -> f64;

/// A measure: its name, and its numbers of the two [`parts`] of the data.
type Measure = (&'static str, [Number; 2]);

const MEASURES: [Measure; 2] = [
    ("accuracy", [|record| record.test_accuracy, |record| record.train_accuracy]),
    ("loss", [|record| record.test_loss, |record| record.train_loss]),
];

/// The parts of the data: a short name, and the title.
fn parts(runs: &[FinishedRun]) -> [(&'static str, String); 2] {
    let noun = runs.first().map(|run| run.summary.unit).unwrap_or_default().names().0;
    [("test", "after"), ("training", "during")]
        .map(|(part, when)| (part, format!("{part} {noun}s, {when} the epoch")))
}

pub(super) fn draw(title: &str, runs: &[FinishedRun]) -> String {
    let heading = Heading { title: title.to_owned(), doubt: None, conclusion: conclusion(runs) };
    let last = runs.iter().map(|run| epochs_trained(&run.records)).fold(1.0, f64::max).ceil();
    let rows = MEASURES.iter().map(|measure| panels(runs, measure, last)).collect();
    Chart { heading, rows }.svg(Place::File)
}

/// The name of a run in a legend.
fn name(FinishedRun { summary, .. }: &FinishedRun) -> String {
    format!("{} [{}]", summary.run, summary.devices.join(", "))
}

/// The panels of a measure, one for each part of the data, with a common axis.
fn panels(runs: &[FinishedRun], (measure, numbers): &Measure, last: f64) -> Vec<Panel> {
    let records = runs.iter().flat_map(|run| &run.records);
    let y =
        Axis::around(measure, records.flat_map(|record| numbers.map(|number| number(record))), 6);
    let panel = |((part, title), number): ((&str, String), Number)| {
        let curve = |(index, run): (usize, &FinishedRun)| Curve {
            name: name(run),
            series: Some(index),
            width: stroke(index, runs.len()),
            points: points(run, &format!("{part} {measure}"), number),
        };
        let (x, curves) = (Axis::counting("epoch", last, 10), runs.iter().enumerate().map(curve));
        Panel { title, x, y: y.clone(), curves: curves.collect() }
    };
    parts(runs).into_iter().zip(*numbers).map(panel).collect()
}

/// The points of a run's curve. The point of an epoch lies at its end, which comes earlier for an interrupted epoch. The
/// axis begins at 1, so the point of an interrupted first epoch lies there.
fn points(run: &FinishedRun, name: &str, number: Number) -> Vec<(f64, f64, String)> {
    let mut end = 0.0_f64;
    let point = |record: &EpochRecord| {
        end += record.part;
        let whole = record.part >= 1.0;
        let part =
            if whole { String::new() } else { format!(" ({:.0} % of it)", record.part * 100.0) };
        let (run, epoch, value) = (&run.summary.run, record.epoch, number(record));
        (end.max(1.0), value, format!("{run}, epoch {epoch}{part}: {name} {value:.4}"))
    };
    run.records.iter().map(point).collect()
}

/// Summarises the curves in a sentence: the test accuracy of each run at its end.
fn conclusion(runs: &[FinishedRun]) -> String {
    let end = |run: &FinishedRun| {
        let accuracy = accuracy(run.records.last()?.test_accuracy);
        let epochs = (epochs_trained(&run.records) * 100.0).round() / 100.0;
        let noun = if epochs == 1.0 { "epoch" } else { "epochs" };
        Some((format!("{} {accuracy}", run.summary.run), format!(" after {epochs} {noun}")))
    };
    let (ends, after): (Vec<_>, Vec<_>) = runs.iter().filter_map(end).unzip();
    let Some(first) = after.first() else { return "No epoch has ended.".to_owned() };
    if after.iter().all_equal() {
        return format!("Test accuracy{first}: {}.", ends.join("; "));
    }
    let each = ends.iter().zip(&after).map(|(end, after)| format!("{end}{after}"));
    format!("Test accuracy: {}.", each.collect_vec().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::Unit;
    use crate::report::summary::Summary;

    fn run(name: &str, records: Vec<EpochRecord>) -> FinishedRun {
        let (run, devices) = (name.to_owned(), vec!["cpu:0 <1 core>".to_owned()]);
        FinishedRun { summary: Summary { run, devices, ..Summary::default() }, records }
    }

    fn epoch(part: f64, value: f64) -> EpochRecord {
        EpochRecord { part, test_accuracy: value, test_loss: value, ..EpochRecord::default() }
    }

    fn epochs(count: usize) -> Vec<EpochRecord> {
        (0..count).map(|i| EpochRecord { epoch: i + 1, ..epoch(1.0, i as f64 / 1e3) }).collect()
    }

    #[test]
    fn every_run_is_named_and_has_a_point_for_each_epoch() {
        let runs = [run("first", epochs(3)), run("<second>", epochs(3)), run("third", vec![])];
        let svg = draw("LeNet & co", &runs);
        for text in [
            "LeNet &amp; co",
            "Test accuracy after 3 epochs: first 0.002; &lt;second&gt; 0.002.",
            "first [cpu:0 &lt;1 core&gt;]",
            "&lt;second&gt; [cpu:0 &lt;1 core&gt;]",
            "third [cpu:0 &lt;1 core&gt;]",
            "test images, after the epoch",
            "training images, during the epoch",
            "accuracy",
            "loss",
            "epoch",
        ] {
            assert!(svg.contains(&format!(">{text}<")), "{text} is missing in {svg}");
        }
        // Four panels of two runs, with a mark for each of three epochs.
        assert_eq!(svg.matches("<title>").count(), 4 * 2 * 3);
        assert!(svg.contains("<title>&lt;second&gt;, epoch 2: test accuracy 0.0010</title>"));
        let mut of_text = run("text", epochs(1));
        of_text.summary.unit = Unit::Tokens;
        assert!(draw("title", &[of_text]).contains(">test tokens, after the epoch<"));
    }

    #[test]
    fn an_interrupted_epoch_ends_between_whole_ones() {
        let ended = |records: Vec<EpochRecord>| {
            let points = points(&run("one", records), "loss", |record| record.test_loss);
            points.into_iter().map(|(epoch, ..)| epoch).collect_vec()
        };
        assert_eq!(ended(vec![epoch(1.0, 0.5), epoch(0.5, 0.5)]), [1.0, 1.5]);
        assert_eq!(ended(vec![epoch(0.25, 0.5)]), [1.0]);
        let runs = [run("one", epochs(1)), run("two", vec![epoch(0.25, 0.75)])];
        assert_eq!(draw("title", &runs).matches("<title>").count(), 2 * 4, "a mark in each panel");
        let runs = [run("one", epochs(2)), run("two", vec![epoch(0.25, 0.5)])];
        let svg = draw("title", &runs);
        assert!(
            svg.contains("Test accuracy: one 0.001 after 2 epochs; two 0.500 after 0.25 epochs.")
        );
        assert!(svg.contains(" (25 % of it): test loss 0.5000<"));
    }

    #[test]
    fn numbers_that_cannot_be_drawn_are_left_out() {
        let records = vec![epoch(1.0, f64::NAN), epoch(1.0, 0.5), epoch(0.25, f64::INFINITY)];
        for records in [records.clone(), records[..1].to_vec(), vec![]] {
            let svg = draw("title", &[run("one", records.clone())]);
            assert!(!["NaN,", ",NaN", "\"NaN", ",inf"].iter().any(|it| svg.contains(it)), "{svg}");
        }
        assert!(draw("nothing at all", &[]).contains("No epoch has ended."));
    }
}

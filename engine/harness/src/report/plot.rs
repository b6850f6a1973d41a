//! `--plot FILE`: accuracy and loss by epoch, as an SVG picture. Runs of one epoch have dots in place of curves.

use drawing::chart::{Chart, Curve, Panel, stroke};
use drawing::dots::{Dot, Dots};
use drawing::{Axis, Heading, Place};
use itertools::Itertools as _;

use super::accuracy;
use super::summary::FinishedRun;
use crate::records::{EpochRecord, epochs_trained};

/// A number of an epoch: its name, and the number.
type Measure = (&'static str, fn(&EpochRecord) -> f64);

/// What is drawn: a name, and the numbers of the test images and of the training images.
const MEASURES: [(&str, [Measure; 2]); 2] = [
    (
        "accuracy",
        [
            ("test accuracy", |record| record.test_accuracy),
            ("training accuracy", |record| record.train_accuracy),
        ],
    ),
    (
        "loss",
        [("test loss", |record| record.test_loss), ("training loss", |record| record.train_loss)],
    ),
];

/// The images of the numbers.
const IMAGES: [&str; 2] = ["test images, after the epoch", "training images, during the epoch"];

pub(super) fn draw(title: &str, runs: &[FinishedRun]) -> String {
    let conclusion = conclusion(runs);
    let heading = Heading { title: title.to_owned(), doubt: None, conclusion };
    let last = runs.iter().map(|run| epochs_trained(&run.records)).fold(0.0, f64::max).ceil();
    if last > 1.0 { curves(heading, runs, last) } else { dots(heading, runs) }
}

/// Draws a row of panels for each measure, which have a common axis.
fn curves(heading: Heading, runs: &[FinishedRun], last: f64) -> String {
    let rows = MEASURES.map(|(name, of_images)| {
        let records = || runs.iter().flat_map(|run| &run.records);
        let values = records().flat_map(|record| of_images.map(|(_, measure)| measure(record)));
        let y = Axis::around(name, values, 6);
        let panel = |((measured, measure), images): (Measure, &str)| Panel {
            title: images.to_owned(),
            x: Axis::counting("epoch", last, 10),
            y: y.clone(),
            curves: (runs.iter().enumerate())
                .map(|(index, run)| Curve {
                    name: format!("{} {}", run.name, run.devices),
                    series: Some(index),
                    width: stroke(index, runs.len()),
                    points: points(run, measured, measure),
                })
                .collect(),
        };
        of_images.into_iter().zip(IMAGES).map(panel).collect()
    });
    Chart { heading, rows: rows.into() }.svg(Place::File)
}

/// The points of a run's curve. The point of an epoch lies at its end, which comes earlier for an interrupted epoch. The
/// axis begins at 1, so the point of an interrupted first epoch lies there.
fn points(
    run: &FinishedRun,
    name: &str,
    measure: fn(&EpochRecord) -> f64,
) -> Vec<(f64, f64, String)> {
    let ends = run.records.iter().scan(0.0_f64, |end, record| {
        *end += record.part;
        Some((record, end.max(1.0)))
    });
    let point = |(record, end): (&EpochRecord, f64)| {
        let part = match record.part < 1.0 {
            true => format!(" ({:.0} % of it)", record.part * 100.0),
            false => String::new(),
        };
        let value = measure(record);
        let tooltip = format!("{}, epoch {}{part}: {name} {value:.4}", run.name, record.epoch);
        (end, value, tooltip)
    };
    ends.map(point).collect()
}

/// Draws a row for each run, with the numbers of its epoch.
fn dots(heading: Heading, runs: &[FinishedRun]) -> String {
    let number = |run: &FinishedRun, measure: fn(&EpochRecord) -> f64| {
        let value = run.records.last().map(measure).filter(|value| value.is_finite())?;
        Some(Dot { range: [value; 3], text: format!("{value:.3}") })
    };
    let row = |run: &FinishedRun| {
        let columns =
            MEASURES.map(|(_, of_images)| of_images.map(|(_, it)| number(run, it)).to_vec());
        (format!("{} {}", run.name, run.devices), columns.to_vec())
    };
    let column = |(name, of_images): (&str, [Measure; 2])| {
        let records = runs.iter().filter_map(|run| run.records.last());
        let values = records.flat_map(|record| of_images.map(|(_, measure)| measure(record)));
        (Axis::around(name, values, 4), None)
    };
    let (columns, series) = (MEASURES.map(column).to_vec(), IMAGES.map(str::to_owned).to_vec());
    Dots { heading, columns, series, rows: runs.iter().map(row).collect() }.svg(Place::File)
}

/// Summarises the curves in a sentence: the test accuracy of each run at its end.
fn conclusion(runs: &[FinishedRun]) -> String {
    let ends: Vec<(&str, f64, String)> = runs
        .iter()
        .filter_map(|run| {
            let last = run.records.last()?;
            let epochs = (epochs_trained(&run.records) * 100.0).round() / 100.0;
            Some((run.name.as_str(), epochs, accuracy(last.test_accuracy)))
        })
        .collect();
    let plural = |epochs: f64| if epochs == 1.0 { "epoch" } else { "epochs" };
    let Some((_, first, _)) = ends.first() else { return "No epoch has ended.".to_owned() };
    if ends.iter().all(|(_, epochs, _)| epochs == first) {
        let each = ends.iter().map(|(name, _, accuracy)| format!("{name} {accuracy}")).join("; ");
        return format!("Test accuracy after {first} {}: {each}.", plural(*first));
    }
    let each = ends.iter().map(|(name, epochs, accuracy)| {
        format!("{name} {accuracy} after {epochs} {}", plural(*epochs))
    });
    format!("Test accuracy: {}.", each.collect_vec().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, records: Vec<EpochRecord>) -> FinishedRun {
        FinishedRun { name: name.to_owned(), devices: "[cpu:0 <1 core>]".to_owned(), records }
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
    }

    #[test]
    fn eight_runs_look_different() {
        let runs = (0..8).map(|index| run(&format!("run {index}"), epochs(3))).collect_vec();
        let svg = draw("title", &runs);
        // The colours, widths and dashes of the curves of one panel.
        let curves = svg.lines().filter(|line| line.starts_with("<polyline class=\"series-"));
        let look = |line: &str| {
            let attribute =
                |name: &str| line.split(name).nth(1).unwrap().split('"').nth(1).unwrap().to_owned();
            (attribute(" class="), attribute("stroke-dasharray="))
        };
        assert_eq!(curves.map(look).take(8).unique().count(), 8, "{svg}");
    }

    #[test]
    fn a_single_epoch_has_a_dot_and_a_number_for_each_run() {
        let runs = [run("one", epochs(1)), run("two", vec![epoch(0.25, 0.75)])];
        let svg = draw("title", &runs);
        assert!(!svg.contains(">epoch</text>"), "no axis of epochs: {svg}");
        // Accuracy and loss, each with a dot for the test images and one for the training images.
        assert_eq!(svg.matches("<title>").count(), 2 * 4);
        assert_eq!(svg.matches(">0.750</text>").count(), 2);
        assert_eq!(svg.matches("<title>test images, after the epoch: 0.750</title>").count(), 2);
    }

    #[test]
    fn an_interrupted_epoch_ends_between_whole_ones() {
        let ended = |records: Vec<EpochRecord>| {
            let points = points(&run("one", records), "loss", |record| record.test_loss);
            points.into_iter().map(|(epoch, ..)| epoch).collect_vec()
        };
        assert_eq!(ended(vec![epoch(1.0, 0.5), epoch(0.5, 0.5)]), [1.0, 1.5]);
        assert_eq!(ended(vec![epoch(0.25, 0.5)]), [1.0]);
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

//! `--plot FILE`: accuracy and loss by epoch, as an SVG picture.
//!
//! Runs that compute the same have the same curves. Each run's line is thinner than the line below it, so all lines stay
//! visible.

use itertools::Itertools as _;

use super::chart::spacing;
use super::summary::FinishedRun;
use super::svg::{Anchor, GAP, LINE, MARGIN, SERIES, Svg, WIDTH, shortened, width};
use super::{accuracy, rounded, thousands};
use crate::records::{EpochRecord, epochs_trained};

/// The left ends of the two panels, at their axes.
const LEFT: [f64; 2] = [84.0, 564.0];
const PANEL_WIDTH: f64 = 370.0;
const PANEL_HEIGHT: f64 = 270.0;

/// The length of a line in the legend.
const SAMPLE: f64 = 36.0;

/// The most epochs that are marked with dots.
const MOST_DOTS: usize = 30;

/// The number of an epoch that a panel shows.
type Measure = fn(&EpochRecord) -> f64;

/// The values from one end of an axis to the other.
#[derive(Clone, Copy)]
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    /// Makes the axis of epochs, which begins at 1 and ends with a whole epoch.
    fn of_epochs(runs: &[FinishedRun]) -> Self {
        let last = runs.iter().map(|run| epochs_trained(&run.records)).fold(1.0, f64::max);
        Self { low: 1.0, high: last.ceil() }
    }

    /// Makes an axis from a little below the lowest value to a little above the highest.
    fn of_values(values: impl Iterator<Item = f64>) -> Self {
        let finite = values.filter(|value| value.is_finite());
        let Some((low, high)) = finite.minmax_by(f64::total_cmp).into_option() else {
            return Self { low: 0.0, high: 1.0 };
        };
        // If all values are equal, the axis still needs a length.
        let room = (0.06 * (high - low)).max(0.01);
        Self { low: (low - room).max(0.0), high: high + room }
    }

    /// The place of a value from 0 to 1. An axis of a single value has this value in the middle.
    fn place(self, value: f64) -> f64 {
        if self.high > self.low { (value - self.low) / (self.high - self.low) } else { 0.5 }
    }

    /// The multiples of `unit` on the axis.
    fn multiples(self, unit: f64) -> impl Iterator<Item = f64> {
        let first = (self.low / unit).ceil();
        let multiple = move |index| rounded((first + f64::from(index)) * unit);
        (0..100).map(multiple).take_while(move |value| *value <= self.high)
    }

    /// Whole epochs: the first, and multiples of a round number, as many as fit.
    fn epochs(self) -> Vec<f64> {
        let room = width(&thousands(self.high as usize)) + 2.0 * GAP;
        let unit = spacing(self.high, (PANEL_WIDTH / room) as u32).max(1.0);
        [1.0].into_iter().chain(self.multiples(unit).filter(|epoch| *epoch > 1.0)).collect()
    }
}

pub(super) fn draw(title: &str, runs: &[FinishedRun]) -> String {
    let mut svg = Svg::default();
    let conclusion = conclusion(runs);
    let top = svg.heading(title, &conclusion);
    let top = draw_legend(&mut svg, top, runs) + LINE / 2.0;
    let epochs = Axis::of_epochs(runs);
    let panels: [(&str, Measure, Measure); 2] = [
        ("accuracy", |record| record.test_accuracy, |record| record.train_accuracy),
        ("loss", |record| record.test_loss, |record| record.train_loss),
    ];
    for (left, (name, test, train)) in LEFT.into_iter().zip(panels) {
        draw_panel(&mut svg, (left, top), (name, test, train), runs, epochs);
    }
    let height = top + LINE + PANEL_HEIGHT + 2.0 * LINE + MARGIN;
    svg.finish(&format!("{title}. {conclusion}"), height)
}

/// Draws one measure of all runs: a solid line for the test images, and a dashed line for the training images.
fn draw_panel(
    svg: &mut Svg,
    (left, top): (f64, f64),
    (name, test, train): (&str, Measure, Measure),
    runs: &[FinishedRun],
    epochs: Axis,
) {
    let records = runs.iter().flat_map(|run| &run.records);
    let values = Axis::of_values(records.flat_map(|record| [test(record), train(record)]));
    let (right, top) = (left + PANEL_WIDTH, top + LINE);
    let bottom = top + PANEL_HEIGHT;
    let x = |epoch| left + epochs.place(epoch) * PANEL_WIDTH;
    let y = |value| bottom - values.place(value) * PANEL_HEIGHT;
    svg.text("text title", (left, top - LINE * 0.75), Anchor::Start, name);
    let unit = spacing(values.high - values.low, 7);
    let decimals = (-unit.log10().floor()).max(0.0) as usize;
    for value in values.multiples(unit) {
        svg.curve("grid", 1.0, false, &[(left, y(value)), (right, y(value))]);
        let large = value >= 1e5;
        let label = if large { format!("{value:e}") } else { format!("{value:.decimals$}") };
        svg.text("text", (left - GAP, y(value)), Anchor::End, &label);
    }
    for epoch in epochs.epochs() {
        svg.curve("axis", 1.0, false, &[(x(epoch), bottom), (x(epoch), bottom + 5.0)]);
        let label = thousands(epoch as usize);
        svg.text("text", (x(epoch), bottom + LINE * 0.75), Anchor::Middle, &label);
    }
    svg.curve("axis", 1.0, false, &[(left, top), (left, bottom), (right, bottom)]);
    svg.text("text", (right, bottom + 1.75 * LINE), Anchor::End, "epoch");
    for (index, run) in runs.iter().enumerate() {
        let (class, width) = stroke(index, runs.len());
        let curve = |measure| {
            let points = points(run, measure).map(|(_, epoch, value)| (x(epoch), y(value)));
            match points.collect_vec().as_slice() {
                // A single point becomes a short line, which is solid or dashed.
                &[(x, y)] => {
                    vec![((x - SAMPLE / 2.0).max(left), y), ((x + SAMPLE / 2.0).min(right), y)]
                }
                points => points.to_vec(),
            }
        };
        svg.curve(&class, width / 2.0, true, &curve(train));
        svg.curve(&class, width, false, &curve(test));
        if run.records.len() <= MOST_DOTS {
            for (record, epoch, value) in points(run, test) {
                let part = match record.part < 1.0 {
                    true => format!(" ({:.0} % of it)", record.part * 100.0),
                    false => String::new(),
                };
                let EpochRecord { epoch: number, .. } = record;
                let tooltip = format!("{}, epoch {number}{part}: test {name} {value:.4}", run.name);
                svg.dot(&class, (x(epoch), y(value)), 2.0 + width / 2.0, &tooltip);
            }
        }
    }
}

/// The points of a run's curve, each with its record. The point of an epoch lies at its end, which comes earlier for an
/// interrupted epoch. The axis begins at 1, so the point of an interrupted first epoch lies there.
fn points(run: &FinishedRun, measure: Measure) -> impl Iterator<Item = (&EpochRecord, f64, f64)> {
    let ends = run.records.iter().scan(0.0_f64, move |end, record| {
        *end += record.part;
        Some((record, end.max(1.0), measure(record)))
    });
    ends.filter(|(.., value)| value.is_finite())
}

/// Draws a line for each run, then the meaning of solid and dashed lines. Returns the lower end.
fn draw_legend(svg: &mut Svg, top: f64, runs: &[FinishedRun]) -> f64 {
    let mut entry = |class: &str, (x, y): (f64, f64), width: f64, dashed: bool, text: &str| {
        svg.curve(class, width, dashed, &[(x, y), (x + SAMPLE, y)]);
        let x = x + SAMPLE + GAP;
        svg.text("text", (x, y), Anchor::Start, &shortened(text, WIDTH - MARGIN - x));
    };
    for (index, run) in runs.iter().enumerate() {
        let (class, width) = stroke(index, runs.len());
        let text = format!("{} {}", run.name, run.devices);
        entry(&class, (MARGIN, top + LINE * index as f64), width, false, &text);
    }
    let y = top + LINE * runs.len() as f64;
    entry("axis", (MARGIN, y), 3.0, false, "test images, after the epoch");
    entry("axis", (WIDTH / 2.0, y), 1.5, true, "training images, during the epoch");
    y + LINE
}

/// The class and the width of a run's line: wide for the first run, and narrower for each run drawn over it.
fn stroke(index: usize, runs: usize) -> (String, f64) {
    let above = runs - 1 - index;
    let width = 2 + 8 * above / runs.max(4);
    (format!("series-{}", index % SERIES + 1), width as f64)
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
    use super::super::svg_check::{check, count, texts};
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
    fn every_run_is_named_and_text_is_escaped() {
        let runs = [run("first", epochs(3)), run("<second>", epochs(3)), run("third", vec![])];
        let svg = draw("LeNet & co", &runs);
        check(&svg);
        let texts = texts(&svg);
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
        ] {
            assert!(texts.contains(&text), "{text} is missing in {texts:?}");
        }
        // Two panels of two runs, with a dot for each of three epochs.
        assert_eq!(count(&svg, "<circle"), 2 * 2 * 3);
        assert!(svg.contains("<title>&lt;second&gt;, epoch 2: test accuracy 0.0010</title>"));
    }

    #[test]
    fn the_axis_has_whole_epochs_from_the_first_on() {
        for (count, labels) in [
            (1, "1"),
            (2, "1 2"),
            (3, "1 2 3"),
            (10, "1 2 3 4 5 6 7 8 9 10"),
            (30, "1 5 10 15 20 25 30"),
            (100, "1 20 40 60 80 100"),
            (20_000, "1 5,000 10,000 15,000 20,000"),
        ] {
            let svg = draw("title", &[run("one", epochs(count))]);
            check(&svg);
            let texts = texts(&svg);
            // The labels of an axis stand before its name.
            let end = texts.iter().position(|text| *text == "epoch").unwrap();
            let axis = &texts[end - labels.split(' ').count()..end];
            assert_eq!(axis.join(" "), labels, "{count} epochs: {texts:?}");
        }
    }

    #[test]
    fn a_single_epoch_is_drawn_as_a_solid_and_a_dashed_line() {
        let svg = draw("title", &[run("one", epochs(1))]);
        let lines = svg.lines().filter(|line| line.starts_with("<polyline class=\"series-1\""));
        let is_line = |line: &&str| line.contains("points=\"251.0,") && line.contains(" 287.0,");
        let accuracy: Vec<&str> = lines.filter(is_line).collect();
        let dashed = |line: &&str| line.contains("stroke-dasharray=\"6 5\"");
        assert_eq!(accuracy.iter().map(dashed).collect_vec(), [true, false], "{svg}");
    }

    #[test]
    fn an_interrupted_epoch_ends_between_whole_ones() {
        let ended = |records: Vec<EpochRecord>| {
            let run = run("one", records);
            let ends = points(&run, |record| record.test_loss).map(|(_, epoch, _)| epoch);
            (ends.collect_vec(), Axis::of_epochs(std::slice::from_ref(&run)).epochs())
        };
        assert_eq!(ended(vec![epoch(1.0, 0.5), epoch(0.5, 0.5)]), (vec![1.0, 1.5], vec![1.0, 2.0]));
        assert_eq!(ended(vec![epoch(0.25, 0.5)]), (vec![1.0], vec![1.0]));
        let runs = [run("one", epochs(2)), run("two", vec![epoch(0.25, 0.5)])];
        let svg = draw("title", &runs);
        check(&svg);
        assert!(
            svg.contains("Test accuracy: one 0.001 after 2 epochs; two 0.500 after 0.25 epochs.")
        );
        assert!(svg.contains(" (25 % of it): test loss 0.5000<"));
    }

    #[test]
    fn as_many_runs_as_a_program_makes_are_told_apart_where_they_coincide() {
        for runs in 1..=6 {
            let strokes: Vec<_> = (0..runs).map(|index| stroke(index, runs)).collect();
            for ((_, below), (_, above)) in strokes.iter().zip(&strokes[1..]) {
                assert!(below > above, "{runs} runs");
            }
            assert!(strokes.iter().map(|(class, _)| class).all_unique());
        }
    }

    #[test]
    fn numbers_that_cannot_be_drawn_are_left_out() {
        let records = vec![epoch(1.0, f64::NAN), epoch(1.0, 0.5), epoch(0.25, f64::INFINITY)];
        let run = run("one", records);
        let drawn: Vec<_> = points(&run, |record| record.test_loss)
            .map(|(_, epoch, value)| (epoch, value))
            .collect();
        assert_eq!(drawn, [(2.0, 0.5)]);
        check(&draw("title", &[run]));
        check(&draw("nothing at all", &[]));
    }

    #[test]
    fn large_numbers_and_long_names_have_room() {
        let records = vec![epoch(1.0, 1_234_567.0), epoch(1.0, 3e30)];
        check(&draw(&"a title ".repeat(60), &[run(&"name".repeat(60), records)]));
    }
}

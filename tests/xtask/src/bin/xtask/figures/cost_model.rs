//! The prediction of stage 8 for a training step, as bars, and the measurement, as marks on the bars.

use anyhow::{Context as _, ensure};
use cost_model::all_reduce::Way;
use cost_model::record::{Calibration, How, Step};
use cost_model::training::Sum;
use drawing::gantt::SHADES;
use drawing::svg::{Anchor, LINE, Look, escaped};
use drawing::{Axis, Heading, Place, Svg};
use harness::report::{counted, thousands};
use harness::statistics::median;
use itertools::Itertools as _;
use xtask::scaling::Measurement;

use super::Figure;
use super::measurement::caption;
use crate::machine::{this_machine, today};

/// From the left edge of one link's half to its axis, and from its last bar to the right edge.
const LEFT: f64 = 36.0;
const RIGHT: f64 = 10.0;
const HALF: f64 = 240.0;
/// The room above the bars, for the model, the link, and the unit.
const HEADING: f64 = 62.0;
const PLOT: f64 = 130.0;
/// The room below the bars, for the numbers of devices.
const AXIS: f64 = 46.0;

/// Gaps are counted in bars.
const GAP: f64 = 0.8;

/// The series of one device by itself.
const ALONE: usize = 4;

/// Makes the data of the figure from a file of stage 8's `--metrics`.
pub(super) fn data(command: &str, text: &str) -> anyhow::Result<String> {
    let data = Measurement::of(text, command, this_machine(), today())?;
    Ok(serde_json::to_string_pretty(&data)?)
}

/// Draws a row for each model: memory on the left, the slow link on the right.
pub(super) fn draw(texts: &[String]) -> anyhow::Result<Figure> {
    let measurement = Measurement::parse(texts.first().context("no data")?)?;
    let ways: Vec<Way> = measurement
        .steps
        .iter()
        .filter_map(|step| step.how)
        .map(|how| how.sum.way)
        .unique()
        .collect();
    let marks: Vec<(usize, String)> = ways.iter().map(Way::to_string).enumerate().collect();
    let trainings = measurement.trainings();
    ensure!(!trainings.is_empty(), "there is no step");
    let names: Vec<&str> = trainings.iter().map(|(model, _)| *model).collect();
    let title = format!("Milliseconds of a step, predicted and measured: {}", names.join("; "));
    let heading = Heading { title, ..Heading::default() };
    let mut svg = Svg::new(Place::Page, &heading);
    let head = svg.legend(&marks, |svg, &series, (x, y)| {
        svg.mark(&Look::of(series), (x + Svg::SAMPLE / 2.0, y), "");
    });
    let key = "bars: predicted, pale without overlap, dark with it; marks: measured";
    svg.text("label quiet", (0.0, head + LINE / 2.0), Anchor::Start, key);
    let head = head + LINE;
    let height = head + trainings.len() as f64 * (HEADING + PLOT + AXIS);
    for (row, (model, batch_size)) in trainings.into_iter().enumerate() {
        let top = head + row as f64 * (HEADING + PLOT + AXIS);
        let name = format!("{model}, {} images a step", thousands(batch_size));
        svg.text("label strong", (0.0, top + LINE), Anchor::Start, name);
        for slow in [false, true] {
            let steps = steps(&measurement, (model, batch_size), slow);
            let left = if slow { HALF } else { 0.0 };
            half(&mut svg, &steps, &ways, slow, (left, top))?;
        }
    }
    Ok(Figure { svg: svg.finish(height), caption: words(&measurement) })
}

/// A model's steps over one link, and its step on one device.
fn steps<'a>(measurement: &'a Measurement, training: (&str, usize), slow: bool) -> Vec<&'a Step> {
    let of_training = |step: &&Step| (step.model.as_str(), step.batch_size) == training;
    let of_link = |step: &&Step| step.how.is_none_or(|how| how.slow == slow);
    measurement.steps.iter().filter(of_training).filter(of_link).collect()
}

fn half(
    svg: &mut Svg,
    steps: &[&Step],
    ways: &[Way],
    slow: bool,
    (left, top): (f64, f64),
) -> anyhow::Result<()> {
    let link = if slow { "over the slow link" } else { "over memory" };
    let (left, right) = (left + LEFT, left + HALF - RIGHT);
    let (ceiling, floor) = (top + HEADING, top + HEADING + PLOT);
    svg.text("label", (left, top + 2.0 * LINE), Anchor::Start, link);
    svg.text("label quiet", (left, top + 2.8 * LINE), Anchor::Start, "ms");
    let times = steps.iter().flat_map(|step| [step.predicted.seconds, step.measured]);
    let longest = 1e3 * times.fold(0.0, f64::max);
    ensure!(longest > 0.0, "a step takes time");
    // The axis ends with a number above the longest step.
    let tick = drawing::axis::spacing(longest, 5);
    let axis = Axis::linear("", 0.0, (longest / tick).ceil() * tick, 5);
    let y = |seconds: f64| floor - axis.place(1e3 * seconds) * (floor - ceiling);
    for (value, text) in &axis.ticks {
        let (class, y) = (if *value > 0.0 { "grid" } else { "axis" }, y(value / 1e3));
        svg.line(class, (left, y), (right, y));
        svg.text("label", (left - 5.0, y), Anchor::End, text);
    }
    let counts: Vec<usize> = steps.iter().map(|step| step.devices).unique().collect();
    let room = steps.len() as f64 + (counts.len() + 1) as f64 * GAP;
    let bar = ((right - left) / room).min(26.0);
    let mut x = left;
    for count in counts {
        x += GAP * bar;
        let begin = x;
        for step in steps.iter().filter(|step| step.devices == count) {
            let of_way = |way| ways.iter().position(|of| *of == way);
            let series = match step.how {
                None => ALONE,
                Some(how) => of_way(how.sum.way).context("a way that is none of them")?,
            };
            let at = y(step.predicted.seconds);
            let [predicted, measured] =
                [step.predicted.seconds, step.measured].map(|seconds| 1e3 * seconds);
            let tooltip = format!("{predicted:.1} ms predicted, {measured:.1} ms measured");
            let is_pale = matches!(step.how, Some(How { sum: Sum { overlap: false, .. }, .. }));
            let (look, shade) = (Look::of(series), SHADES[usize::from(is_pale)][0]);
            svg.rect(&look.class, (x, at), (bar - 1.5, floor - at), shade, &tooltip);
            svg.mark(&look, (x + (bar - 1.5) / 2.0, y(step.measured)), "");
            x += bar;
        }
        svg.text("label", ((begin + x) / 2.0, floor + 13.5), Anchor::Middle, count);
    }
    svg.text("label quiet", (right, floor + 30.0), Anchor::End, "devices");
    Ok(())
}

/// The errors of the predictions, and the machine of the measurement.
fn words(measurement: &Measurement) -> String {
    let error = |step: &Step| 100.0 * step.error().abs();
    let errors = || measurement.steps.iter().map(error);
    let (median, worst) = (median(errors()), errors().fold(0.0, f64::max));
    let Measurement { machine, date, command, .. } = measurement;
    let note = |calibration: &Calibration| {
        let note = escaped(calibration.note.as_ref()?);
        Some(format!("On {}, {note}. ", counted(calibration.devices.len(), "device")))
    };
    let notes: String = measurement.calibrations.iter().filter_map(note).unique().collect();
    format!(
        "Of {} predictions half are at most {median:.0} % off, the worst {worst:.0} %. {}{}",
        measurement.steps.len(),
        notes,
        caption(machine, date.as_deref(), command)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// One and two devices, by ring.
    fn measurement() -> Value {
        let step = |devices: usize, how: Value, measured: f64| {
            json!({"model": "LeNet", "batch_size": 8, "devices": devices, "how": how, "measured": measured,
                   "predicted": {"seconds": 0.01, "compute": 0.008, "communication": 0.002}})
        };
        let mut steps = vec![step(1, Value::Null, 0.01)];
        for slow in [false, true] {
            for overlap in [false, true] {
                let how = json!({"slow": slow, "way": "ring", "overlap": overlap});
                steps.push(step(2, how, if slow { 0.0125 } else { 0.008 }));
            }
        }
        json!({"command": "run & look", "date": "2026-11-22", "calibrations": [], "steps": steps,
               "machine": {"processor": "One", "cores": 2, "instruction_sets": [], "memory": null, "system": ""}})
    }

    #[test]
    fn a_bar_for_each_prediction_and_a_mark_for_each_measurement() {
        let Figure { svg, caption } = draw(&[measurement().to_string()]).unwrap();
        // On both sides one device, and two with and without overlap; in the legend the ring's mark.
        assert_eq!(svg.matches("<rect").count(), 6, "{svg}");
        assert_eq!(svg.matches("<path class=\"series-1\"").count(), 1 + 4, "{svg}");
        assert_eq!(svg.matches("<path class=\"series-5\"").count(), 2, "{svg}");
        // Bars of 10 ms; marks at 8 ms on an axis to 10 ms, and at 12.5 ms on one to 15 ms.
        let floor = 28.0 + LINE + HEADING + PLOT;
        for mark in [floor - 0.8 * PLOT, floor - 12.5 / 15.0 * PLOT] {
            assert_eq!(svg.matches(&format!(",{mark:.1}m-4,0")).count(), 2, "{mark} in {svg}");
        }
        let words = "Of 5 predictions half are at most 20 % off, the worst 25 %. Measured on One, 2 cores, \
                     2026-11-22, by <code>run &amp; look</code>.\n";
        assert_eq!(caption, words);
        let mut empty = measurement();
        empty["steps"] = json!([]);
        assert!(draw(&[empty.to_string()]).is_err());
    }
}

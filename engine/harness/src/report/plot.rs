//! `--plot FILE`: accuracy and loss by epoch, as an SVG picture.
//!
//! Runs that compute the same have the same curves. So each run's line is thinner than the line below it, and all stay
//! visible. The background is white on light and on dark pages.

use itertools::Itertools as _;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::chart::{Failure, GRID, PALETTE, TEXT, WIDTH, text};
use super::summary::FinishedRun;
use crate::records::{EpochRecord, epochs_trained};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const TITLE_HEIGHT: u32 = 44;
const PANEL_HEIGHT: u32 = 340;
const LEGEND_LINE: u32 = 22;
const LEGEND_LEFT: i32 = 68;

/// The longest text that fits in a line of the legend or in the title, in characters.
const LONGEST_TEXT: usize = 112;

/// The most epochs that are marked with dots.
const MOST_DOTS: usize = 30;

/// The number of an epoch that a panel shows.
type Measure = fn(&EpochRecord) -> f64;

pub(super) fn draw(title: &str, runs: &[FinishedRun]) -> Result<String, Failure> {
    let legend_height = LEGEND_LINE * (runs.len() as u32 + 1) + 14;
    let size = (WIDTH, TITLE_HEIGHT + PANEL_HEIGHT + legend_height);
    let mut svg = String::new();
    {
        let picture = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        picture.fill(&WHITE)?;
        let (top, rest) = picture.split_vertically(TITLE_HEIGHT);
        let (panels, legend) = rest.split_vertically(PANEL_HEIGHT);
        let middle = (f64::from(WIDTH / 2), f64::from(TITLE_HEIGHT / 2 + 4));
        top.draw(&text(&shortened(title), middle, HPos::Center, 15, &TEXT))?;
        let (left, right) = panels.split_horizontally(WIDTH / 2);
        panel(&left, "accuracy", runs, (|r| r.test_accuracy, |r| r.train_accuracy))?;
        panel(&right, "loss", runs, (|r| r.test_loss, |r| r.train_loss))?;
        draw_legend(&legend, runs)?;
        picture.present()?;
    }
    Ok(svg)
}

/// Draws one measure of all runs: a solid line for the test images, and a dashed line for the training images.
fn panel(
    area: &Area<'_>,
    name: &str,
    runs: &[FinishedRun],
    (test, train): (Measure, Measure),
) -> Result<(), Failure> {
    let values = runs.iter().flat_map(|run| &run.records).flat_map(|r| [test(r), train(r)]);
    let (low, high) = range(values);
    let last = runs.iter().map(|run| epochs_trained(&run.records)).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(20)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..last, low..high)?;
    // Only whole epochs have labels, unless all runs ended within the first epoch.
    let epoch = |epoch: &f64| match epoch.fract() == 0.0 || last < 1.0 {
        true => epoch.to_string(),
        false => String::new(),
    };
    chart
        .configure_mesh()
        .x_desc("epoch")
        .y_desc(name)
        .x_labels(11)
        .y_labels(8)
        .x_label_formatter(&epoch)
        .axis_desc_style(("sans-serif", 15, &TEXT))
        .label_style(("sans-serif", 13, &TEXT))
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(TEXT)
        .draw()?;
    for (index, run) in runs.iter().enumerate() {
        let line = stroke(index, runs.len());
        let thin = line.color.stroke_width(line.stroke_width / 2);
        chart.draw_series(DashedLineSeries::new(points(run, train), 6, 5, thin))?;
        chart.draw_series(LineSeries::new(points(run, test), line))?;
        if run.records.len() <= MOST_DOTS {
            let dot = |point| Circle::new(point, 2 + line.stroke_width / 2, line.color.filled());
            chart.draw_series(points(run, test).map(dot))?;
        }
    }
    Ok(())
}

/// The points of a run's curve. The point of an epoch lies at its end, which comes earlier for an interrupted epoch.
fn points(run: &FinishedRun, measure: Measure) -> impl Iterator<Item = (f64, f64)> + Clone {
    let ends = run.records.iter().scan(0.0, move |end, record| {
        *end += record.part;
        Some((*end, measure(record)))
    });
    ends.filter(|(_, value)| value.is_finite())
}

/// Draws a line for each run, then the meaning of solid and dashed lines.
fn draw_legend(area: &Area<'_>, runs: &[FinishedRun]) -> Result<(), Failure> {
    let middle = |line: usize| (LEGEND_LINE as usize * line + LEGEND_LINE as usize / 2) as i32;
    let label = |label: &str, x: i32, y: i32| {
        area.draw(&text(&shortened(label), (x.into(), y.into()), HPos::Left, 14, &TEXT))
    };
    let (begin, end) = (LEGEND_LEFT, LEGEND_LEFT + 36);
    for (index, run) in runs.iter().enumerate() {
        let y = middle(index);
        area.draw(&PathElement::new([(begin, y), (end, y)], stroke(index, runs.len())))?;
        label(&format!("{} {}", run.name, run.devices), end + 10, y)?;
    }
    let y = middle(runs.len());
    area.draw(&PathElement::new([(begin, y), (end, y)], TEXT.stroke_width(3)))?;
    label("test images, after the epoch", end + 10, y)?;
    let begin = begin + 280;
    for dash in 0..4 {
        let begin = begin + 10 * dash;
        area.draw(&PathElement::new([(begin, y), (begin + 6, y)], TEXT.stroke_width(2)))?;
    }
    label("training images, during the epoch", begin + 46, y)?;
    Ok(())
}

/// The line of a run: wide for the first run, and narrower for each run drawn over it.
fn stroke(index: usize, runs: usize) -> ShapeStyle {
    let above = runs - 1 - index;
    let width = 2 + 8 * above / runs.max(4);
    PALETTE[index % PALETTE.len()].stroke_width(width as u32)
}

/// The range of an axis: from a little below the lowest value to a little above the highest.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let finite = values.filter(|value| value.is_finite());
    let Some((low, high)) = finite.minmax_by(f64::total_cmp).into_option() else {
        return (0.0, 1.0);
    };
    // If all values are equal, the axis still needs a length.
    let room = (0.06 * (high - low)).max(0.01);
    ((low - room).max(0.0), high + room)
}

/// Cuts the end of a text that does not fit.
fn shortened(text: &str) -> String {
    if text.chars().count() <= LONGEST_TEXT {
        return text.to_owned();
    }
    text.chars().take(LONGEST_TEXT - 1).chain(['…']).collect()
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

    #[test]
    fn every_run_is_named_and_text_is_escaped() {
        let runs = [run("first", vec![epoch(1.0, 0.5)]), run("second", vec![])];
        let svg = draw("LeNet & co", &runs).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for text in ["first", "second", "&lt;1 core&gt;", "LeNet &amp; co", "accuracy", "loss"] {
            assert!(svg.contains(text), "{text} is missing");
        }
    }

    #[test]
    fn as_many_runs_as_a_program_makes_are_told_apart_where_they_coincide() {
        for runs in 1..=6 {
            let strokes: Vec<_> = (0..runs).map(|index| stroke(index, runs)).collect();
            for (below, above) in strokes.iter().zip(&strokes[1..]) {
                assert!(below.stroke_width > above.stroke_width, "{runs} runs");
            }
            let mut colours: Vec<_> = strokes.iter().map(|stroke| stroke.color.rgb()).collect();
            colours.sort_unstable();
            colours.dedup();
            assert_eq!(colours.len(), runs);
        }
    }

    #[test]
    fn numbers_that_cannot_be_drawn_are_left_out() {
        let records = vec![epoch(1.0, f64::NAN), epoch(1.0, 0.5), epoch(0.25, f64::INFINITY)];
        let run = run("one", records);
        let drawn: Vec<_> = points(&run, |record| record.test_loss).collect();
        assert_eq!(drawn, [(2.0, 0.5)]);
        assert!(!draw("title", &[run]).unwrap().contains("NaN"));
        draw("nothing at all", &[]).unwrap();
    }
}

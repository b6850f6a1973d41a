//! Curves in panels. Runs that compute the same have the same curves, so a curve should be thinner than the curves below it.

use std::collections::BTreeMap;

use crate::axis::Axis;
use crate::svg::{Anchor, GAP, Heading, LINE, Look, Place, Svg, width};

/// The height of the area of curves.
const PLOT: f64 = 186.0;
/// The space between an axis and the first and last point.
const INSET: f64 = 10.0;
/// A curve with more points has no marks.
const MOST_MARKS: usize = 30;
/// The widest sample of a curve in the legend.
const WIDEST: f64 = 4.0;

/// A curve of a series.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The name in the legend. Curves of one series in several panels have one name.
    pub name: String,
    /// The number of the series. `None` is a line to compare the series with.
    pub series: Option<usize>,
    /// The width in pixels.
    pub width: f64,
    /// The points: a value of each axis, and a tooltip. Points that are not finite are left out.
    pub points: Vec<(f64, f64, String)>,
}

/// Curves with common axes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The title above the panel.
    pub title: String,
    /// The axis to the right.
    pub x: Axis,
    /// The axis up.
    pub y: Axis,
    /// The curves, in the order in which they are drawn.
    pub curves: Vec<Curve>,
}

/// Rows of panels with one legend.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The words of the picture.
    pub heading: Heading,
    /// The rows, from top to bottom.
    pub rows: Vec<Vec<Panel>>,
}

/// The width of a curve: wide for the first series, and narrower for each series that is drawn over it.
pub fn stroke(index: usize, series: usize) -> f64 {
    let above = series.saturating_sub(1 + index);
    2.0 + (8.0 * above as f64 / series.max(4) as f64).floor()
}

impl Chart {
    /// Draws the picture.
    pub fn svg(&self, place: Place) -> String {
        let mut svg = Svg::new(place, &self.heading);
        // The first curve of each series has its name.
        let mut series = BTreeMap::new();
        for curve in self.rows.iter().flatten().flat_map(|panel| &panel.curves) {
            series.entry(curve.series.unwrap_or(usize::MAX)).or_insert(curve);
        }
        let legend: Vec<_> = series.into_values().map(|it| (it, it.name.clone())).collect();
        let mut top = svg.legend(&legend, |svg, curve, (x, y)| {
            let (look, end) = (Look::of(curve.series), (x + Svg::SAMPLE, y));
            svg.curve(&look.class, curve.width.min(WIDEST), look.dashes, &[(x, y), end]);
            svg.mark(&look, (x + Svg::SAMPLE / 2.0, y), "");
        });
        for row in &self.rows {
            let share = (svg.width() + 2.0 * GAP) / row.len() as f64;
            let ends = row.iter().enumerate().map(|(column, panel)| {
                let left = column as f64 * share;
                panel.draw(&mut svg, (left, left + share - 2.0 * GAP), top)
            });
            top = ends.fold(top, f64::max);
        }
        svg.finish(top)
    }
}

impl Panel {
    /// Draws the panel between two edges, from `top` on. Returns the lower end.
    fn draw(&self, svg: &mut Svg, (edge, right): (f64, f64), top: f64) -> f64 {
        let Self { title, x: along, y: up, curves } = self;
        let left = edge + up.ticks.iter().map(|(_, text)| width(text)).fold(0.0, f64::max) + GAP;
        let room = (right - edge) * 0.9;
        let below = svg.paragraph("label strong", (edge, top), room, title);
        let ceiling = svg.paragraph("label quiet", (edge, below), room, &up.name) + GAP;
        let floor = ceiling + PLOT;
        let x = |value| left + INSET + along.place(value) * (right - left - 2.0 * INSET);
        let y = |value| floor - up.place(value) * PLOT;
        for (value, text) in &up.ticks {
            svg.line("grid", (left, y(*value)), (right, y(*value)));
            svg.text("label", (left - GAP, y(*value)), Anchor::End, text);
        }
        svg.line("axis", (left, floor), (right, floor));
        let mut free = edge;
        for (value, text) in &along.ticks {
            let half = width(text) / 2.0;
            let middle = x(*value).min(svg.width() - half);
            svg.line("axis", (x(*value), floor), (x(*value), floor + 4.0));
            // Numbers that would touch are left out.
            if middle - half >= free {
                svg.text("label", (middle, floor + LINE * 0.75), Anchor::Middle, text);
                free = middle + half + GAP;
            }
        }
        svg.text("label quiet", (right, floor + LINE * 1.75), Anchor::End, &along.name);
        let drawn = curves.iter().map(|Curve { series, width, points, .. }| {
            let placed = points.iter().map(|(across, high, text)| ((x(*across), y(*high)), text));
            let finite = placed.filter(|((x, y), _)| x.is_finite() && y.is_finite());
            (Look::of(*series), width, points.len() <= MOST_MARKS, finite.collect::<Vec<_>>())
        });
        let drawn = drawn.collect::<Vec<_>>();
        for (look, width, _, points) in &drawn {
            let places: Vec<_> = points.iter().map(|(place, _)| *place).collect();
            svg.curve(&look.class, **width, look.dashes, &places);
        }
        for (look, .., points) in drawn.iter().filter(|(_, _, has_marks, _)| *has_marks) {
            points.iter().for_each(|(place, tooltip)| svg.mark(look, *place, tooltip));
        }
        floor + LINE * 2.5
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests as room;

    fn chart(series: usize, points: &[f64]) -> Chart {
        let placed = (1..).zip(points).map(|(x, y)| (f64::from(x), *y, "it".to_owned()));
        let curve = |index| Curve {
            name: format!("run {index} {}", "of a long name ".repeat(index)),
            series: Some(index),
            width: stroke(index, series),
            points: placed.clone().collect(),
        };
        let panel = |title: &str| Panel {
            title: title.to_owned(),
            x: Axis::counting("epoch", points.len() as f64, 10),
            y: Axis::around("loss", points.iter().copied(), 5),
            curves: (0..series).map(curve).collect(),
        };
        let heading = Heading { title: "title".to_owned(), ..Heading::default() };
        let rows = vec![vec![panel("left"), panel("right of many words ".repeat(9).as_str())]];
        Chart { heading, rows }
    }

    #[test]
    fn curves_have_points_with_marks_and_a_name() {
        for (place, points) in [
            (Place::Page, vec![0.1, 0.2, 0.3]),
            (Place::File, vec![1_234_567.0, 3e30]),
            (Place::File, vec![0.5, f64::NAN, 0.7, f64::INFINITY]),
            (Place::File, (0..100).map(f64::from).collect()),
            (Place::Page, vec![]),
        ] {
            let svg = chart(8, &points).svg(place);
            room::check(&svg);
            let finite = points.iter().filter(|it| it.is_finite()).count();
            let marks = if points.len() > MOST_MARKS { 0 } else { finite };
            assert_eq!(room::count(&svg, "<path"), 8 + 2 * 8 * marks, "{points:?}");
            assert_eq!(svg.matches("<title>it</title>").count(), 2 * 8 * marks, "{points:?}");
            let names = room::texts(&svg).into_iter().filter(|text| text.starts_with("run "));
            assert_eq!(names.count(), 8);
        }
    }

    #[test]
    fn curves_that_coincide_are_all_visible() {
        for series in 1..=9 {
            let widths: Vec<f64> = (0..series).map(|index| stroke(index, series)).collect();
            let falls = widths.windows(2).take(4).all(|pair| pair[0] >= pair[1]);
            assert!(falls && widths[0] <= 10.0 && *widths.last().unwrap() == 2.0, "{widths:?}");
        }
        let six = [0, 1, 2, 3, 4, 5].map(|index| stroke(index, 6));
        assert_eq!(six, [8.0, 7.0, 6.0, 4.0, 3.0, 2.0]);
    }
}

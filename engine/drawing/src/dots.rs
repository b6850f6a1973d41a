//! Numbers as dots, in rows that are named.

use crate::axis::Axis;
use crate::svg::{Anchor, GAP, Heading, LINE, Look, Place, Svg, shortened, width};

/// The height of a dot's line.
const DOT: f64 = 15.0;

/// A number, and the range in which it was measured.
#[derive(Clone, Debug)]
pub struct Dot {
    /// The lowest value, the number, and the highest value.
    pub range: [f64; 3],
    /// The number as text.
    pub text: String,
}

/// Rows of dots along one axis. Every row has a line for each series.
#[derive(Clone, Debug)]
pub struct Dots {
    /// The words of the picture.
    pub heading: Heading,
    /// The axis.
    pub axis: Axis,
    /// A value that the dots are compared with, and a text above it.
    pub reference: (f64, &'static str),
    /// The names of the series.
    pub series: Vec<String>,
    /// The rows: a name, and the dots of all series.
    pub rows: Vec<(String, Vec<Dot>)>,
}

impl Dots {
    /// Draws the picture.
    pub fn svg(&self, place: Place) -> String {
        let Self { heading, axis, reference: (compared, above), series, rows } = self;
        let mut svg = Svg::new(place, heading);
        let entries: Vec<(usize, String)> = series.iter().cloned().enumerate().collect();
        let top = LINE
            + svg.legend(&entries, |svg, &series, (x, y)| {
                svg.mark(&Look::of(series), (x + Svg::SAMPLE / 2.0, y), "");
            });
        let row = LINE + GAP / 2.0 + DOT * series.len() as f64;
        let bottom = top + row * rows.len() as f64;
        let dots = rows.iter().flat_map(|(_, dots)| dots);
        let numbers = dots.map(|dot| width(&dot.text)).fold(0.0, f64::max) + GAP;
        // A mark at the end of the axis needs room.
        let (left, right) = (2.0 * GAP, svg.width());
        let x = |value| left + axis.place(value) * (right - numbers - left);
        for (value, text) in &axis.ticks {
            svg.line("grid", (x(*value), top), (x(*value), bottom));
            svg.text("label", (x(*value), bottom + LINE * 0.6), Anchor::Middle, text);
        }
        svg.line("axis", (x(*compared), top), (x(*compared), bottom));
        let at = x(*compared).min(svg.width() - width(above) / 2.0);
        svg.text("label", (at, top - LINE / 2.0), Anchor::Middle, above);
        svg.text("label quiet", (right, bottom + LINE * 1.6), Anchor::End, &axis.name);
        let tops = (0..rows.len()).map(|index| top + row * index as f64);
        for (top, (_, dots)) in tops.clone().zip(rows) {
            for (index, (Dot { range: [low, value, high], text }, name)) in
                dots.iter().zip(series).enumerate()
            {
                let (look, y) = (Look::of(index), top + LINE + DOT * (index as f64 + 0.5));
                if low < high {
                    svg.curve(&look.class, 3.0, "none", &[(x(*low), y), (x(*high), y)]);
                }
                svg.mark(&look, (x(*value), y), &format!("{name}: {text}"));
                svg.text("label", (right, y), Anchor::End, text);
            }
        }
        for (top, (name, _)) in tops.zip(rows) {
            let name = shortened(name, svg.width());
            svg.text("label on-lines", (0.0, top + LINE / 2.0), Anchor::Start, name);
        }
        svg.finish(bottom + LINE * 2.3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests as room;

    #[test]
    fn every_number_has_a_dot_in_its_row() {
        let dot = |value: f64| Dot { range: [value; 3], text: format!("{value:.3}") };
        let wide = Dot { range: [0.2, 0.3, 0.9], text: "0.300".to_owned() };
        let rows = vec![
            ("first".to_owned(), vec![dot(0.5), wide]),
            ("a name ".repeat(40), vec![dot(1.0), dot(0.0)]),
        ];
        for place in [Place::Page, Place::File] {
            let (axis, reference) =
                (Axis::linear("ratio", 0.0, 1.0, 4), (1.0, "as good as another program"));
            let series = vec!["one machine".to_owned(), "another".to_owned()];
            let heading = Heading::default();
            let dots = Dots { heading, axis, reference, series, rows: rows.clone() };
            let svg = dots.svg(place);
            room::check(&svg);
            // Four numbers, and a mark of each series in the legend.
            assert_eq!(room::count(&svg, "<path"), 2 + 4);
            assert!(svg.contains("<title>another: 0.000</title>"), "{svg}");
            assert_eq!(svg.matches("stroke-width=\"3\"").count(), 1, "one number has a range");
        }
    }
}

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

/// Rows of dots in columns. Every column has an axis, and every row has a line for each series.
#[derive(Clone, Debug)]
pub struct Dots {
    /// The words of the picture.
    pub heading: Heading,
    /// The columns, each with the values that are compared with: a text above the axis.
    pub columns: Vec<(Axis, Option<(f64, &'static str)>)>,
    /// The names of the series.
    pub series: Vec<String>,
    /// The rows: a name, and for each column the dots of all series.
    pub rows: Vec<(String, Vec<Vec<Option<Dot>>>)>,
}

impl Dots {
    /// Draws the picture.
    pub fn svg(&self, place: Place) -> String {
        let mut svg = Svg::new(place, &self.heading);
        let series: Vec<(usize, String)> = self.series.iter().cloned().enumerate().collect();
        let top = svg.legend(&series, |svg, &series, (x, y)| {
            svg.mark(&Look::of(series), (x + Svg::SAMPLE / 2.0, y), "");
        });
        let top = top + if self.columns.iter().any(|it| it.1.is_some()) { LINE } else { 0.0 };
        let row = LINE + GAP / 2.0 + DOT * self.series.len() as f64;
        let bottom = top + row * self.rows.len() as f64;
        let dots = self.rows.iter().flat_map(|(_, columns)| columns.iter().flatten().flatten());
        let numbers = dots.map(|dot| width(&dot.text)).fold(0.0, f64::max) + GAP;
        let share = (svg.width() + 2.0 * GAP) / self.columns.len() as f64;
        for (column, (axis, reference)) in self.columns.iter().enumerate() {
            // A mark at the end of the axis needs room.
            let left = column as f64 * share + 2.0 * GAP;
            let right = left + share - 4.0 * GAP;
            let x = |value| left + axis.place(value) * (right - numbers - left);
            for (value, text) in &axis.ticks {
                svg.line("grid", (x(*value), top), (x(*value), bottom));
                svg.text("label", (x(*value), bottom + LINE * 0.6), Anchor::Middle, text);
            }
            if let Some((value, text)) = reference {
                svg.line("axis", (x(*value), top), (x(*value), bottom));
                let at = x(*value).min(svg.width() - width(text) / 2.0);
                svg.text("label", (at, top - LINE / 2.0), Anchor::Middle, text);
            }
            svg.text("label quiet", (right, bottom + LINE * 1.6), Anchor::End, &axis.name);
            for (index, (_, columns)) in self.rows.iter().enumerate() {
                for (series, dot) in columns.get(column).into_iter().flatten().enumerate() {
                    let Some(Dot { range: [low, value, high], text }) = dot else { continue };
                    let look = Look::of(series);
                    let y = top + row * index as f64 + LINE + DOT * (series as f64 + 0.5);
                    if low < high {
                        svg.curve(&look.class, 3.0, "none", &[(x(*low), y), (x(*high), y)]);
                    }
                    let tooltip = self.series.get(series).map_or("", String::as_str);
                    svg.mark(&look, (x(*value), y), &format!("{tooltip}: {text}"));
                    svg.text("label", (right, y), Anchor::End, text);
                }
            }
        }
        for (index, (name, _)) in self.rows.iter().enumerate() {
            let (name, y) = (shortened(name, svg.width()), top + row * index as f64);
            svg.text("label on-lines", (0.0, y + LINE / 2.0), Anchor::Start, name);
        }
        svg.finish(bottom + LINE * 2.3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests as room;

    #[test]
    fn every_number_has_a_dot_in_the_column_of_its_row() {
        let dot = |value: f64| Some(Dot { range: [value; 3], text: format!("{value:.3}") });
        let wide = Some(Dot { range: [0.2, 0.3, 0.9], text: "0.300".to_owned() });
        let rows = vec![
            ("first".to_owned(), vec![vec![dot(0.5), wide], vec![dot(2.0), None]]),
            ("a name ".repeat(40), vec![vec![dot(1.0), dot(0.0)], vec![dot(0.0), dot(3.0)]]),
        ];
        for place in [Place::Page, Place::File] {
            let columns = vec![
                (Axis::linear("accuracy", 0.0, 1.0, 4), Some((1.0, "as good as another program"))),
                (Axis::linear("loss", 0.0, 3.0, 4), None),
            ];
            let series = vec!["test images".to_owned(), "training images".to_owned()];
            let dots = Dots { heading: Heading::default(), columns, series, rows: rows.clone() };
            let svg = dots.svg(place);
            room::check(&svg);
            // Seven numbers, and a mark of each series in the legend.
            assert_eq!(room::count(&svg, "<path"), 2 + 7);
            assert!(svg.contains("<title>training images: 3.000</title>"), "{svg}");
            assert_eq!(svg.matches("stroke-width=\"3\"").count(), 1, "one number has a range");
        }
    }
}

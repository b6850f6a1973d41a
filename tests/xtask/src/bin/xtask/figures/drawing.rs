//! Lines and words as SVG that stands inside a page.
//!
//! Everything is drawn in `currentColor`, so it follows the theme; `book/theme/course.css` gives the classes
//! `series-1`, `series-2`, … their colours. There are no ids: printed, all chapters are one page.

use std::fmt::{Display, Write as _};

use xtask::html::escaped;

/// Wide enough to be read on a telephone, where it is drawn smaller.
pub(super) const WIDTH: f64 = 480.0;

#[derive(Debug)]
pub(super) struct Drawing {
    height: f64,
    title: String,
    body: String,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Drawing {
    /// An empty one; the title is for those who cannot see it.
    pub(super) fn new(height: f64, title: impl Display) -> Self {
        Self { height, title: escaped(&title.to_string()), body: String::new() }
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.add(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" \
             stroke=\"currentColor\"/>"
        ));
    }

    pub(super) fn path(&mut self, class: &str, width: f64, points: &[(f64, f64)]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.add(format_args!(
            "<polyline class=\"{class}\" points=\"{}\" fill=\"none\" stroke=\"currentColor\" \
             stroke-width=\"{width}\" stroke-linejoin=\"round\"/>",
            points.join(" ")
        ));
    }

    pub(super) fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: impl Display) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y) = at;
        self.add(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" \
             fill=\"currentColor\">{}</text>",
            escaped(&text.to_string())
        ));
    }

    /// A mark of its own shape for each series, so that colours are not needed to tell them apart.
    pub(super) fn mark(&mut self, series: usize, (x, y): (f64, f64)) {
        const R: f64 = 4.0;
        let class = series_class(series);
        match series % 5 {
            0 => self.add(format_args!(
                "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{R}\" fill=\"currentColor\"/>"
            )),
            1 => self.polygon(&class, &[(x - R, y - R), (x + R, y - R), (x + R, y + R), (x - R, y + R)]),
            2 => self.polygon(&class, &[(x, y - R - 1.0), (x + R + 1.0, y + R), (x - R - 1.0, y + R)]),
            3 => self.polygon(
                &class,
                &[(x, y - R - 1.5), (x + R + 1.5, y), (x, y + R + 1.5), (x - R - 1.5, y)],
            ),
            _ => self.line(&format!("{class} bar"), (x - R - 1.0, y), (x + R + 1.0, y)),
        }
    }

    /// Draws a bar with a tooltip. A label of the class `on-bar` can be read on the bar.
    pub(super) fn bar(&mut self, class: &str, at: (f64, f64), size: (f64, f64), tooltip: &str) {
        self.filled(class, at, size, 0.45, tooltip);
    }

    /// Draws a bar that is paler than [`bar`](Self::bar).
    pub(super) fn pale_bar(
        &mut self,
        class: &str,
        at: (f64, f64),
        size: (f64, f64),
        tooltip: &str,
    ) {
        self.filled(class, at, size, 0.12, tooltip);
    }

    fn filled(
        &mut self,
        class: &str,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        opacity: f64,
        tooltip: &str,
    ) {
        let (width, tooltip) = (width.max(0.5), escaped(tooltip));
        self.add(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"currentColor\" fill-opacity=\"{opacity}\" stroke=\"currentColor\" stroke-width=\"0.5\">\
             <title>{tooltip}</title></rect>"
        ));
    }

    fn polygon(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.add(format_args!(
            "<polygon class=\"{class}\" points=\"{}\" fill=\"currentColor\"/>",
            points.join(" ")
        ));
    }

    fn add(&mut self, element: impl Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.body, "{element}");
    }

    /// The whole drawing. It has no blank line: Markdown would take it to end there.
    pub(super) fn finish(self) -> String {
        let Self { height, title, body } = self;
        format!(
            "<svg class=\"measured\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-label=\"{title}\" font-size=\"13\" stroke-width=\"1\">\n{body}</svg>\n"
        )
    }
}

pub(super) fn series_class(series: usize) -> String {
    format!("series-{}", series + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_nothing_is_blank() {
        let mut drawing = Drawing::new(10.0, "a \"b\" & c");
        drawing.text("label", (1.0, 2.0), Anchor::Start, "x < y");
        drawing.bar("series-1", (0.0, 0.0), (1.0, 1.0), "a < b");
        let svg = drawing.finish();
        assert!(svg.contains("aria-label=\"a &quot;b&quot; &amp; c\""), "{svg}");
        assert!(svg.contains(">x &lt; y</text>"), "{svg}");
        assert!(svg.contains("><title>a &lt; b</title></rect>"), "{svg}");
        assert!(svg.lines().all(|line| !line.is_empty()), "{svg}");
    }
}

//! Axes, a legend, and curves with a mark at each point.

use super::drawing::{Anchor, Drawing, WIDTH, series_class};

/// Room for the numbers on the left.
const LEFT: f64 = 46.0;
const RIGHT: f64 = WIDTH - 12.0;
/// How much wider a letter of the legend is taken to be than most are.
const LETTER: f64 = 7.2;

/// A place on an axis, from 0 to 1, and what is written there.
pub(super) type Tick = (f64, String);

pub(super) struct Curve {
    pub(super) name: String,
    /// From 0 to 1, along and up.
    pub(super) points: Vec<(f64, f64)>,
    /// Curves that coincide are drawn over each other, the later thinner.
    pub(super) width: f64,
}

pub(super) struct Panel {
    pub(super) title: String,
    pub(super) along: (Vec<Tick>, &'static str),
    pub(super) up: (Vec<Tick>, &'static str),
    pub(super) curves: Vec<Curve>,
}

/// The height of a panel with all that is written around it.
pub(super) const PANEL: f64 = 262.0;
const PLOT: f64 = 186.0;

/// Says which mark is whose; returns how high that is.
pub(super) fn legend(drawing: &mut Drawing, names: &[String]) -> f64 {
    let (mut x, mut y) = (12.0, 16.0);
    for (series, name) in names.iter().enumerate() {
        let width = 28.0 + LETTER * name.chars().count() as f64;
        if x > 12.0 && x + width > WIDTH {
            (x, y) = (12.0, y + 20.0);
        }
        drawing.mark(series, (x, y - 4.0));
        drawing.text("label", (x + 11.0, y), Anchor::Start, name);
        x += width;
    }
    y + 20.0
}

/// How high a legend is, found out by drawing one: a drawing has to know its height before it begins.
pub(super) fn legend_height(names: &[String]) -> f64 {
    legend(&mut Drawing::new(0.0, ""), names)
}

pub(super) fn panel(drawing: &mut Drawing, top: f64, panel: &Panel) {
    let bottom = top + 34.0 + PLOT;
    let place = |(along, up): (f64, f64)| (LEFT + along * (RIGHT - LEFT), bottom - up * PLOT);
    drawing.text("label strong", (LEFT, top + 12.0), Anchor::Start, &panel.title);
    drawing.text("label quiet", (LEFT, top + 28.0), Anchor::Start, panel.up.1);
    for (at, text) in &panel.up.0 {
        let (x, y) = place((0.0, *at));
        drawing.line("grid", (x, y), (RIGHT, y));
        drawing.text("label", (x - 6.0, y + 4.5), Anchor::End, text);
    }
    for (at, text) in &panel.along.0 {
        let (x, y) = place((*at, 0.0));
        drawing.line("axis", (x, y), (x, y + 4.0));
        drawing.text("label", (x, y + 18.0), Anchor::Middle, text);
    }
    drawing.line("axis", (LEFT, bottom), (RIGHT, bottom));
    drawing.text("label quiet", (RIGHT, bottom + 34.0), Anchor::End, panel.along.1);
    for (series, curve) in panel.curves.iter().enumerate() {
        let points: Vec<_> = curve.points.iter().copied().map(place).collect();
        drawing.path(&series_class(series), curve.width, &points);
    }
    for (series, curve) in panel.curves.iter().enumerate() {
        for point in curve.points.iter().copied().map(place) {
            drawing.mark(series, point);
        }
    }
}

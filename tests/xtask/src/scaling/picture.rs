//! Curves as SVG: devices go right, images a second go up, both by factors.
//!
//! Classes, not colours: the book's style sheets colour this picture and the chart that scripts draw alike.

use super::{Curve, Panel};

const WIDTH: f64 = 440.0;
/// Room for the numbers on the left, and for the curves' names on the right.
const LEFT: f64 = 44.0;
const RIGHT: f64 = WIDTH - 48.0;
/// What the panel shows, and what goes up, stand above it.
const HEAD: f64 = 44.0;
const PLOT: f64 = 190.0;
const AXIS: f64 = 44.0;
/// From one name to the next.
const NAME: f64 = 15.0;

/// The order in which curves are drawn.
const WIDEST: [usize; 4] = [2, 0, 1, 3];

/// The picture. It becomes part of a page, where an empty line would end it: there is none.
pub fn picture(panels: &[&Panel]) -> String {
    let name = |panel: &&Panel| format!("{}; {}", title(panel), panel.link);
    let names: Vec<String> = panels.iter().map(name).collect();
    let mut lines = vec![format!(
        "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"Times as many images a second as one device: {}\">",
        panels.len() as f64 * (HEAD + PLOT + AXIS),
        names.join("; ")
    )];
    for (index, panel) in panels.iter().enumerate() {
        lines.extend(Axes::of(panel, index as f64 * (HEAD + PLOT + AXIS) + HEAD).draw(panel));
    }
    lines.push("</svg>\n".to_owned());
    lines.join("\n")
}

/// `ResNet-18 of width 64, 256 images each`
fn title(panel: &Panel) -> String {
    let (images, whose) = panel.batch.split_once(' ').unwrap_or((&panel.batch, ""));
    format!("{}, {images} images {whose}", panel.name)
}

/// Where a panel is, and what its edges are worth.
struct Axes {
    top: f64,
    /// The most devices, and so the most that they can be worth.
    most: f64,
    /// Worth of the lower edge: a power of ten.
    low: f64,
}

impl Axes {
    fn of(panel: &Panel, top: f64) -> Self {
        let all = panel.with_overlap.iter().flat_map(|curve| &curve.speed_up);
        let least = all.map(|times| times.value()).fold(1.0, f64::min);
        let most = panel.devices.iter().copied().max().unwrap_or(1).max(2) as f64;
        Self { top, most, low: 10f64.powf(least.log10().floor()) }
    }

    fn x(&self, devices: f64) -> f64 {
        tenths(LEFT + devices.ln() / self.most.ln() * (RIGHT - LEFT))
    }

    fn y(&self, times: f64) -> f64 {
        tenths(self.top + (self.most / times).ln() / (self.most / self.low).ln() * PLOT)
    }

    fn draw(&self, panel: &Panel) -> Vec<String> {
        let Self { top, most, low } = *self;
        let bottom = top + PLOT;
        let mut lines = vec![
            format!(r#"<text class="strong" x="0" y="{}">{}</text>"#, top - 28.0, title(panel)),
            format!(
                r#"<text class="small" x="0" y="{}">times one device's images a second</text>"#,
                top - 11.0
            ),
        ];
        let mut times = low;
        while times <= most {
            let (y, number) = (self.y(times), spaced(times));
            lines.push(format!(r#"<path class="tick" d="M{LEFT} {y}H{RIGHT}"/>"#));
            let (x, y) = (LEFT - 6.0, tenths(y + 4.0));
            lines.push(format!(
                r#"<text class="small" x="{x}" y="{y}" text-anchor="end">{number}</text>"#
            ));
            times *= 10.0;
        }
        for devices in panel.devices.iter().step_by(2) {
            let x = self.x(*devices as f64);
            lines.push(format!(r#"<path class="tick" d="M{x} {bottom}v5"/>"#));
            let (number, y) = (spaced(*devices as f64), bottom + 19.0);
            lines.push(format!(
                r#"<text class="small" x="{x}" y="{y}" text-anchor="middle">{number}</text>"#
            ));
        }
        lines.push(format!(
            r#"<text class="small" x="{}" y="{}" text-anchor="middle">devices</text>"#,
            (LEFT + RIGHT) / 2.0,
            bottom + 34.0
        ));
        lines.push(format!(r#"<path class="ideal" d="M{LEFT} {}L{RIGHT} {top}"/>"#, self.y(1.0)));
        let series = || panel.with_overlap.iter().zip(1..);
        // The widest below.
        for (curve, series) in WIDEST.iter().filter_map(|&index| series().nth(index)) {
            lines.push(format!(
                r#"<path class="curve series-{series}" d="{}"/>"#,
                self.path(panel, curve)
            ));
        }
        let end = |curve: &Curve| curve.speed_up.last().map_or(1.0, |times| times.value());
        let mut names: Vec<(f64, String, String)> =
            vec![(top, "name".to_owned(), "ideal".to_owned())];
        names.extend(series().map(|(curve, series)| {
            (self.y(end(curve)), format!("name series-{series}"), curve.way.clone())
        }));
        for (y, class, name) in apart(names, bottom) {
            let (x, y) = (RIGHT + 6.0, tenths(y + 4.0));
            lines.push(format!(r#"<text class="{class}" x="{x}" y="{y}">{name}</text>"#));
        }
        lines
    }

    fn path(&self, panel: &Panel, curve: &Curve) -> String {
        let points = panel.devices.iter().zip(&curve.speed_up);
        let point = |(devices, times): (&usize, &crate::number::Rounded)| {
            format!("{} {}", self.x(*devices as f64), self.y(times.value()))
        };
        format!("M{}", points.map(point).collect::<Vec<_>>().join("L"))
    }
}

/// Moves names so far that none stands on another, and none below the floor.
fn apart(mut names: Vec<(f64, String, String)>, floor: f64) -> Vec<(f64, String, String)> {
    names.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut above = f64::NEG_INFINITY;
    for (y, ..) in &mut names {
        *y = y.max(above + NAME);
        above = *y;
    }
    let mut below = floor + NAME;
    for (y, ..) in names.iter_mut().rev() {
        *y = y.min(below - NAME);
        below = *y;
    }
    names
}

/// With the comma of `1,024`.
fn spaced(number: f64) -> String {
    if number >= 1000.0 {
        harness::report::thousands(number as usize)
    } else {
        crate::number::four_digits(number).to_string()
    }
}

/// A tenth of a pixel is enough.
fn tenths(pixels: f64) -> f64 {
    (pixels * 10.0).round() / 10.0
}

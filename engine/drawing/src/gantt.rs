//! A Gantt chart: bars along a common time axis. A row is the work of a device or of a thread.

use crate::axis::{Axis, short};
use crate::svg::{Anchor, GAP, Heading, LINE, Look, Place, Svg, lines, shortened, width};

/// The height of a lane with its bars, and of the bars.
const LANE: f64 = 18.0;
const BAR: f64 = 16.0;
/// The space between two rows.
const ROW_GAP: f64 = 5.0;
/// The height of rows that do not fit on a screen.
const TALL: f64 = 400.0;

/// The shades of bars: of measurements, and of predictions. Bars of every second chunk are lighter.
pub const SHADES: [[f64; 2]; 2] = [[0.5, 0.22], [0.2, 0.06]];

/// The shade of the time of a lane, behind the bars.
pub const IDLE: f64 = 0.12;

/// A piece of work, drawn as a bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The beginning and the end.
    pub time: (f64, f64),
    /// The text in the bar, drawn if there is room.
    pub label: String,
    /// The name of the work in the tooltip, before the times.
    pub name: String,
    /// The series that gives the bar its colour.
    pub series: usize,
    /// The share of the colour: one of [`SHADES`].
    pub shade: f64,
    /// The share of the lane's height, from the bottom.
    pub height: f64,
}

/// A row of bars.
#[derive(Clone, Debug)]
pub struct Lane {
    /// The bars, by their beginnings.
    pub bars: Vec<Bar>,
    /// The beginning and the end of the lane's time. The lane is idle where it has no bar.
    pub time: (f64, f64),
}

/// The lanes of a device or of a thread.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name at the left.
    pub name: String,
    /// The lanes below each other.
    pub lanes: Vec<Lane>,
    /// A text at the right. It may be empty.
    pub note: String,
}

/// Rows that belong together.
#[derive(Clone, Debug)]
pub struct Group {
    /// The text above the rows. It may be empty.
    pub title: String,
    /// The text above the notes of the rows. It may be empty.
    pub note: String,
    /// The rows.
    pub rows: Vec<Row>,
}

/// The unit of all times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds, shown as milliseconds if there are few.
    Seconds,
    /// Units of time, as in a schedule on paper.
    Units,
}

/// A chart of rows below each other. Time goes from left to right and begins at 0.
#[derive(Clone, Debug)]
pub struct Gantt {
    /// The words of the picture.
    pub heading: Heading,
    /// The meanings of colours and shades: a series, a shade and a text. An entry without a series is idle time.
    pub legend: Vec<((Option<usize>, f64), String)>,
    /// The unit of all times.
    pub unit: Unit,
    /// The rows.
    pub groups: Vec<Group>,
}

impl Gantt {
    /// Draws the picture.
    pub fn svg(&self, place: Place) -> String {
        let rows = || self.groups.iter().flat_map(|group| &group.rows);
        let length = rows().flat_map(|row| &row.lanes).map(|lane| lane.time.1).fold(0.0, f64::max);
        // A chart without time has an empty axis.
        let length = if length > 0.0 && length.is_finite() { length } else { 1.0 };
        let (unit, factor) = match self.unit {
            Unit::Seconds if length < 10.0 => ("ms", 1e3),
            Unit::Seconds => ("s", 1.0),
            Unit::Units => ("units", 1.0),
        };
        let mut svg = Svg::new(place, &self.heading);
        let longest = 0.4 * svg.width();
        let left = GAP + rows().map(|row| width(&row.name)).fold(0.0, f64::max).min(longest);
        let notes = rows().map(|row| width(&row.note)).fold(0.0, f64::max);
        // Half of the last number of the axis may be beyond the axis.
        let right = svg.width() - notes.max(GAP) - GAP;
        let x = |time: f64| left + time.clamp(0.0, length) / length * (right - left);
        let mut top = svg.legend(&self.legend, |svg, &(series, shade), (x, y)| {
            let (class, size) = (Look::of(series).class, (Svg::SAMPLE - GAP, 12.0));
            svg.rect(&class, (x + GAP, y - 6.0), size, shade, "");
        });
        // The title of a group is in front of its note.
        let (end, total) = (svg.width(), svg.width() - GAP);
        let room = |group: &Group| total - width(&group.note);
        let height = |group: &Group| {
            let lanes = |row: &Row| LANE * row.lanes.len() as f64 + ROW_GAP;
            let titles = LINE * lines(&group.title, room(group)).len() as f64;
            titles + group.rows.iter().map(lanes).sum::<f64>() + GAP
        };
        let tall = self.groups.iter().map(height).sum::<f64>();
        let above = (tall > TALL).then_some(top + LINE / 2.0);
        top += if above.is_some() { LINE } else { 0.0 };
        let bottom = top + tall;
        let mut unit_once = format!(" {unit}");
        for (tick, text) in Axis::linear("", 0.0, length * factor, 7).ticks {
            let at = x(tick / factor);
            svg.line("grid", (at, top), (at, bottom));
            let text = text + &std::mem::take(&mut unit_once);
            for y in above.into_iter().chain([bottom + LINE / 2.0]) {
                svg.text("label", (at, y), Anchor::Middle, &text);
            }
        }
        for group in &self.groups {
            svg.text("label quiet", (end, top + LINE / 2.0), Anchor::End, &group.note);
            let mut y = svg.paragraph("label strong", (0.0, top), room(group), &group.title);
            top += height(group);
            for row in &group.rows {
                let below = y + LANE * row.lanes.len() as f64;
                let middle = (y + below) / 2.0;
                let name = shortened(&row.name, longest);
                svg.text("label", (left - GAP, middle), Anchor::End, name);
                svg.text("label", (end, middle), Anchor::End, &row.note);
                for lane in &row.lanes {
                    lane.draw(&mut svg, y + (LANE - BAR) / 2.0, x, (unit, factor));
                    y += LANE;
                }
                y = below + ROW_GAP;
            }
        }
        svg.finish(bottom + LINE)
    }
}

impl Lane {
    /// Draws the bars. A bar that adds less than half a pixel to the bars before it is left out, so that a lane has at most
    /// as many bars as a screen can show.
    fn draw(&self, svg: &mut Svg, top: f64, x: impl Fn(f64) -> f64, (unit, factor): (&str, f64)) {
        let (from, to) = (x(self.time.0), x(self.time.1));
        svg.rect("axis", (from, top), (to - from, BAR), IDLE, "");
        let mut drawn = 0.0;
        for Bar { time: (start, end), label, name, series, shade, height } in &self.bars {
            let begin = x(*start);
            // There is a gap between neighbouring bars.
            let close = (x(*end) - 1.0).max(begin + 1.0);
            if close < drawn + 0.5 || start >= end {
                continue;
            }
            drawn = close;
            let [duration, start] = [end - start, *start].map(|time| short(time * factor));
            let tooltip = format!("{name}: {duration} {unit}, from {start} {unit}");
            let (size, low) = ((close - begin, BAR * height), top + BAR - BAR * height);
            svg.rect(&Look::of(*series).class, (begin, low), size, *shade, &tooltip);
            if close - begin > width(label) {
                let middle = ((begin + close) / 2.0, top + BAR / 2.0);
                svg.text("label on-bar", middle, Anchor::Middle, label);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests as room;

    fn bar(start: f64, end: f64, label: &str) -> Bar {
        let (label, name) = (label.to_owned(), format!("work {label}"));
        Bar { time: (start, end), label, name, series: 1, shade: SHADES[0][0], height: 1.0 }
    }

    fn row(name: &str, lanes: Vec<Vec<Bar>>) -> Row {
        let lanes = lanes.into_iter().map(|bars| Lane { bars, time: (0.0, 0.1) }).collect();
        Row { name: name.to_owned(), lanes, note: "8".to_owned() }
    }

    fn chart(groups: Vec<(&str, Vec<Row>)>) -> Gantt {
        let group = |(title, rows): (&str, Vec<Row>)| {
            let note = if title.is_empty() { "" } else { "peak" };
            Group { title: title.to_owned(), note: note.to_owned(), rows }
        };
        let heading = Heading {
            title: "title".to_owned(),
            doubt: Some("Other programs used the cores.".to_owned()),
            conclusion: "The conclusion.".to_owned(),
        };
        let meanings = ["computing", "waiting", "in the background, which takes many words"];
        let legend = (0..).zip(meanings).map(|(it, text)| ((Some(it), 0.5), text.to_owned()));
        let legend = legend.chain([((None, IDLE), "idle".to_owned())]).collect();
        let groups = groups.into_iter().map(group).collect();
        Gantt { heading, legend, unit: Unit::Seconds, groups }
    }

    #[test]
    fn rows_have_their_names_lanes_and_bars() {
        let bars = || vec![bar(0.0, 0.05, "wide"), bar(0.05, 0.052, "narrow"), bar(0.06, 0.1, "3")];
        let chart = chart(vec![
            ("first", vec![row("stage 0", vec![bars(), bars()]), row("stage 1", vec![bars()])]),
            ("", vec![row("stage 2", vec![bars()])]),
        ]);
        let svg = chart.svg(Place::Page);
        room::check(&svg);
        let texts = room::texts(&svg);
        for text in ["waiting", "first", "peak", "stage 0", "stage 2", "8", "0 ms", "100"] {
            assert!(texts.iter().any(|it| it == text), "{text} is missing in {texts:?}");
        }
        assert!(svg.contains(">wide<") && !svg.contains(">narrow<"), "a label needs room");
        assert!(svg.contains("<title>work narrow: 2 ms, from 50 ms</title>"), "{svg}");
        // Four entries of the legend, and four lanes of three bars on a background.
        assert_eq!(room::count(&svg, "<rect"), 4 + 4 * 4);
    }

    #[test]
    fn long_names_have_room_and_a_tall_chart_has_the_times_at_both_ends() {
        for (rows, times) in [(3, 1), (30, 2)] {
            let (name, title) =
                ("a stage of a name".repeat(rows), "heading of many words ".repeat(20));
            let rows = (0..rows).map(|_| row(&name, vec![vec![bar(0.0, 0.1, "0")]])).collect();
            let svg = chart(vec![(&title, rows)]).svg(Place::File);
            room::check(&svg);
            // A doubt comes before the conclusion.
            let words = ["title", "Other programs used the cores.", "The conclusion."];
            assert_eq!(room::texts(&svg)[..3], words);
            assert!(svg.contains("aria-label=\"title. Other programs"), "{svg}");
            assert_eq!(room::texts(&svg).iter().filter(|text| *text == "100").count(), times);
        }
    }

    #[test]
    fn no_lane_has_more_bars_than_pixels_can_show() {
        let bars = (0..100_000).map(|i| bar(f64::from(i) * 1e-6, f64::from(i + 1) * 1e-6, "x"));
        let svg = chart(vec![("", vec![row("all", vec![bars.collect()])])]).svg(Place::File);
        let bars = room::count(&svg, "<rect");
        assert!((400..2_000).contains(&bars), "{bars}");
        // Without time the axis is empty.
        room::check(&chart(vec![("", vec![])]).svg(Place::File));
        for end in [0.0, -1.0, f64::INFINITY] {
            let lanes = vec![vec![bar(0.0, end, "x")]];
            room::check(&chart(vec![("", vec![row("all", lanes)])]).svg(Place::File));
        }
    }
}

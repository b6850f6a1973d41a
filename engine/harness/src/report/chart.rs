//! A chart of rows as an SVG picture: bars along a common time axis.

use super::svg::{Anchor, GAP, LINE, MARGIN, Svg, WIDTH, lines, shortened, width};
use super::{rounded, seconds};

const RIGHT: f64 = 36.0;
const ROW: f64 = 28.0;
/// The height of a bar.
const BAR: f64 = 22.0;
const BOTTOM: f64 = 36.0;
/// The height of rows that do not fit on a screen.
const TALL: f64 = 400.0;
/// The largest width of the names of rows.
const LONGEST_NAME: f64 = 260.0;
/// The width of a colour in the legend.
const SWATCH: f64 = 14.0;

/// The colour of a bar: the first series of the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Computing, or a forward pass.
    Blue,
    /// Sending and waiting, or a backward pass.
    Orange,
    /// Work in the background, or the gradients of weights.
    Green,
}

/// A piece of work, drawn as a bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The beginning in seconds.
    pub start: f64,
    /// The end in seconds.
    pub end: f64,
    /// The text in the bar, drawn if there is room.
    pub label: String,
    /// The name of the work in the tooltip, before the times.
    pub name: String,
    /// The colour of the bar.
    pub colour: Colour,
}

/// The work of one device or thread, drawn as a row of bars.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name, drawn at the left.
    pub name: String,
    /// The bars, by their beginnings.
    pub bars: Vec<Bar>,
    /// Whether the bars are pale: a prediction next to a measurement.
    pub pale: bool,
}

/// A chart of rows below each other. Time goes from left to right.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The title, drawn at the top in as many lines as needed.
    pub title: String,
    /// What the picture shows, in a sentence below the title.
    pub conclusion: String,
    /// The legend: the meaning of each colour.
    pub legend: Vec<(Colour, String)>,
    /// The length of the time axis in seconds. It begins at 0.
    pub seconds: f64,
    /// The groups of rows, each with a heading if it has one.
    pub groups: Vec<(Option<String>, Vec<Row>)>,
}

/// The length of the time axis is not a positive number.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a chart of {0} s")]
pub struct NoTime(f64);

impl Chart {
    /// Draws the picture.
    pub fn svg(&self) -> Result<String, NoTime> {
        if !self.seconds.is_finite() || self.seconds <= 0.0 {
            return Err(NoTime(self.seconds));
        }
        let rows = || self.groups.iter().flat_map(|(_, rows)| rows);
        let names = rows().map(|row| width(&row.name)).fold(0.0, f64::max).min(LONGEST_NAME);
        let left = MARGIN + names + GAP;
        let x = |time: f64| {
            left + time.clamp(0.0, self.seconds) / self.seconds * (WIDTH - left - RIGHT)
        };
        let mut svg = Svg::default();
        let legend = svg.heading(&self.title, &self.conclusion);
        let ceiling = self.draw_legend(&mut svg, legend) + LINE;
        let headings: Vec<Vec<String>> = self
            .groups
            .iter()
            .map(|(heading, _)| {
                heading.iter().flat_map(|it| lines(it, WIDTH - left - MARGIN)).collect()
            })
            .collect();
        let floor = headings.iter().zip(&self.groups).fold(ceiling, |top, (heading, (_, rows))| {
            top + GAP + LINE * heading.len() as f64 + ROW * rows.len() as f64
        });
        let (unit, factor) = if self.seconds < 10.0 { ("ms", 1e3) } else { ("s", 1.0) };
        // A tall chart has the times at the top, too.
        let above = (floor - ceiling > TALL).then_some(ceiling - LINE / 2.0);
        for tick in ticks(self.seconds * factor, 8) {
            let at = x(tick / factor);
            svg.curve("grid", 1.0, false, &[(at, ceiling), (at, floor + 5.0)]);
            for y in above.into_iter().chain([floor + LINE * 0.75]) {
                svg.text("text", (at, y), Anchor::Middle, &format!("{tick} {unit}"));
            }
        }
        let mut top = ceiling;
        for (heading, (_, rows)) in headings.iter().zip(&self.groups) {
            top += GAP;
            for line in heading {
                svg.text("text", (left, top + LINE / 2.0), Anchor::Start, line);
                top += LINE;
            }
            for row in rows {
                let at = (left - GAP, top + ROW / 2.0);
                svg.text("text", at, Anchor::End, &shortened(&row.name, LONGEST_NAME));
                draw_bars(&mut svg, row, top, x);
                top += ROW;
            }
        }
        Ok(svg.finish(&format!("{}. {}", self.title, self.conclusion), floor + BOTTOM))
    }

    /// Draws the legend from `top`, in as many lines as needed. Returns its lower end.
    fn draw_legend(&self, svg: &mut Svg, top: f64) -> f64 {
        let (mut x, mut y) = (MARGIN, top);
        for (colour, meaning) in &self.legend {
            let entry = SWATCH + GAP + width(meaning);
            if x > MARGIN && x + entry > WIDTH - MARGIN {
                (x, y) = (MARGIN, y + LINE);
            }
            svg.bar(("bar", *colour as usize), (x, y - 6.0), (SWATCH, 12.0), meaning);
            svg.text("text", (x + SWATCH + GAP, y), Anchor::Start, meaning);
            x += entry + 2.0 * GAP;
        }
        y + if self.legend.is_empty() { 0.0 } else { LINE }
    }
}

/// Draws the bars of a row. A bar that adds less than half a pixel to the bars before it is left out, so that a row has
/// at most 2,000 bars.
fn draw_bars(svg: &mut Svg, row: &Row, top: f64, x: impl Fn(f64) -> f64) {
    let kind = if row.pale { "pale" } else { "bar" };
    let mut drawn = 0.0;
    for Bar { start, end, label, name, colour } in &row.bars {
        let begin = x(*start);
        // There is a gap between neighbouring bars.
        let end_at = (x(*end) - 1.0).max(begin + 1.0);
        if end_at < drawn + 0.5 {
            continue;
        }
        drawn = end_at;
        let [duration, start] = [end - start, *start].map(|time| seconds(time * 1e3));
        let tooltip = format!("{name}: {duration} ms, from {start} ms");
        let at = (begin, top + (ROW - BAR) / 2.0);
        svg.bar((kind, *colour as usize), at, (end_at - begin, BAR), &tooltip);
        if end_at - begin > width(label) {
            let middle = ((begin + end_at) / 2.0, top + ROW / 2.0);
            let class = format!("on-{kind}-{}", *colour as usize + 1);
            svg.text(&class, middle, Anchor::Middle, label);
        }
    }
}

/// Returns equally spaced round numbers from 0 to at most `length`, which is positive, with at most `gaps` gaps.
pub fn ticks(length: f64, gaps: u32) -> Vec<f64> {
    let unit = spacing(length, gaps);
    let count = (length / unit) as usize;
    (0..=count).map(|tick| rounded(tick as f64 * unit)).collect()
}

/// Returns the distance between [`ticks`]: 1, 2 or 5 times a power of ten.
pub fn spacing(length: f64, gaps: u32) -> f64 {
    let raw = length / f64::from(gaps);
    let magnitude = 10f64.powf(raw.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    factors.iter().map(|f| f * magnitude).find(|unit| *unit >= raw).unwrap_or(raw)
}

#[cfg(test)]
mod tests {
    use super::super::svg_check::{check, count, texts};
    use super::*;

    fn bar(start: f64, end: f64, label: &str) -> Bar {
        let (label, name) = (label.to_owned(), format!("work {label}"));
        Bar { start, end, label, name, colour: Colour::Orange }
    }

    fn row(name: &str, pale: bool, bars: Vec<Bar>) -> Row {
        Row { name: name.to_owned(), bars, pale }
    }

    fn chart(title: &str, groups: Vec<(Option<String>, Vec<Row>)>) -> Chart {
        let meanings = ["computing", "waiting", "in the background, which takes many words"];
        let colours = [Colour::Blue, Colour::Orange, Colour::Green];
        let legend = colours.into_iter().zip(meanings.map(str::to_owned)).collect();
        let conclusion = "The conclusion & more.".to_owned();
        Chart { title: title.to_owned(), conclusion, legend, seconds: 0.1, groups }
    }

    #[test]
    fn rows_have_their_names_bars_and_headings() {
        let bars = || vec![bar(0.0, 0.05, "wide"), bar(0.05, 0.052, "narrow"), bar(0.06, 0.1, "3")];
        let groups = vec![
            (
                Some("first".to_owned()),
                vec![row("stage 0", true, bars()), row("stage 1", false, bars())],
            ),
            (None, vec![row("stage 2", false, bars())]),
        ];
        let svg = chart("title", groups).svg().unwrap();
        check(&svg);
        for text in ["title", "conclusion &amp; more", "waiting", "first", "stage 0", "100 ms"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert!(svg.contains(">wide<") && !svg.contains(">narrow<"), "a label needs room");
        assert!(svg.contains("<title>work narrow: 2.0 ms, from 50.0 ms</title>"));
        // A bar of the legend for each of three colours, three bars in each row, and the page.
        assert_eq!(count(&svg, "<rect"), 3 + 9 + 1);
        assert_eq!(svg.matches("class=\"pale-2\"").count(), 3, "the bars of the pale row");
    }

    #[test]
    fn a_tall_chart_has_the_times_at_both_ends() {
        for (rows, times) in [(3, 1), (30, 2)] {
            let rows = (0..rows).map(|_| row("stage", false, vec![bar(0.0, 0.1, "0")])).collect();
            let svg = chart("title", vec![(None, rows)]).svg().unwrap();
            assert_eq!(texts(&svg).iter().filter(|text| text.trim() == "100 ms").count(), times);
        }
    }

    #[test]
    fn long_texts_are_whole_and_lie_beside_each_other() {
        let digits = "512-".repeat(90);
        for (title, name) in
            [("word ".repeat(90), "a stage of a name"), (digits, "<script>&\u{1}\"")]
        {
            let rows = |count| vec![row(&name.repeat(count), false, vec![bar(0.0, 0.1, "0")])];
            let heading = Some(format!("heading {}", "of many words ".repeat(20)));
            let mut chart = chart(&title, vec![(heading.clone(), rows(1)), (heading, rows(9))]);
            chart.legend.extend(chart.legend.clone());
            let svg = chart.svg().unwrap();
            check(&svg);
            assert!(!svg.contains("<script"));
            let without_spaces = |text: &str| text.replace(' ', "");
            let shown = without_spaces(&texts(&svg).concat());
            for text in [&title, &chart.conclusion, chart.groups[0].0.as_ref().unwrap()] {
                let text = without_spaces(text).replace('&', "&amp;");
                assert!(shown.contains(&text), "{text} is not whole in {shown}");
            }
        }
    }

    #[test]
    fn no_row_has_more_bars_than_pixels_can_show() {
        let bars = (0..100_000).map(|i| bar(f64::from(i) * 1e-6, f64::from(i + 1) * 1e-6, "x"));
        let svg =
            chart("title", vec![(None, vec![row("all", false, bars.collect())])]).svg().unwrap();
        assert!((800..2_000).contains(&count(&svg, "<rect")), "{}", count(&svg, "<rect"));
    }

    #[test]
    fn without_time_there_is_nothing_to_draw() {
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let chart = Chart { seconds, ..chart("title", Vec::new()) };
            assert!(chart.svg().is_err(), "{seconds}");
        }
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(80.0, 8), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]);
        assert_eq!(ticks(1.0, 8), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        assert_eq!(ticks(1_540.0, 7), [0.0, 500.0, 1_000.0, 1_500.0]);
        let spacing = |length| spacing(length, 5);
        assert_eq!([0.9, 9.0, 24.0, 51.0, 730.0].map(spacing), [0.2, 2.0, 5.0, 20.0, 200.0]);
    }
}

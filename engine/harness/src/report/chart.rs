//! A chart of rows as an SVG picture: bars along a common time axis.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// The colour of text and axes.
pub(super) const TEXT: RGBColor = RGBColor(40, 40, 40);

/// The colour of grid lines.
pub(super) const GRID: RGBColor = RGBColor(225, 225, 225);

/// The width of a picture in pixels.
pub(super) const WIDTH: u32 = 960;

const LEFT: f64 = 150.0;
const RIGHT: f64 = 20.0;
const ROW: f64 = 30.0;
/// The height of a line of the title or of the colour key.
const LINE: f64 = 20.0;
const TOP: f64 = 10.0;
/// The largest number of characters of a line of the title.
const TITLE: usize = 130;
const BOTTOM: f64 = 40.0;

/// The greatest width of a label's character in pixels.
const CHARACTER: f64 = 7.0;

/// Okabe and Ito's palette, which colour-blind readers can distinguish.
pub(super) const PALETTE: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
];

/// The colour of a bar: the first colours of the palette.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Computing, or a forward pass.
    Blue,
    /// Sending and waiting.
    Orange,
    /// A backward pass, or work in the background.
    Green,
    /// An update, or the gradients of weights.
    Purple,
}

/// A piece of work, drawn as a bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The beginning in seconds.
    pub start: f64,
    /// The end in seconds.
    pub end: f64,
    /// The name of the work, drawn if there is room.
    pub label: String,
    /// The colour of the bar.
    pub colour: Colour,
}

/// The work of one device or thread, drawn as a row of bars.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name, drawn at the left.
    pub name: String,
    /// The bars.
    pub bars: Vec<Bar>,
    /// Whether the bars are pale: a prediction next to a measurement.
    pub pale: bool,
}

/// A chart of rows below each other. Time goes from left to right.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The title, drawn at the top in as many lines as needed.
    pub title: String,
    /// The colour key: the meaning of each colour. It may be empty.
    pub key: Vec<(Colour, String)>,
    /// The length of the time axis in seconds. It begins at 0.
    pub seconds: f64,
    /// The groups of rows, each with a heading if it has one.
    pub groups: Vec<(Option<String>, Vec<Row>)>,
}

/// The error of a picture that cannot be drawn.
pub(super) type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Chart {
    /// Draws the picture. Fails when the length of the time axis is not a positive number, or drawing fails.
    pub fn svg(&self) -> Result<String, Failure> {
        if !self.seconds.is_finite() || self.seconds <= 0.0 {
            return Err(format!("a chart of {} s", self.seconds).into());
        }
        let of_group = |(heading, rows): &(Option<String>, Vec<Row>)| {
            ROW * (rows.len() + usize::from(heading.is_some())) as f64
        };
        let title = lines(&self.title, TITLE);
        let key = if self.key.is_empty() { 0.0 } else { LINE };
        let ceiling = TOP + LINE * title.len() as f64 + key + 14.0;
        let floor = ceiling + self.groups.iter().map(of_group).sum::<f64>();
        let mut svg = String::new();
        {
            let size = (WIDTH, (floor + BOTTOM) as u32);
            let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            area.fill(&WHITE)?;
            for (number, line) in title.iter().enumerate() {
                let at = (f64::from(WIDTH) / 2.0, TOP + LINE * (number as f64 + 0.5));
                area.draw(&text(line, at, HPos::Center, 13, &TEXT))?;
            }
            let (mut left, middle) = (LEFT, ceiling - 14.0 - LINE / 2.0);
            for (colour, meaning) in &self.key {
                let corners =
                    [(left as i32, middle as i32 - 5), (left as i32 + 12, middle as i32 + 5)];
                let paint = PALETTE[*colour as usize].mix(0.8).filled();
                area.draw(&Rectangle::new(corners, paint))?;
                area.draw(&text(meaning, (left + 18.0, middle), HPos::Left, 13, &TEXT))?;
                left += 42.0 + CHARACTER * meaning.chars().count() as f64;
            }
            for tick in ticks(self.seconds * 1e3, 8) {
                let at = self.x(tick / 1e3);
                let line = [(at as i32, ceiling as i32), (at as i32, floor as i32 + 5)];
                area.draw(&PathElement::new(line, GRID.stroke_width(1)))?;
                let label = format!("{tick} ms");
                area.draw(&text(&label, (at, floor + 18.0), HPos::Center, 13, &TEXT))?;
            }
            let mut top = ceiling;
            for (heading, rows) in &self.groups {
                if let Some(heading) = heading {
                    let at = (LEFT, top + ROW / 2.0);
                    area.draw(&text(heading, at, HPos::Left, 13, &TEXT))?;
                    top += ROW;
                }
                for Row { name, bars, pale } in rows {
                    let at = (LEFT - 8.0, top + ROW / 2.0);
                    area.draw(&text(name, at, HPos::Right, 13, &TEXT))?;
                    for bar in bars {
                        self.bar(&area, bar, top, *pale)?;
                    }
                    top += ROW;
                }
            }
            area.present()?;
        }
        Ok(svg)
    }

    fn x(&self, time: f64) -> f64 {
        LEFT + time.clamp(0.0, self.seconds) / self.seconds * (f64::from(WIDTH) - LEFT - RIGHT)
    }

    fn bar(
        &self,
        area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
        bar: &Bar,
        top: f64,
        pale: bool,
    ) -> Result<(), Failure> {
        let (begin, end) = (self.x(bar.start), self.x(bar.end));
        let corners = [
            (begin as i32, (top + 4.0) as i32),
            // There is a gap between neighbouring bars.
            ((end - 1.0).max(begin + 1.0) as i32, (top + ROW - 4.0) as i32),
        ];
        let (share, ink) = if pale { (0.3, &TEXT) } else { (0.8, &WHITE) };
        area.draw(&Rectangle::new(corners, PALETTE[bar.colour as usize].mix(share).filled()))?;
        if end - begin > CHARACTER * bar.label.chars().count() as f64 {
            let at = ((begin + end) / 2.0, top + ROW / 2.0);
            area.draw(&text(&bar.label, at, HPos::Center, 13, ink))?;
        }
        Ok(())
    }
}

/// Breaks a text into lines of at most `most` characters, at spaces.
fn lines(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Returns a text of one line. `at` is the middle of its height, and its left end, its middle or its right end.
pub(super) fn text<'a>(
    text: &'a str,
    at: (f64, f64),
    horizontal: HPos,
    size: i32,
    colour: &'a RGBColor,
) -> Text<'a, (i32, i32), &'a str> {
    let style = ("sans-serif", size).into_font().color(colour);
    Text::new(text, (at.0 as i32, at.1 as i32), style.pos(Pos::new(horizontal, VPos::Center)))
}

/// Returns equally spaced round numbers from 0 to at most `length`, which is positive, with at most `gaps` gaps.
pub fn ticks(length: f64, gaps: u32) -> Vec<f64> {
    let unit = spacing(length, gaps);
    let count = (length / unit) as usize;
    // Rounding removes the digits of 3 · 0.1 = 0.30000000000000004.
    (0..=count).map(|tick| (tick as f64 * unit * 1e6).round() / 1e6).collect()
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
    use super::*;

    #[test]
    fn rows_have_their_names_bars_and_headings() {
        let bar = |start, end, label: &str| Bar {
            start,
            end,
            label: label.to_owned(),
            colour: Colour::Blue,
        };
        let row = |name: &str, pale| Row {
            name: name.to_owned(),
            bars: vec![bar(0.0, 0.05, "wide"), bar(0.05, 0.0501, "narrow")],
            pale,
        };
        let groups = vec![
            (Some("first".to_owned()), vec![row("stage 0", true), row("stage 1", false)]),
            (None, vec![row("stage 2", false)]),
        ];
        let title = format!("title {} end", "word ".repeat(40).trim_end());
        let key = vec![(Colour::Orange, "meaning".to_owned())];
        let svg = Chart { title, key, seconds: 0.1, groups }.svg().unwrap();
        // The title does not fit in one line.
        assert!(svg.matches("word").count() == 40 && svg.lines().all(|line| line.len() < 300));
        for text in
            ["title", "end", "meaning", "first", "stage 0", "stage 1", "stage 2", "wide", "100 ms"]
        {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert!(!svg.contains("narrow") && !svg.contains("NaN"));
    }

    #[test]
    fn without_time_there_is_nothing_to_draw() {
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let chart =
                Chart { title: String::new(), key: Vec::new(), seconds, groups: Vec::new() };
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

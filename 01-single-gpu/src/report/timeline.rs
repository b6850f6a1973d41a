//! `--timeline FILE`: one step, drawn: what every device did when, as an SVG picture.
//!
//! It is the step of middle length of the last run, from its beginning to its end on rank 0. Each rank has
//! a lane for computing, one for waiting and sending, and one for a background thread if it has any. Of
//! spans within each other only the outermost is drawn.

use std::io;
use std::path::Path;
use std::time::Duration;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::file;
use super::trace::{BACKGROUND, COMMUNICATION, COMPUTE, STEPS, View};

const WIDTH: u32 = 960;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 20.0;
const LANE: f64 = 30.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 40.0;

/// The lanes of a rank, with Okabe and Ito's colours: blue, orange, green.
const LANES: [(&str, RGBColor); 3] = [
    (COMPUTE, RGBColor(0, 114, 178)),
    (COMMUNICATION, RGBColor(230, 159, 0)),
    (BACKGROUND, RGBColor(0, 158, 115)),
];
const TEXT: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);

/// Pixels of a character of a label, at most.
const CHARACTER: f64 = 7.0;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Draws the step and writes the picture.
pub(super) fn write(path: &Path, title: &str, spans: &[View]) -> io::Result<()> {
    let svg = draw(title, spans).map_err(io::Error::other)?;
    file::write(path, |file| file.write_all(svg.as_bytes()))
}

/// The spans of the last run that overlap the step of middle length, and that step.
fn step(spans: &[View]) -> Option<(View, Vec<View>)> {
    let run = spans.iter().map(|span| span.run).max()?;
    let is_step = |span: &&View| {
        span.run == run && span.rank == 0 && span.target == STEPS && span.name == "step"
    };
    let mut steps: Vec<View> = spans.iter().filter(is_step).cloned().collect();
    steps.sort_by_key(|step| step.duration);
    let step = steps.get(steps.len() / 2)?.clone();
    let within = |span: &&View| {
        span.run == run
            && span.target != STEPS
            && span.start < step.end()
            && step.start < span.end()
    };
    Some((step.clone(), spans.iter().filter(within).cloned().collect()))
}

fn draw(title: &str, spans: &[View]) -> Result<String, Failure> {
    let (step, shown) = step(spans).ok_or("no step was recorded")?;
    let mut lanes: Vec<(usize, &str, RGBColor)> = Vec::new();
    for rank in 0..=shown.iter().map(|span| span.rank).max().unwrap_or(0) {
        for (target, colour) in LANES {
            if shown.iter().any(|span| span.rank == rank && span.target == target) {
                lanes.push((rank, target, colour));
            }
        }
    }
    let height = (TOP + LANE * lanes.len() as f64 + BOTTOM) as u32;
    let milliseconds = step.duration.as_secs_f64() * 1e3;
    let x = |time: Duration| {
        let since = time.saturating_sub(step.start).min(step.duration).as_secs_f64();
        LEFT + since * 1e3 / milliseconds * (f64::from(WIDTH) - LEFT - RIGHT)
    };
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE)?;
        let text = |text: String, at: (f64, f64), horizontal: HPos, colour: &RGBColor| {
            let style = ("sans-serif", 13).into_font().color(colour);
            let at = (at.0 as i32, at.1 as i32);
            Text::new(text, at, style.pos(Pos::new(horizontal, VPos::Center)))
        };
        let label = format!("{title}: one step");
        area.draw(&text(label, (f64::from(WIDTH) / 2.0, 20.0), HPos::Center, &TEXT))?;
        let floor = TOP + LANE * lanes.len() as f64;
        for tick in ticks(milliseconds) {
            let at = x(step.start + Duration::from_secs_f64(tick / 1e3));
            let line = [(at as i32, TOP as i32), (at as i32, floor as i32 + 5)];
            area.draw(&PathElement::new(line, GRID.stroke_width(1)))?;
            area.draw(&text(format!("{tick} ms"), (at, floor + 18.0), HPos::Center, &TEXT))?;
        }
        for (index, (rank, target, colour)) in lanes.iter().enumerate() {
            let top = TOP + LANE * index as f64;
            let name = format!("rank {rank} {target}");
            area.draw(&text(name, (LEFT - 8.0, top + LANE / 2.0), HPos::Right, &TEXT))?;
            for span in outermost(&shown, *rank, target) {
                let (begin, end) = (x(span.start), x(span.end()));
                let corners = [
                    (begin as i32, (top + 4.0) as i32),
                    (end.max(begin + 1.0) as i32, (top + LANE - 4.0) as i32),
                ];
                area.draw(&Rectangle::new(corners, colour.mix(0.8).filled()))?;
                let label = span.label();
                if end - begin > CHARACTER * label.chars().count() as f64 {
                    let at = ((begin + end) / 2.0, top + LANE / 2.0);
                    area.draw(&text(label, at, HPos::Center, &WHITE))?;
                }
            }
        }
        area.present()?;
    }
    Ok(svg)
}

/// The spans of a lane that lie in no other.
fn outermost<'a>(spans: &'a [View], rank: usize, target: &str) -> Vec<&'a View> {
    let lane: Vec<&View> =
        spans.iter().filter(|span| span.rank == rank && span.target == target).collect();
    let inside = |span: &View| {
        let around = |other: &&&View| {
            other.start <= span.start && span.end() <= other.end() && other.duration > span.duration
        };
        lane.iter().any(|other| around(&other))
    };
    lane.iter().filter(|span| !inside(span)).copied().collect()
}

/// About eight round numbers from 0 on.
fn ticks(milliseconds: f64) -> Vec<f64> {
    let raw = milliseconds / 8.0;
    let magnitude = 10f64.powf(raw.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let unit = factors.iter().map(|f| f * magnitude).find(|unit| *unit >= raw).unwrap_or(raw);
    let count = (milliseconds / unit) as usize;
    // Rounded, as 0.1 times 3 has many digits.
    (0..=count).map(|tick| (tick as f64 * unit * 1e6).round() / 1e6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(target: &'static str, name: &'static str, rank: usize, from: u64, to: u64) -> View {
        View {
            run: 0,
            rank,
            target,
            name,
            number: None,
            start: Duration::from_millis(from),
            duration: Duration::from_millis(to - from),
        }
    }

    #[test]
    fn the_step_of_middle_length_is_drawn_with_what_happened_in_it() {
        let spans = [
            span(STEPS, "step", 0, 0, 10),
            span(STEPS, "step", 0, 10, 30),
            span(STEPS, "step", 0, 30, 90),
            span(COMPUTE, "early", 0, 1, 9),
            span(COMPUTE, "backward", 0, 12, 28),
            span(COMPUTE, "inside", 0, 13, 20),
            span(BACKGROUND, "bucket", 1, 14, 29),
        ];
        let svg = draw("LeNet", &spans).unwrap();
        for text in ["LeNet: one step", "backward", "bucket", "rank 1 background", "20 ms"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert!(!svg.contains("early") && !svg.contains("inside") && !svg.contains("NaN"));
    }

    #[test]
    fn without_a_step_there_is_nothing_to_draw() {
        assert!(draw("title", &[]).is_err());
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(80.0), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]);
        assert_eq!(ticks(1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
    }
}

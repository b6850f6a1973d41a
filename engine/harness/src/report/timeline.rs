//! `--timeline FILE`: the work of every device in one step, as an SVG picture.
//!
//! The step is the one of median length in the last run, from its beginning to its end on rank 0. Each rank has a row
//! for computing, a row for sending and waiting, and a row for a background thread if there is one. Of nested spans
//! only the outermost is drawn.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::chart::{Bar, Chart, Colour, Row};
use super::file;
use super::trace::{BACKGROUND, COMMUNICATION, COMPUTE, STEPS, View};

/// The rows of a rank.
const ROWS: [(&str, Colour); 3] =
    [(COMPUTE, Colour::Blue), (COMMUNICATION, Colour::Orange), (BACKGROUND, Colour::Green)];

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Draws the step and writes the picture. Returns whether there was a step.
pub(super) fn write(path: &Path, title: &str, spans: &[View]) -> io::Result<bool> {
    let Some((step, shown)) = step(spans) else { return Ok(false) };
    let svg = draw(title, &step, &shown).map_err(io::Error::other)?;
    file::write(path, |file| file.write_all(svg.as_bytes()))?;
    Ok(true)
}

/// Returns the step of median length in the last run, and the spans that overlap it.
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

fn draw(title: &str, step: &View, shown: &[View]) -> Result<String, Failure> {
    let since = |time: Duration| time.saturating_sub(step.start).min(step.duration).as_secs_f64();
    let mut rows = Vec::new();
    for rank in 0..=shown.iter().map(|span| span.rank).max().unwrap_or(0) {
        for (target, colour) in ROWS {
            if shown.iter().any(|span| span.rank == rank && span.target == target) {
                let bar = |span: &View| Bar {
                    start: since(span.start),
                    end: since(span.end()),
                    label: span.label(),
                    colour,
                };
                let bars = outermost(shown, rank, target).into_iter().map(bar).collect();
                rows.push(Row { name: format!("rank {rank} {target}"), bars, pale: false });
            }
        }
    }
    let title = format!("{title}: one step");
    Chart { title, seconds: step.duration.as_secs_f64(), groups: vec![(None, rows)] }.svg()
}

/// Returns the spans of a row that lie in no other span.
fn outermost<'a>(spans: &'a [View], rank: usize, target: &str) -> Vec<&'a View> {
    let row: Vec<&View> =
        spans.iter().filter(|span| span.rank == rank && span.target == target).collect();
    let inside = |span: &View| {
        let around = |other: &&&View| {
            other.start <= span.start && span.end() <= other.end() && other.duration > span.duration
        };
        row.iter().any(|other| around(&other))
    };
    row.iter().filter(|span| !inside(span)).copied().collect()
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
        let (step, shown) = step(&spans).unwrap();
        let svg = draw("LeNet", &step, &shown).unwrap();
        for text in ["LeNet: one step", "backward", "bucket", "rank 1 background", "20 ms"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert!(!svg.contains("early") && !svg.contains("inside") && !svg.contains("NaN"));
    }

    #[test]
    fn without_a_step_there_is_nothing_to_draw() {
        let path = Path::new("of a folder that is not there/timeline.svg");
        assert!(!write(path, "title", &[]).unwrap());
        assert!(write(path, "title", &[span(STEPS, "step", 0, 0, 10)]).is_err());
    }
}

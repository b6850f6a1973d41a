//! `--timeline FILE`: the work of every device in one step, as an SVG picture.
//!
//! The step is the one of median length in the last run, from its beginning to its end on rank 0. Each rank has a row
//! for computing, a row for sending and waiting, and a row for a background thread if there is one. Of nested spans
//! only the outermost is drawn.

use std::time::Duration;

use super::chart::{Bar, Chart, Colour, Failure, Row};
use super::trace::{BACKGROUND, COMMUNICATION, COMPUTE, RunRank, STEPS, Span};

const ROWS: [(&str, Colour); 3] =
    [(COMPUTE, Colour::Blue), (COMMUNICATION, Colour::Orange), (BACKGROUND, Colour::Green)];

/// Draws the step. Returns `None` if no step was recorded.
pub(super) fn draw(title: &str, spans: &[Span]) -> Result<Option<String>, Failure> {
    let Some(step) = median_step(spans) else { return Ok(None) };
    let within = |span: &&Span| {
        let overlaps = span.start < step.end() && step.start < span.end();
        span.owner.run == step.owner.run && span.target != STEPS && overlaps
    };
    let shown: Vec<&Span> = spans.iter().filter(within).collect();
    let since = |time: Duration| time.saturating_sub(step.start).min(step.duration).as_secs_f64();
    let mut rows = Vec::new();
    for rank in 0..=shown.iter().map(|span| span.owner.rank).max().unwrap_or(0) {
        for (target, colour) in ROWS {
            let in_row = |span: &&&Span| span.owner.rank == rank && span.target == target;
            let row: Vec<&&Span> = shown.iter().filter(in_row).collect();
            let outermost = row.iter().filter(|span| !row.iter().any(|other| lies_in(span, other)));
            let bar = |span: &&&Span| Bar {
                start: since(span.start),
                end: since(span.end()),
                label: span.label(),
                colour,
            };
            let bars: Vec<Bar> = outermost.map(bar).collect();
            if !bars.is_empty() {
                rows.push(Row { name: format!("rank {rank} {target}"), bars, pale: false });
            }
        }
    }
    let (title, seconds) = (format!("{title}: one step"), step.duration.as_secs_f64());
    Chart { title, key: Vec::new(), seconds, groups: vec![(None, rows)] }.svg().map(Some)
}

/// Returns the step of median length of rank 0 in the last run.
fn median_step(spans: &[Span]) -> Option<&Span> {
    let run = spans.iter().map(|span| span.owner.run).max()?;
    let is_step = |span: &&Span| {
        span.owner == RunRank { run, rank: 0 } && span.target == STEPS && span.name == "step"
    };
    let mut steps: Vec<&Span> = spans.iter().filter(is_step).collect();
    steps.sort_by_key(|step| step.duration);
    steps.get(steps.len() / 2).copied()
}

/// Whether a span lies in a longer one.
fn lies_in(span: &Span, other: &Span) -> bool {
    other.start <= span.start && span.end() <= other.end() && other.duration > span.duration
}

#[cfg(test)]
mod tests {
    use super::super::trace::Fields;
    use super::*;

    fn span(target: &'static str, name: &'static str, rank: usize, from: u64, to: u64) -> Span {
        Span {
            owner: RunRank { run: 0, rank },
            target,
            name,
            start: Duration::from_millis(from),
            duration: Duration::from_millis(to - from),
            fields: Fields::default(),
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
        let svg = draw("LeNet", &spans).unwrap().unwrap();
        for text in ["LeNet: one step", "backward", "bucket", "rank 1 background", "20 ms"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert!(!svg.contains("early") && !svg.contains("inside") && !svg.contains("NaN"));
    }

    #[test]
    fn without_a_step_there_is_nothing_to_draw() {
        assert!(draw("title", &[]).unwrap().is_none());
        assert!(draw("title", &[span(COMPUTE, "forward", 0, 0, 10)]).unwrap().is_none());
        assert!(draw("title", &[span(STEPS, "step", 0, 0, 10)]).unwrap().is_some());
    }
}

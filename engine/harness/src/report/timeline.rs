//! `--timeline FILE`: the work of every device in one step, as an SVG picture.
//!
//! The run is the one with the most ranks. The step is the run's step of median length, from its beginning to its end on
//! rank 0. Each rank has a row for computing, a row for sending and waiting, and a row for a background thread if there
//! is one. Of nested spans only the outermost is drawn.

use std::cmp::Reverse;
use std::time::Duration;

use itertools::Itertools as _;

use super::chart::{Bar, Chart, Colour, NoTime, Row};
use super::counted;
use super::trace::{BACKGROUND, COMMUNICATION, COMPUTE, Recorded, STEPS, Span};

/// The rows of a rank: the target of the spans, the name, the colour and its meaning.
const ROWS: [(&str, &str, Colour, &str); 3] = [
    (COMPUTE, "computes", Colour::Blue, "computing"),
    (COMMUNICATION, "communicates", Colour::Orange, "communication: sending and waiting"),
    (BACKGROUND, "background", Colour::Green, "background: communication on a second thread"),
];

/// Draws the step. Returns `None` if no step was recorded.
pub(super) fn draw(title: &str, recorded: &Recorded) -> Result<Option<String>, NoTime> {
    let spans = &recorded.spans;
    let Some(step) = median_step(spans) else { return Ok(None) };
    let run = step.owner.run;
    let within = |span: &&Span| {
        let overlaps = span.start < step.end() && step.start < span.end();
        span.owner.run == run && span.target != STEPS && overlaps
    };
    let shown: Vec<&Span> = spans.iter().filter(within).collect();
    let since = |time: Duration| time.saturating_sub(step.start).min(step.duration).as_secs_f64();
    let ranks = world_size(spans, run);
    let (mut rows, mut legend) = (Vec::new(), Vec::new());
    for rank in 0..ranks {
        for (target, name, colour, meaning) in ROWS {
            let in_row = |span: &&&Span| span.owner.rank == rank && span.target == target;
            let bar = |span: &&Span| Bar {
                start: since(span.start),
                end: since(span.end()),
                label: span.label(),
                name: format!("rank {rank}, {}", span.label()),
                colour,
            };
            let row = outermost(shown.iter().filter(in_row).copied());
            let bars: Vec<Bar> = row.iter().map(bar).collect();
            if bars.is_empty() {
                continue;
            }
            rows.push(Row { name: format!("rank {rank} {name}"), bars, pale: false });
            if !legend.iter().any(|(known, _)| *known == colour) {
                legend.push((colour, meaning.to_owned()));
            }
        }
    }
    legend.sort_by_key(|(colour, _)| *colour as usize);
    let devices = if ranks == 1 { String::new() } else { format!(" on {ranks} devices") };
    let run = recorded.runs.get(run).map_or("a run", String::as_str);
    let seconds = step.duration.as_secs_f64();
    let chart = Chart {
        title: format!("One step of {run}{devices}: {title}"),
        conclusion: conclusion(&shown, step, ranks),
        legend,
        seconds,
        groups: vec![(None, rows)],
    };
    chart.svg().map(Some)
}

/// Returns the step of median length of rank 0, in the run with the most ranks. Of several such runs the last counts.
fn median_step(spans: &[Span]) -> Option<&Span> {
    let is_step =
        |span: &&Span| span.owner.rank == 0 && span.target == STEPS && span.name == "step";
    let steps = || spans.iter().filter(is_step);
    let runs = steps().map(|step| step.owner.run).unique();
    let run = runs.max_by_key(|&run| (world_size(spans, run), run))?;
    let mut steps: Vec<&Span> = steps().filter(|step| step.owner.run == run).collect();
    steps.sort_by_key(|step| step.duration);
    steps.get(steps.len() / 2).copied()
}

/// The number of ranks of a run.
fn world_size(spans: &[Span], run: usize) -> usize {
    let of_run = spans.iter().filter(|span| span.owner.run == run);
    of_run.map(|span| span.owner.rank + 1).max().unwrap_or(0)
}

/// Returns the spans that lie in no other span, by their beginnings.
fn outermost<'a>(spans: impl Iterator<Item = &'a Span>) -> Vec<&'a Span> {
    let mut last = Duration::ZERO;
    let by_start = spans.sorted_by_key(|span| (span.start, Reverse(span.end())));
    let goes_on = |span: &&Span| {
        let before = last;
        last = last.max(span.end());
        span.end() > before
    };
    by_start.filter(goes_on).collect()
}

/// Summarises the step in a sentence. With a background thread, the sentence has the part of communication that
/// computing hides. Without one, it has the part of the step that is communication, or computing on one device.
fn conclusion(shown: &[&Span], step: &Span, ranks: usize) -> String {
    let (mut computing, mut communicating, mut hidden) =
        (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for rank in 0..ranks {
        // The times at which a span of each kind begins or ends.
        let mut edges: Vec<(Duration, usize, isize)> = Vec::new();
        for span in shown.iter().filter(|span| span.owner.rank == rank) {
            if let Some(kind) = ROWS.iter().position(|(target, ..)| *target == span.target) {
                edges.push((span.start.max(step.start), kind, 1));
                edges.push((span.end().min(step.end()), kind, -1));
            }
        }
        edges.sort_unstable();
        let mut open = [0; ROWS.len()];
        for ((time, kind, change), (next, ..)) in edges.into_iter().tuple_windows() {
            open[kind] += change;
            let [computes, waits, background] = open.map(|spans| spans > 0);
            // Communication within a forward pass is not computing.
            let (computes, length) = (computes && !waits, next - time);
            computing += if computes { length } else { Duration::ZERO };
            communicating += if waits || background { length } else { Duration::ZERO };
            hidden += if computes && background { length } else { Duration::ZERO };
        }
    }
    let percent = |part: Duration, whole: Duration| {
        format!("{:.0} %", part.as_secs_f64() / whole.as_secs_f64() * 100.0)
    };
    let step = step.duration * ranks as u32;
    if shown.iter().any(|span| span.target == BACKGROUND) {
        let part = percent(hidden, communicating);
        format!("{part} of communication is hidden behind computing.")
    } else if communicating > Duration::ZERO {
        let part = percent(communicating, step);
        format!("The {} communicate or wait for {part} of the step.", counted(ranks, "device"))
    } else {
        format!("Computing takes {} of the step.", percent(computing, step))
    }
}

#[cfg(test)]
mod tests {
    use super::super::svg_check::{check, count, texts};
    use super::super::trace::{Fields, RunRank};
    use super::*;

    fn span(
        (run, rank): (usize, usize),
        target: &'static str,
        name: &'static str,
        from: u64,
        to: u64,
    ) -> Span {
        Span {
            owner: RunRank { run, rank },
            target,
            name,
            start: Duration::from_millis(from),
            duration: Duration::from_millis(to - from),
            fields: Fields::default(),
        }
    }

    fn drawn(spans: Vec<Span>) -> Option<String> {
        let runs = ["one device", "ddp <2>", "one device, all cores"].map(str::to_owned).to_vec();
        let recorded = Recorded { runs, spans, ..Recorded::default() };
        let svg = draw("LeNet", &recorded).unwrap();
        svg.as_deref().map(check);
        svg
    }

    /// Steps of a run of two ranks between two runs of one rank. In the step of 20 ms both ranks compute for 16 ms, and
    /// rank 1 communicates for 15 ms in the background.
    fn three_runs() -> Vec<Span> {
        vec![
            span((0, 0), STEPS, "step", 0, 10),
            span((1, 0), STEPS, "step", 10, 20),
            span((1, 0), STEPS, "step", 20, 40),
            span((1, 0), STEPS, "step", 40, 100),
            span((1, 0), COMPUTE, "early", 11, 19),
            span((1, 0), COMPUTE, "backward", 22, 38),
            span((1, 0), COMPUTE, "inside", 23, 30),
            span((1, 1), COMPUTE, "backward", 22, 38),
            span((1, 1), BACKGROUND, "bucket", 24, 39),
            span((2, 0), STEPS, "step", 100, 140),
            span((2, 0), COMPUTE, "late", 105, 138),
        ]
    }

    #[test]
    fn the_run_of_most_ranks_and_its_step_of_middle_length_are_drawn() {
        let svg = drawn(three_runs()).unwrap();
        let texts = texts(&svg);
        assert_eq!(
            texts[..2],
            [
                "One step of ddp &lt;2&gt; on 2 devices: LeNet",
                // 14 of 15 ms.
                "93 % of communication is hidden behind computing.",
            ]
        );
        for text in ["computing", "background: communication on a second thread", "20 ms"] {
            assert!(texts.contains(&text), "{text} is missing");
        }
        let rows: Vec<&str> =
            texts.iter().copied().filter(|text| text.starts_with("rank")).collect();
        assert_eq!(rows, ["rank 0 computes", "rank 1 computes", "rank 1 background"]);
        assert!(["early", "inside", "late"].iter().all(|text| !svg.contains(text)));
        assert!(svg.contains("<title>rank 1, bucket: 15.0 ms, from 4.0 ms</title>"), "{svg}");
        // The page, two colours of the legend, and three bars.
        assert_eq!(count(&svg, "<rect"), 6);
    }

    #[test]
    fn the_conclusion_is_computed_from_the_spans() {
        let conclusion = |spans: Vec<Span>| texts(&drawn(spans).unwrap())[1].to_owned();
        let alone = vec![span((0, 0), STEPS, "step", 0, 10), span((0, 0), COMPUTE, "all", 1, 10)];
        assert_eq!(conclusion(alone.clone()), "Computing takes 90 % of the step.");
        // A second rank waits, within its forward pass, for half of the step and for longer than the step.
        let waits =
            [span((0, 1), COMPUTE, "all", 0, 20), span((0, 1), COMMUNICATION, "wait", 5, 20)];
        let two = [&alone[..], &waits].concat();
        assert_eq!(
            conclusion(two.clone()),
            "The 2 devices communicate or wait for 25 % of the step."
        );
        // From 4 to 8, and one of these four milliseconds is hidden.
        let bucket = span((0, 1), BACKGROUND, "bucket", 4, 8);
        let all = [&two[..], &[bucket]].concat();
        assert_eq!(conclusion(all), "17 % of communication is hidden behind computing.");
    }

    #[test]
    fn of_several_runs_with_the_most_ranks_the_last_is_drawn() {
        let mut spans = three_runs();
        spans.push(span((0, 1), COMPUTE, "first", 1, 9));
        assert!(drawn(spans.clone()).unwrap().contains("One step of ddp"));
        spans.push(span((2, 1), COMPUTE, "last", 101, 109));
        assert!(drawn(spans).unwrap().contains("One step of one device, all cores on 2 devices"));
    }

    #[test]
    fn without_a_step_there_is_nothing_to_draw() {
        assert!(drawn(Vec::new()).is_none());
        assert!(drawn(vec![span((0, 0), COMPUTE, "forward", 0, 10)]).is_none());
        let empty = drawn(vec![span((0, 0), STEPS, "step", 0, 10)]).unwrap();
        assert!(empty.contains("Computing takes 0 % of the step."));
    }
}

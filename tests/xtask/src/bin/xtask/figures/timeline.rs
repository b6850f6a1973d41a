//! What every device did in one step of stage 5, over a link that is slow on purpose.

use anyhow::{Context as _, ensure};
use harness::report::chart::ticks;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Figure;
use super::drawing::{Anchor, Drawing, WIDTH, series_class};
use super::measurement::Recorded;

/// The tracks of a rank as the figure names them; the first is only there to find the step by.
const TRACKS: [(&str, &str); 4] = [
    ("steps", ""),
    ("compute", "computes"),
    ("communication", "waits"),
    ("background", "sends and adds"),
];

const LEFT: f64 = 112.0;
const RIGHT: f64 = 8.0;
const TOP: f64 = 8.0;
const LANE: f64 = 24.0;
const BAR: f64 = 17.0;
const GAP: f64 = 10.0;
const AXIS: f64 = 30.0;

/// A character of a label is no wider.
const CHARACTER: f64 = 7.5;

#[derive(Deserialize)]
struct Event {
    ph: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    cat: String,
    pid: usize,
    tid: usize,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
}

/// A span of the step, in milliseconds from its beginning.
#[derive(Deserialize, Serialize)]
struct Span {
    rank: usize,
    track: String,
    name: String,
    start: f64,
    end: f64,
}

/// Takes the step of middle length out of the last run of a trace, as lines of kind `span`.
pub(super) fn step_of(trace: &str) -> anyhow::Result<Vec<Value>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Trace {
        trace_events: Vec<Event>,
    }
    let Trace { trace_events } = serde_json::from_str(trace)?;
    let run = trace_events.iter().map(|event| event.pid).max().context("an empty trace")?;
    let events: Vec<&Event> =
        trace_events.iter().filter(|event| event.pid == run && event.ph == "X").collect();
    // A thread for each track of each rank, in this order.
    let first = events.iter().map(|event| event.tid - event.tid % TRACKS.len()).min();
    let rank = |event: &Event| (event.tid - first.unwrap_or_default()) / TRACKS.len();
    let is_step = |event: &&&Event| event.name == "step" && rank(event) == 0;
    let mut steps: Vec<&&Event> = events.iter().filter(is_step).collect();
    steps.sort_by(|a, b| a.dur.total_cmp(&b.dur));
    let step = steps.get(steps.len() / 2).context("no step")?;
    let since = |microseconds: f64| {
        let rounded = ((microseconds - step.ts) / 10.0).round() / 100.0;
        rounded.clamp(0.0, step.dur / 1e3)
    };
    let within = |event: &&&Event| {
        event.cat != "steps" && event.ts < step.ts + step.dur && event.ts + event.dur > step.ts
    };
    let line = |event: &&Event| {
        let (start, end) = (since(event.ts), since(event.ts + event.dur));
        json!({"kind": "span", "rank": rank(event), "track": event.cat, "name": event.name,
               "start": start, "end": end})
    };
    Ok(events.iter().filter(within).map(line).collect())
}

/// Draws a lane for each track of each rank.
pub(super) fn draw(text: &str) -> anyhow::Result<Figure> {
    let recorded = Recorded::parse(text)?;
    let spans: Vec<Span> = recorded.lines("span")?;
    let ranks = spans.iter().map(|span| span.rank).max().unwrap_or_default() + 1;
    let length = spans.iter().map(|span| span.end).fold(0.0, f64::max);
    ensure!(length > 0.0, "a step takes time");
    let lanes = TRACKS.len() - 1;
    let top =
        |rank: usize, lane: usize| TOP + (rank * lanes + lane) as f64 * LANE + rank as f64 * GAP;
    let bottom = top(ranks - 1, lanes);
    let x = |milliseconds: f64| LEFT + milliseconds / length * (WIDTH - LEFT - RIGHT);
    let mut drawing = Drawing::new(
        bottom + AXIS,
        format_args!("What {ranks} devices did in a step of {length:.0} ms"),
    );
    for at in ticks(length, 7) {
        drawing.line("grid", (x(at), TOP), (x(at), bottom));
        let unit = if at == 0.0 { " ms" } else { "" };
        drawing.text("label", (x(at), bottom + 18.0), Anchor::Middle, format_args!("{at}{unit}"));
    }
    for rank in 0..ranks {
        for (lane, (_, name)) in TRACKS[1..].iter().enumerate() {
            let middle = top(rank, lane) + BAR / 2.0 + 4.5;
            let name = if lane == 0 { format!("rank {rank} {name}") } else { (*name).to_owned() };
            drawing.text("label", (LEFT - 6.0, middle), Anchor::End, name);
        }
    }
    // A span within another span of its lane is part of the other span's bar. The inner span ends first.
    let is_inner = |(index, span): (usize, &Span)| {
        spans.iter().enumerate().any(|(other, outer)| {
            let longer = outer.end - outer.start > span.end - span.start;
            (outer.rank, &outer.track) == (span.rank, &span.track)
                && (outer.start <= span.start && span.end <= outer.end)
                && (longer || other > index)
        })
    };
    let outermost = spans.iter().enumerate().filter(|it| !is_inner(*it));
    for (_, Span { rank, track, name, start, end }) in outermost {
        let Some(lane) = TRACKS[1..].iter().position(|(of, _)| of == track) else { continue };
        let (left, right, top) = (x(*start), x(*end), top(*rank, lane));
        let tooltip = format!("rank {rank}, {name}: {:.2} ms, from {start} ms", end - start);
        drawing.bar(&series_class(lane), (left, top), (right - left, BAR), &tooltip);
        if name.len() as f64 * CHARACTER < right - left {
            let middle = ((left + right) / 2.0, top + BAR / 2.0 + 4.5);
            drawing.text("label on-bar", middle, Anchor::Middle, name);
        }
    }
    Ok(Figure { svg: drawing.finish(), caption: recorded.caption() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_of_middle_length_of_the_last_run_is_taken() {
        let event = |name: &str, cat: &str, pid: usize, track: usize, ts: f64, dur: f64| {
            json!({"ph": "X", "name": name, "cat": cat, "pid": pid,
                   "tid": pid * 100_000 + track, "ts": ts, "dur": dur})
        };
        let events = [
            event("step", "steps", 1, 0, 0.0, 5_000.0),
            event("step", "steps", 2, 0, 1_000.0, 9_000.0),
            event("step", "steps", 2, 0, 10_000.0, 4_000.0),
            event("step", "steps", 2, 0, 20_000.0, 2_000.0),
            event("forward", "compute", 2, 1, 10_000.0, 1_500.0),
            event("bucket", "background", 2, 7, 13_500.0, 2_000.0),
            event("forward", "compute", 2, 1, 20_000.0, 1_500.0),
        ];
        let names = json!({"ph": "M", "name": "thread_name", "pid": 2, "tid": 200_000});
        let all = [&[names], &events[..]].concat();
        let trace = json!({"traceEvents": all}).to_string();
        let lines = step_of(&trace).unwrap();
        let told = |line: &Value| {
            let span = Span::deserialize(line).unwrap();
            (span.rank, span.track, span.name, span.start, span.end)
        };
        let told: Vec<_> = lines.iter().map(told).collect();
        assert_eq!(
            told,
            [
                (0, "compute".to_owned(), "forward".to_owned(), 0.0, 1.5),
                // What goes on after the step is cut.
                (1, "background".to_owned(), "bucket".to_owned(), 3.5, 4.0),
            ]
        );
    }
}

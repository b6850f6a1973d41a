//! The work of every device in one step of stage 5, over a link that is slow on purpose. `--timeline` draws the same picture.

use std::collections::BTreeMap;

use anyhow::Context as _;
use drawing::Place;
use harness::report::timeline::{chart, median_step};
use harness::report::trace::Work;
use serde_json::{Value, json};

use super::Figure;
use super::measurement::{Recorded, here};

pub(super) fn data(command: &str, trace: &str) -> anyhow::Result<String> {
    here(command, step_of(trace)?)
}

/// Takes the step of median length out of the last run of a trace, as lines of kind `span`, in milliseconds.
fn step_of(trace: &str) -> anyhow::Result<Vec<Value>> {
    let trace: Value = serde_json::from_str(trace)?;
    let events = trace["traceEvents"].as_array().context("no events of a trace")?;
    let run = events.iter().filter_map(|event| event["pid"].as_u64()).max();
    // `rank 0 compute on cpu:0`
    let rank = |name: &str| name.split(' ').nth(1)?.parse().ok();
    let names = events.iter().filter(|event| event["name"] == "thread_name");
    let rank =
        |event: &Value| Some((event["tid"].as_u64()?, rank(event["args"]["name"].as_str()?)?));
    let ranks: BTreeMap<u64, usize> = names.filter_map(rank).collect();
    let work = |event: &Value| {
        let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
        // In microseconds.
        let (start, length) = (event["ts"].as_f64()?, event["dur"].as_f64()?);
        let is_of_run = event["pid"].as_u64() == run && event["ph"] == "X";
        let rank = *ranks.get(&event["tid"].as_u64()?).filter(|_| is_of_run)?;
        let (start, end) = (start / 1e6, (start + length) / 1e6);
        let (track, name) = (text("cat").into(), text("name").into());
        Some(Work { rank, track, name, start, end })
    };
    let works: Vec<Work> = events.iter().filter_map(work).collect();
    let milliseconds = |seconds: f64| (seconds * 1e5).round() / 1e2;
    let line = |Work { rank, track, name, start, end }: Work| {
        let (start, end) = (milliseconds(start), milliseconds(end));
        json!({"kind": "span", "rank": rank, "track": track, "name": name, "start": start, "end": end})
    };
    Ok(median_step(&works).into_iter().map(line).collect())
}

pub(super) fn draw(texts: &[String]) -> anyhow::Result<Figure> {
    let recorded = Recorded::parse(texts)?;
    let mut works: Vec<Work> = recorded.lines("span")?;
    for Work { start, end, .. } in &mut works {
        (*start, *end) = (*start / 1e3, *end / 1e3);
    }
    let svg = chart("One step of all devices".to_owned(), &works).svg(Place::Page);
    Ok(Figure { svg, caption: recorded.caption() })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize as _;

    use super::*;

    #[test]
    fn the_step_of_median_length_of_the_last_run_is_taken() {
        let event = |pid: usize, track: usize, name: &str, cat: &str, ts: f64, dur: f64| {
            json!({"ph": "X", "name": name, "cat": cat, "pid": pid, "args": {},
                   "tid": pid * 100 + track, "ts": ts, "dur": dur})
        };
        let thread = |tid: usize, name: &str| json!({"ph": "M", "name": "thread_name", "pid": 2, "tid": tid, "args": {"name": name}});
        let all = [
            thread(200, "rank 0 steps on cpu:0"),
            thread(201, "rank 0 compute on cpu:0"),
            thread(207, "rank 1 background on cpu:1"),
            thread(205, "rank 1 steps on cpu:1"),
            event(1, 0, "step", "steps", 0.0, 5_000.0),
            event(2, 0, "step", "steps", 1_000.0, 9_000.0),
            event(2, 0, "step", "steps", 10_000.0, 4_000.0),
            event(2, 0, "step", "steps", 20_000.0, 2_000.0),
            event(2, 1, "forward", "compute", 10_000.0, 1_500.0),
            event(2, 5, "step", "steps", 1_000.0, 9_000.0),
            event(2, 5, "step", "steps", 10_000.0, 5_000.0),
            event(2, 7, "bucket", "background", 13_500.0, 2_000.0),
            event(2, 1, "forward", "compute", 20_000.0, 1_500.0),
        ];
        let lines = step_of(&json!({"traceEvents": all}).to_string()).unwrap();
        let told = lines.iter().map(|line| {
            let Work { rank, name, start, end, .. } = Work::deserialize(line).unwrap();
            format!("{rank} {name} {start} {end}")
        });
        // The end after the step is cut.
        let expected = ["0 step 0 4", "0 forward 0 1.5", "1 step 0 5", "1 bucket 3.5 5"];
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }
}

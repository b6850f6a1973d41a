//! Recorded spans as Chrome's trace events.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};
use tracing::field::{Field, Visit};

use super::{MOST_SPANS, ON_GPU, TRACKS, View};

/// The recorded runs, ranks and spans. Spans are in the order in which they ended.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    pub(super) runs: Vec<String>,
    /// The ranks, each with the name of its device.
    pub(super) ranks: Vec<(RunRank, String)>,
    pub(super) spans: Vec<Span>,
    pub(super) left_out: usize,
}

/// A rank of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunRank {
    pub(super) run: usize,
    pub(super) rank: usize,
}

/// A span that has ended.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) name: &'static str,
    pub(super) track: usize,
    pub(super) owner: RunRank,
    pub(super) start: Duration,
    pub(super) duration: Duration,
    pub(super) fields: Fields,
}

impl RunRank {
    /// The number of the process in the trace. Each run is a process.
    fn process(self) -> usize {
        self.run + 1
    }

    /// The number of the thread in the trace. Each track of a rank is a thread, and no two processes share a number.
    fn thread(self, track: usize) -> usize {
        self.process() * 100_000 + self.rank * TRACKS.len() + track
    }
}

impl Recorded {
    /// Adds a span. If there is no room, the span is only counted.
    pub(super) fn push(&mut self, span: Span) {
        if self.spans.len() == MOST_SPANS {
            self.left_out += 1;
        } else {
            self.spans.push(span);
        }
    }

    /// Writes the whole file.
    pub(super) fn write(&self, file: &mut dyn Write) -> io::Result<()> {
        write!(file, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        let runs = self.runs.iter().enumerate().map(|(run, name)| run_name(run, name));
        let tracks = self.ranks.iter().flat_map(|(owner, device)| track_names(*owner, device));
        let spans = self.spans.iter().map(Span::event);
        let mut separator = "\n";
        for event in runs.chain(tracks).chain(spans) {
            write!(file, "{separator}{event}")?;
            separator = ",\n";
        }
        writeln!(file, "\n]}}")
    }
}

/// Returns the event with the name of a run's process.
fn run_name(run: usize, name: &str) -> Value {
    named("process_name", RunRank { run, rank: 0 }, 0, json!({"name": name}))
}

/// Returns the events with the names of a rank's tracks and their order.
fn track_names(owner: RunRank, device: &str) -> impl Iterator<Item = Value> {
    let tracks = if device.starts_with("cuda:") { TRACKS.len() } else { ON_GPU };
    TRACKS.iter().enumerate().take(tracks).flat_map(move |(track, title)| {
        let name = format!("rank {} {title} on {device}", owner.rank);
        let order = owner.thread(track);
        [
            named("thread_name", owner, track, json!({"name": name})),
            named("thread_sort_index", owner, track, json!({"sort_index": order})),
        ]
    })
}

fn named(kind: &str, owner: RunRank, track: usize, args: Value) -> Value {
    let (process, thread) = (owner.process(), owner.thread(track));
    json!({"ph": "M", "name": kind, "pid": process, "tid": thread, "args": args})
}

impl Span {
    pub(super) fn view(&self) -> View {
        let Self { name, track, owner, start, duration, .. } = *self;
        let number = match self.fields.0.as_slice() {
            [(_, value)] => value.as_u64(),
            _ => None,
        };
        let RunRank { run, rank } = owner;
        View { run, rank, target: TRACKS[track], name, number, start, duration }
    }

    /// Returns the span as a complete event. Times are in microseconds.
    fn event(&self) -> Value {
        let microseconds = |time: Duration| time.as_nanos() as f64 / 1e3;
        let fields: serde_json::Map<_, _> =
            self.fields.0.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        json!({
            "ph": "X",
            "name": self.name,
            "cat": TRACKS[self.track],
            "pid": self.owner.process(),
            "tid": self.owner.thread(self.track),
            "ts": microseconds(self.start),
            "dur": microseconds(self.duration),
            "args": fields,
        })
    }
}

/// The fields of a span.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields(Vec<(&'static str, Value)>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push((field.name(), format!("{value:?}").into()));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), value.into()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.push((field.name(), value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.push((field.name(), value.into()));
    }
}

impl Fields {
    fn value(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(field, _)| *field == name).map(|(_, value)| value)
    }

    pub(super) fn text(&self, name: &str) -> String {
        self.value(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    pub(super) fn number(&self, name: &str) -> usize {
        let number = self.value(name).and_then(Value::as_u64);
        number.and_then(|number| usize::try_from(number).ok()).unwrap_or_default()
    }
}

//! What was recorded, as Chrome's trace events.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};
use tracing::field::{Field, Visit};

use super::{MOST_SPANS, ON_GPU, TRACKS, View};

/// What was recorded, in the order in which spans ended.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    pub(super) runs: Vec<String>,
    /// Each rank, and the name of its device.
    pub(super) ranks: Vec<(Place, String)>,
    pub(super) spans: Vec<Span>,
    pub(super) left_out: usize,
}

/// Which rank of which run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) run: usize,
    pub(super) rank: usize,
}

/// A span that has ended.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) name: &'static str,
    pub(super) track: usize,
    pub(super) place: Place,
    pub(super) start: Duration,
    pub(super) duration: Duration,
    pub(super) fields: Fields,
}

impl Place {
    /// The process's number in the trace: a run is shown as a process.
    fn process(self) -> usize {
        self.run + 1
    }

    /// The thread's number in the trace. No two processes share one.
    fn thread(self, track: usize) -> usize {
        self.process() * 100_000 + self.rank * TRACKS.len() + track
    }
}

impl Recorded {
    /// Adds a span, or counts it where there is no room.
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
        let tracks = self.ranks.iter().flat_map(|(place, device)| track_names(*place, device));
        let spans = self.spans.iter().map(Span::event);
        let mut separator = "\n";
        for event in runs.chain(tracks).chain(spans) {
            write!(file, "{separator}{event}")?;
            separator = ",\n";
        }
        writeln!(file, "\n]}}")
    }
}

/// The event that names a run's process.
fn run_name(run: usize, name: &str) -> Value {
    let place = Place { run, rank: 0 };
    named("process_name", place, 0, json!({"name": name}))
}

/// The events that name a rank's tracks, and put them in order.
fn track_names(place: Place, device: &str) -> impl Iterator<Item = Value> {
    let tracks = if device.starts_with("cuda:") { TRACKS.len() } else { ON_GPU };
    TRACKS.iter().enumerate().take(tracks).flat_map(move |(track, title)| {
        let name = format!("rank {} {title} on {device}", place.rank);
        let order = place.thread(track);
        [
            named("thread_name", place, track, json!({"name": name})),
            named("thread_sort_index", place, track, json!({"sort_index": order})),
        ]
    })
}

fn named(kind: &str, place: Place, track: usize, args: Value) -> Value {
    let (process, thread) = (place.process(), place.thread(track));
    json!({"ph": "M", "name": kind, "pid": process, "tid": thread, "args": args})
}

impl Span {
    pub(super) fn view(&self) -> View {
        let Self { name, track, place, start, duration, .. } = *self;
        let number = match self.fields.0.as_slice() {
            [(_, value)] => value.as_u64(),
            _ => None,
        };
        let Place { run, rank } = place;
        View { run, rank, target: TRACKS[track], name, number, start, duration }
    }

    /// A complete event. Times are in microseconds.
    fn event(&self) -> Value {
        let microseconds = |time: Duration| time.as_nanos() as f64 / 1e3;
        let fields: serde_json::Map<_, _> =
            self.fields.0.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        json!({
            "ph": "X",
            "name": self.name,
            "cat": TRACKS[self.track],
            "pid": self.place.process(),
            "tid": self.place.thread(self.track),
            "ts": microseconds(self.start),
            "dur": microseconds(self.duration),
            "args": fields,
        })
    }
}

/// What a span says about itself.
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

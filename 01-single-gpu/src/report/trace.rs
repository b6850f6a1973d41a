//! `--trace FILE`: what every device did when, in Chrome's trace format, to be opened in Perfetto
//! (<https://ui.perfetto.dev>).
//!
//! The code that works says what it does with spans of the `tracing` crate. Without `--trace` nobody
//! listens, and a span costs next to nothing. A span's *target* says which of a device's tracks it
//! belongs on, so that computing and communicating lie beside each other and are told apart:
//!
//! ```text
//! rank 0 steps          | step 7                                    |
//! rank 0 compute         load shard forward backward          update
//! rank 0 communication                              all-reduce
//! ```
//!
//! A span shows what the rank's *thread* was doing. A GPU works on after the thread has queued its work:
//! there, waiting shows where a result is read.
//!
//! Spans are kept in memory and written at the end, so that writing disturbs no measurement.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, EnteredSpan, Id};
use tracing::{Metadata, Subscriber, info_span};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, Registry};

use super::file;
use crate::device::ComputeDevice;

/// The target of spans that cut a run into epochs and steps.
pub const STEPS: &str = "steps";
/// The target of spans in which a device computes.
pub const COMPUTE: &str = "compute";
/// The target of spans in which a device sends to, or waits for, another.
pub const COMMUNICATION: &str = "communication";

/// The tracks of each rank, from top to bottom.
const TRACKS: [&str; 3] = [STEPS, COMPUTE, COMMUNICATION];

/// The target of the span around everything that a rank does.
const RANK: &str = "rank";

/// The most spans that a trace holds: about three times what the default run has on two devices, in
/// about 100 MB of memory. Later ones are left out, and the run says so.
const MOST_SPANS: usize = 500_000;

/// Everything that this thread does until the guard is dropped is the work of `rank` on `device`.
pub fn rank(run: &str, rank: usize, device: &ComputeDevice) -> EnteredSpan {
    info_span!(target: RANK, "rank", run, rank, device = %device).entered()
}

/// The trace of this process, while it is being recorded.
#[derive(Debug)]
pub struct Trace {
    recorded: Arc<Mutex<Recorded>>,
}

impl Trace {
    /// Begins to record the spans of all threads.
    ///
    /// # Errors
    ///
    /// When this process already has somebody listening to its spans.
    pub fn begin() -> io::Result<Self> {
        let (layer, recorded) = Recorder::new();
        let subscriber = Registry::default().with(layer);
        tracing::subscriber::set_global_default(subscriber).map_err(io::Error::other)?;
        Ok(Self { recorded })
    }

    /// Writes what was recorded so far. Returns how many spans had to be left out.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<usize> {
        let recorded = lock(&self.recorded);
        file::write(path, |file| recorded.write(file))?;
        Ok(recorded.left_out)
    }
}

/// What was recorded, in the order in which spans ended.
#[derive(Debug, Default)]
struct Recorded {
    runs: Vec<String>,
    ranks: Vec<(Place, String)>,
    spans: Vec<Span>,
    left_out: usize,
}

/// Which rank of which run.
#[derive(Clone, Copy, Debug)]
struct Place {
    run: usize,
    rank: usize,
}

/// A span that has ended.
#[derive(Debug)]
struct Span {
    name: &'static str,
    track: usize,
    place: Place,
    start: Duration,
    duration: Duration,
    fields: Fields,
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
    fn write(&self, file: &mut dyn Write) -> io::Result<()> {
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
    TRACKS.iter().enumerate().flat_map(move |(track, title)| {
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
struct Fields(Vec<(&'static str, Value)>);

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

    fn text(&self, name: &str) -> String {
        self.value(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    fn number(&self, name: &str) -> usize {
        let number = self.value(name).and_then(Value::as_u64);
        number.and_then(|number| usize::try_from(number).ok()).unwrap_or_default()
    }
}

/// When a span was entered.
struct Entered(Instant);

/// Listens to spans. The registry below it keeps, for each open span, its parent and what we attach.
struct Recorder {
    began: Instant,
    recorded: Arc<Mutex<Recorded>>,
}

impl Recorder {
    fn new() -> (Self, Arc<Mutex<Recorded>>) {
        let recorded = Arc::<Mutex<Recorded>>::default();
        (Self { began: Instant::now(), recorded: Arc::clone(&recorded) }, recorded)
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    /// Other crates have spans too; they have no place on our tracks.
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.target() == RANK || TRACKS.contains(&metadata.target())
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if span.metadata().target() != RANK {
            span.extensions_mut().insert(fields);
            return;
        }
        let mut recorded = lock(&self.recorded);
        let name = fields.text("run");
        let known = recorded.runs.iter().position(|run| *run == name);
        let run = known.unwrap_or_else(|| {
            recorded.runs.push(name);
            recorded.runs.len() - 1
        });
        let place = Place { run, rank: fields.number("rank") };
        recorded.ranks.push((place, fields.text("device")));
        span.extensions_mut().insert(place);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            span.extensions_mut().replace(Entered(Instant::now()));
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let now = Instant::now();
        let Some(span) = context.span(id) else { return };
        let Some(track) = TRACKS.iter().position(|track| *track == span.metadata().target()) else {
            return;
        };
        // The outermost span says whose work this is. Work that belongs to no rank has no track.
        let root = span.scope().last();
        let Some(place) = root.and_then(|root| root.extensions().get::<Place>().copied()) else {
            return;
        };
        let mut attached = span.extensions_mut();
        let Some(Entered(start)) = attached.remove() else { return };
        let mut recorded = lock(&self.recorded);
        if recorded.spans.len() == MOST_SPANS {
            recorded.left_out += 1;
            return;
        }
        recorded.spans.push(Span {
            name: span.metadata().name(),
            track,
            place,
            start: start - self.began,
            duration: now - start,
            fields: attached.remove().unwrap_or_default(),
        });
    }
}

/// A rank that panicked while it held the lock has at most lost its own span.
fn lock(recorded: &Mutex<Recorded>) -> MutexGuard<'_, Recorded> {
    recorded.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_lie_on_the_track_of_their_rank_and_kind() {
        let (recorder, recorded) = Recorder::new();
        tracing::subscriber::with_default(Registry::default().with(recorder), || {
            info_span!(target: COMPUTE, "of no rank").in_scope(|| ());
            for (run, rank) in [("one", 0u64), ("two", 0), ("two", 1)] {
                let _rank = info_span!(target: RANK, "rank", run, rank, device = "cpu").entered();
                let _step = info_span!(target: STEPS, "step", step = 7).entered();
                info_span!(target: COMMUNICATION, "all-reduce", bytes = 8).in_scope(|| ());
                info_span!(target: "elsewhere", "unknown").in_scope(|| ());
            }
        });
        let mut file = Vec::new();
        lock(&recorded).write(&mut file).unwrap();
        let trace: Value = serde_json::from_slice(&file).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |ph: &str, name: &str| -> Vec<&Value> {
            events.iter().filter(|e| e["ph"] == ph && e["name"] == name).collect()
        };
        let (steps, reduced) = (of("X", "step"), of("X", "all-reduce"));
        assert_eq!((steps.len(), reduced.len()), (3, 3));
        assert!(of("X", "of no rank").is_empty() && of("X", "unknown").is_empty());
        assert_eq!((&steps[2]["pid"], &steps[2]["args"]["step"]), (&json!(2), &json!(7)));
        assert_eq!(reduced[0]["cat"], COMMUNICATION);
        assert_eq!(of("M", "process_name").len(), 2);
        let names = of("M", "thread_name");
        let name = |event: &Value| names.iter().find(|n| n["tid"] == event["tid"]).unwrap();
        assert_eq!(name(reduced[2])["args"]["name"], "rank 1 communication on cpu");
        assert_eq!(name(steps[0])["args"]["name"], "rank 0 steps on cpu");
        let threads: std::collections::BTreeSet<_> =
            names.iter().map(|name| name["tid"].as_u64()).collect();
        assert_eq!(threads.len(), 9, "every track has a number of its own");
        let end = |e: &Value| e["ts"].as_f64().unwrap() + e["dur"].as_f64().unwrap();
        assert!(end(reduced[0]) <= end(steps[0]) + 1e-3);
    }

    #[test]
    fn a_full_trace_counts_what_it_leaves_out() {
        let (recorder, recorded) = Recorder::new();
        tracing::subscriber::with_default(Registry::default().with(recorder), || {
            let _rank = info_span!(target: RANK, "rank", run = "one", rank = 0u64).entered();
            for _ in 0..MOST_SPANS + 3 {
                info_span!(target: COMPUTE, "forward").in_scope(|| ());
            }
        });
        let recorded = lock(&recorded);
        assert_eq!((recorded.spans.len(), recorded.left_out), (MOST_SPANS, 3));
    }
}

//! `--trace FILE`: the work of every device over time, in Chrome's trace format. Perfetto opens the file
//! (<https://ui.perfetto.dev>).
//!
//! The code marks its work with spans of the `tracing` crate, which cost next to nothing without `--trace`. A span's
//! *target* names the track of the rank on which the span is drawn:
//!
//! ```text
//! rank 0 steps          | step 7                                    |
//! rank 0 compute         load shard forward backward          update
//! rank 0 communication                              all-reduce
//! rank 0 background                      bucket 0 bucket 1
//! rank 0 GPU               load shard  forward  backward  all-reduce  update
//! ```
//!
//! The first four tracks show the rank's *threads*. A GPU works on after the thread has queued its work, so its rank has a fifth
//! track: the same spans, timed on the GPU ([`DeviceClock`]). Spans are written at the end: writing disturbs no measurement.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use itertools::Itertools as _;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tracing::dispatcher::get_default;
use tracing::field::Field;
use tracing::span::{Attributes, EnteredSpan, Id};
use tracing::{Metadata, Subscriber, info_span};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, Registry};

use crate::lock::locked;

/// The target of epochs and steps.
pub const STEPS: &str = "steps";
/// The target of spans in which a device computes.
pub const COMPUTE: &str = "compute";
/// The target of spans in which a device sends or waits for another device.
pub const COMMUNICATION: &str = "communication";
/// The target of spans in which a second thread of the device sends and waits, while the first thread computes.
pub const BACKGROUND: &str = "background";
/// The track of times on a GPU, on which spans of [`COMPUTE`] and [`COMMUNICATION`] are drawn a second time.
const GPU: &str = "GPU";
/// The tracks of each rank, from top to bottom. Only a GPU has the last one.
const TRACKS: [&str; 5] = [STEPS, COMPUTE, COMMUNICATION, BACKGROUND, GPU];
/// The target of the span around all work of a rank.
const RANK: &str = "rank";
/// The most spans of a trace, in about 100 MB of memory. Later spans are left out, and the run reports their number.
const MOST_SPANS: usize = 500_000;

/// Measures times on a device that works through a queue, behind the thread that fills the queue.
pub trait DeviceClock {
    /// Puts a mark into the device's queue. Returns its number, from 0, or `None` if there can be no further mark.
    fn mark(&mut self) -> Option<usize>;

    /// Waits until the device has reached all marks. Returns the time of each mark since the clock was made.
    fn times(&mut self) -> Vec<Duration>;
}

/// A device whose ranks can be traced. `Display` shows the device's name.
pub trait TracedDevice: fmt::Display {
    /// Makes a clock for the work that this device's thread queues from now on. Returns `None` if the device has no queue.
    fn clock(&self) -> Option<Box<dyn DeviceClock>>;
}

/// A guard: until it is dropped, all work of its thread belongs to one rank.
#[must_use = "work after the guard is dropped belongs to no rank"]
#[derive(Debug)]
pub struct Rank {
    _span: EnteredSpan,
}

impl Drop for Rank {
    /// Adds the spans that were timed on the device to the recording.
    fn drop(&mut self) {
        let Some(OnDevice { mut clock, began, spans, recorded }) = ON_DEVICE.take() else { return };
        let times = clock.times();
        for (mut span, first, last) in spans {
            if let (Some(start), Some(end)) = (times.get(first), times.get(last)) {
                let (start, end) = (began + *start, began + *end.max(start));
                (span.work.start, span.work.end) = (start.as_secs_f64(), end.as_secs_f64());
                locked(&recorded).push(span);
            }
        }
    }
}

/// Assigns the work of this thread to `rank` on `device`, until the guard is dropped.
pub fn rank(run: &str, rank: usize, device: &impl TracedDevice) -> Rank {
    let span = info_span!(target: RANK, "rank", run, rank, device = %device).entered();
    get_default(|subscriber| {
        if let Some(recorder) = subscriber.downcast_ref::<Recorder>()
            && recorder.gpus
            && let Some(clock) = device.clock()
        {
            let (began, recorded) = (recorder.began.elapsed(), Arc::clone(&recorder.recorded));
            ON_DEVICE.set(Some(OnDevice { clock, began, spans: Vec::new(), recorded }));
        }
    });
    Rank { _span: span }
}

thread_local! {
    /// The clock of this thread's rank, and the spans without times.
    static ON_DEVICE: RefCell<Option<OnDevice>> = const { RefCell::new(None) };
}

/// The spans of one rank that are timed on its device.
struct OnDevice {
    clock: Box<dyn DeviceClock>,
    /// The time from the beginning of the recording until the clock was made.
    began: Duration,
    /// The spans, each with the numbers of its first and last mark.
    spans: Vec<(Span, usize, usize)>,
    recorded: Recording,
}

/// The recording of this process's spans.
pub(crate) type Recording = Arc<Mutex<Recorded>>;

/// Begins to record the spans of all threads, and with `gpus` their times on GPUs, too. Fails if the process already has a
/// subscriber for spans.
pub(crate) fn begin(gpus: bool) -> io::Result<Recording> {
    let recorder = Recorder::new(gpus);
    let recorded = Arc::clone(&recorder.recorded);
    let subscriber = Registry::default().with(recorder);
    tracing::subscriber::set_global_default(subscriber).map_err(io::Error::other)?;
    Ok(recorded)
}

/// A run, by its number in the recording, and a rank.
type RunRank = (usize, usize);

/// A piece of work of a rank, in seconds since the recording began. Its track is, for example, [`COMPUTE`].
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the line above explains the fields")]
pub struct Work {
    pub rank: usize,
    pub track: Cow<'static, str>,
    pub name: Cow<'static, str>,
    pub start: f64,
    pub end: f64,
}

/// A recorded span of a run.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) run: usize,
    pub(super) work: Work,
    pub(super) fields: Map<String, Value>,
}

/// The recorded runs, ranks and spans.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub(super) runs: Vec<String>,
    /// The ranks, each with the name of its device.
    pub(super) ranks: Vec<(RunRank, String)>,
    /// The spans, in the order in which they ended.
    pub(super) spans: Vec<Span>,
    /// The number of spans for which there was no room.
    pub(super) left_out: usize,
}

impl Recorded {
    /// Adds a span. If there is no room, the span is only counted.
    fn push(&mut self, span: Span) {
        if self.spans.len() == MOST_SPANS {
            self.left_out += 1;
        } else {
            self.spans.push(span);
        }
    }

    /// Writes all spans as Chrome's trace events.
    pub(super) fn write(&self, file: &mut dyn Write) -> io::Result<()> {
        let named = |kind: &str, owner, track, args| {
            event(owner, track, json!({"ph": "M", "name": kind, "args": args}))
        };
        let runs = self.runs.iter().enumerate();
        let runs =
            runs.map(|(run, name)| named("process_name", (run, 0), STEPS, json!({"name": name})));
        let tracks = self.ranks.iter().cartesian_product(TRACKS);
        let tracks = tracks.filter(|((_, device), it)| *it != GPU || device.starts_with("cuda:"));
        let tracks = tracks.flat_map(|((owner, device), track)| {
            let name = format!("rank {} {track} on {device}", owner.1);
            let order = json!({"sort_index": thread(*owner, track)});
            [("thread_name", json!({"name": name})), ("thread_sort_index", order)]
                .map(|(kind, args)| named(kind, *owner, track, args))
        });
        let spans = self.spans.iter().map(|Span { run, work, fields }| {
            let [start, end] = [work.start, work.end].map(|time| (time * 1e9).round());
            // In microseconds.
            let (start, length) = (start / 1e3, (end - start) / 1e3);
            event((*run, work.rank), &work.track, json!({
                "ph": "X", "name": work.name, "cat": work.track, "ts": start, "dur": length, "args": fields,
            }))
        });
        let events = runs.chain(tracks).chain(spans).format(",\n");
        writeln!(file, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{events}\n]}}")
    }
}

/// Adds the numbers of the track's process and thread to an event.
fn event(owner: RunRank, track: &str, mut event: Value) -> Value {
    event["pid"] = (owner.0 + 1).into();
    event["tid"] = thread(owner, track).into();
    event
}

/// The number of a track's thread. Each run is a process, and no two processes share the number of a thread.
fn thread((run, rank): RunRank, track: &str) -> usize {
    let track = TRACKS.iter().position(|it| *it == track).unwrap_or(0);
    (run + 1) * 100_000 + rank * TRACKS.len() + track
}

/// Records spans. The registry below this layer stores the parent and the attached data of each open span.
struct Recorder {
    began: Instant,
    /// Whether spans are timed on GPUs, too.
    gpus: bool,
    recorded: Recording,
}

/// The time at which a span was entered, and the number of the mark in the device's queue if the device has a clock.
type Entered = (Instant, Option<usize>);

/// Puts a mark into the queue of this thread's device, if the device has a clock.
fn mark(target: &str) -> Option<usize> {
    if target != COMPUTE && target != COMMUNICATION {
        return None;
    }
    ON_DEVICE.with_borrow_mut(|on_device| on_device.as_mut()?.clock.mark())
}

impl Recorder {
    fn new(gpus: bool) -> Self {
        Self { began: Instant::now(), gpus, recorded: Recording::default() }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    /// Spans of other crates have no track.
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let target = metadata.target();
        target == RANK || TRACKS.contains(&target)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Map::new();
        attributes.record(&mut |field: &Field, value: &dyn fmt::Debug| {
            let text = format!("{value:?}");
            // Numbers and texts in quotes are JSON.
            let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
            fields.insert(field.name().to_owned(), value);
        });
        if span.metadata().target() != RANK {
            span.extensions_mut().insert(fields);
            return;
        }
        let text = |name| fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let rank = fields.get("rank").and_then(Value::as_u64).unwrap_or_default() as usize;
        let (name, mut recorded) = (text("run"), locked(&self.recorded));
        let known = recorded.runs.iter().position(|run| *run == name);
        let run = known.unwrap_or_else(|| {
            recorded.runs.push(name);
            recorded.runs.len() - 1
        });
        recorded.ranks.push(((run, rank), text("device")));
        span.extensions_mut().insert((run, rank));
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let entered: Entered = (Instant::now(), mark(span.metadata().target()));
            span.extensions_mut().replace(entered);
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let now = Instant::now();
        let Some(span) = context.span(id) else { return };
        // A span within background work is background work, too.
        let background = span.scope().any(|span| span.metadata().target() == BACKGROUND);
        let target = if background { BACKGROUND } else { span.metadata().target() };
        // The outermost span has the rank. Work that belongs to no rank has no track.
        let root = span.scope().last();
        let owner = root.and_then(|root| root.extensions().get::<RunRank>().copied());
        let owner = owner.filter(|_| target != RANK);
        let mut attached = span.extensions_mut();
        let entered = attached.remove::<Entered>();
        let Some(((run, rank), (at, first))) = owner.zip(entered) else { return };
        let [start, end] = [at, now].map(|time| (time - self.began).as_secs_f64());
        let mut fields: Map<String, Value> = attached.remove().unwrap_or_default();
        // A field may give the span another name than its place in the code.
        let name = match fields.remove("name") {
            Some(Value::String(name)) => name.into(),
            _ => span.metadata().name().into(),
        };
        let work = Work { rank, track: target.into(), name, start, end };
        let span = Span { run, work, fields };
        if let (Some(first), Some(last)) = (first, mark(target)) {
            let mut on_device = span.clone();
            on_device.work.track = GPU.into();
            let spans = |it: &mut OnDevice| it.spans.push((on_device, first, last));
            ON_DEVICE.with_borrow_mut(|of_thread| of_thread.as_mut().map(spans));
        }
        locked(&self.recorded).push(span);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Runs `work`, and returns the recording of its spans.
    fn recorded(gpus: bool, work: impl FnOnce()) -> Recorded {
        let recorder = Recorder::new(gpus);
        let recording = Arc::clone(&recorder.recorded);
        tracing::subscriber::with_default(Registry::default().with(recorder), work);
        std::mem::take(&mut *locked(&recording))
    }

    #[test]
    fn spans_lie_on_the_track_of_their_rank_and_kind() {
        let recorded = recorded(false, || {
            info_span!(target: COMPUTE, "of no rank").in_scope(|| ());
            for (run, rank) in [("one", 0u64), ("two", 0), ("two", 1)] {
                let _rank = info_span!(target: RANK, "rank", run, rank, device = "cpu").entered();
                let _step = info_span!(target: STEPS, "step", step = 7).entered();
                info_span!(target: COMMUNICATION, "all-reduce", bytes = 8).in_scope(|| ());
                info_span!(target: "elsewhere", "unknown").in_scope(|| ());
            }
        });
        let mut file = Vec::new();
        recorded.write(&mut file).unwrap();
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
        assert_eq!(threads.len(), 12, "every track has a number of its own");
        let end = |e: &Value| e["ts"].as_f64().unwrap() + e["dur"].as_f64().unwrap();
        assert!(end(reduced[0]) <= end(steps[0]) + 1e-3);
    }

    #[test]
    fn a_full_trace_counts_what_it_leaves_out() {
        let recorded = recorded(false, || {
            let _rank = info_span!(target: RANK, "rank", run = "one", rank = 0u64).entered();
            for _ in 0..MOST_SPANS + 3 {
                info_span!(target: COMPUTE, "forward").in_scope(|| ());
            }
        });
        assert_eq!((recorded.spans.len(), recorded.left_out), (MOST_SPANS, 3));
    }

    /// A device on which the work between two marks takes a second.
    struct Slow;

    impl fmt::Display for Slow {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("cuda:0")
        }
    }

    impl TracedDevice for Slow {
        fn clock(&self) -> Option<Box<dyn DeviceClock>> {
            Some(Box::new(SlowClock(0)))
        }
    }

    struct SlowClock(u64);

    impl DeviceClock for SlowClock {
        fn mark(&mut self) -> Option<usize> {
            self.0 += 1;
            Some(self.0 as usize - 1)
        }

        fn times(&mut self) -> Vec<Duration> {
            (0..self.0).map(Duration::from_secs).collect()
        }
    }

    #[test]
    fn spans_of_a_device_with_a_clock_are_timed_on_the_device_too() {
        for gpus in [true, false] {
            let recorded = recorded(gpus, || {
                let _rank = rank("one", 0, &Slow);
                let _step = info_span!(target: STEPS, "step", step = 7).entered();
                info_span!(target: COMPUTE, "instruction", name = "forward").in_scope(|| ());
                info_span!(target: COMMUNICATION, "all-reduce").in_scope(|| ());
            });
            let on_gpu = recorded.spans.iter().map(|span| &span.work).filter(|it| it.track == GPU);
            let on_gpu = on_gpu.collect_vec();
            let names = on_gpu.iter().map(|work| &*work.name).collect_vec();
            assert_eq!(names, if gpus { vec!["forward", "all-reduce"] } else { vec![] });
            let times = on_gpu.iter().flat_map(|work| [work.start, work.end]);
            let seconds = times.map(|time| (time - on_gpu[0].start).round()).collect_vec();
            assert_eq!(seconds, if gpus { vec![0.0, 1.0, 2.0, 3.0] } else { vec![] });
        }
    }
}

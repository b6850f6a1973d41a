//! `--trace FILE`: what every device did when, in Chrome's trace format, to be opened in Perfetto
//! (<https://ui.perfetto.dev>).
//!
//! The code marks its work with spans of the `tracing` crate. Without `--trace` no subscriber listens, and a span
//! costs next to nothing. A span's *target* names the track of the rank on which the span is drawn:
//!
//! ```text
//! rank 0 steps          | step 7                                    |
//! rank 0 compute         load shard forward backward          update
//! rank 0 communication                              all-reduce
//! rank 0 background                      bucket 0 bucket 1
//! rank 0 GPU               load shard  forward  backward  all-reduce  update
//! ```
//!
//! The first four tracks show the rank's *threads*. A GPU works on after the thread has queued its work, so its rank
//! has a fifth track: the same spans, timed on the GPU with CUDA events ([`DeviceClock`]). For single kernels use a
//! profiler such as Nsight Systems.
//!
//! Spans are kept in memory and written at the end, so that writing disturbs no measurement.

mod events;
mod recorder;

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::span::EnteredSpan;
use tracing::{Level, info_span};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::Registry;

use super::file;
use crate::lock::locked;
use events::{Recorded, Span};
use recorder::Recorder;

/// The target of spans that cut a run into epochs and steps.
pub const STEPS: &str = "steps";
/// The target of spans in which a device computes.
pub const COMPUTE: &str = "compute";
/// The target of spans in which a device sends to another, or waits for another.
pub const COMMUNICATION: &str = "communication";
/// The target of spans in which a second thread of the device sends and waits, while the first computes.
pub const BACKGROUND: &str = "background";
/// The track of a GPU's own times. It is no target: spans of [`COMPUTE`] and [`COMMUNICATION`] are drawn here again.
const GPU: &str = "GPU";

/// The tracks of each rank, from top to bottom.
const TRACKS: [&str; 5] = [STEPS, COMPUTE, COMMUNICATION, BACKGROUND, GPU];

/// The place of [`GPU`] among them.
const ON_GPU: usize = 4;

/// The target of the span around everything that a rank does.
const RANK: &str = "rank";

/// A target that is enabled while GPUs are timed.
const GPUS: &str = "gpus";

/// The most spans that a trace holds: about three times as many as the default run has on two devices, in
/// about 100 MB of memory. Later spans are left out, and the run reports their number.
const MOST_SPANS: usize = 500_000;

/// Times the work of a device that runs behind its thread.
pub trait DeviceClock {
    /// Notes how far the device has come with its queue. Returns the mark's number, counted from 0; `None` when the
    /// device cannot note more.
    fn mark(&mut self) -> Option<usize>;

    /// Waits for all marks, and returns the time of each since the clock was made.
    fn times(&mut self) -> Vec<Duration>;
}

/// A device whose ranks can be traced. Its name is what it displays.
pub trait TracedDevice: fmt::Display {
    /// A clock for the work that this device's thread queues from now on; `None` where the thread itself does all work.
    fn clock(&self) -> Option<Box<dyn DeviceClock>>;
}

thread_local! {
    /// The clock of this thread's rank, and the spans that wait for its times.
    static ON_DEVICE: RefCell<Option<OnDevice>> = const { RefCell::new(None) };
}

/// Spans of one rank that are timed on its device.
struct OnDevice {
    clock: Box<dyn DeviceClock>,
    /// When the clock was made, since the recording began.
    began: Duration,
    /// Each span, with the numbers of its first and last mark.
    spans: Vec<(Span, usize, usize)>,
    recorded: Arc<Mutex<Recorded>>,
}

impl OnDevice {
    /// Adds the spans to the recording, with their times on the device.
    fn record(mut self) {
        let times = self.clock.times();
        let mut recorded = locked(&self.recorded);
        for (mut span, first, last) in self.spans {
            let (Some(&start), Some(&end)) = (times.get(first), times.get(last)) else { continue };
            span.start = self.began + start;
            span.duration = end.saturating_sub(start);
            recorded.push(span);
        }
    }
}

/// Until this guard is dropped, everything that its thread does is the work of one rank.
#[must_use = "work after the guard is dropped belongs to no rank"]
#[derive(Debug)]
pub struct Rank {
    _span: EnteredSpan,
}

impl Drop for Rank {
    fn drop(&mut self) {
        if let Some(on_device) = ON_DEVICE.take() {
            on_device.record();
        }
    }
}

/// Everything that this thread does until the guard is dropped is the work of `rank` on `device`.
pub fn rank(run: &str, rank: usize, device: &impl TracedDevice) -> Rank {
    let span = info_span!(target: RANK, "rank", run, rank, device = %device).entered();
    if tracing::enabled!(target: GPUS, Level::INFO) {
        recorder::time_on_device(device);
    }
    Rank { _span: span }
}

/// The trace of this process, while it is being recorded.
#[derive(Debug)]
pub struct Trace {
    recorded: Arc<Mutex<Recorded>>,
}

impl Trace {
    /// Begins to record the spans of all threads and, if `gpus` says so, the times of these spans on GPUs.
    ///
    /// # Errors
    ///
    /// When this process has a subscriber for spans already.
    pub fn begin(gpus: bool) -> io::Result<Self> {
        let (layer, recorded) = Recorder::new(gpus);
        let subscriber = Registry::default().with(layer);
        tracing::subscriber::set_global_default(subscriber).map_err(io::Error::other)?;
        Ok(Self { recorded })
    }

    /// The spans that have ended so far.
    pub(super) fn spans(&self) -> Vec<View> {
        locked(&self.recorded).spans.iter().map(Span::view).collect()
    }

    /// Writes the spans that have ended so far.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let recorded = locked(&self.recorded);
        file::write(path, |file| recorded.write(file))
    }

    /// How many spans had to be left out.
    pub(super) fn left_out(&self) -> usize {
        locked(&self.recorded).left_out
    }
}

/// A span that has ended, for whoever draws it.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) run: usize,
    pub(super) rank: usize,
    pub(super) target: &'static str,
    pub(super) name: &'static str,
    /// Its only number, if it has one: a bucket's, a step's.
    pub(super) number: Option<u64>,
    /// Since the recording began.
    pub(super) start: Duration,
    pub(super) duration: Duration,
}

impl View {
    pub(super) fn end(&self) -> Duration {
        self.start + self.duration
    }

    /// `bucket 3`
    pub(super) fn label(&self) -> String {
        match self.number {
            Some(number) => format!("{} {number}", self.name),
            None => self.name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn spans_lie_on_the_track_of_their_rank_and_kind() {
        let (recorder, recorded) = Recorder::new(false);
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
        locked(&recorded).write(&mut file).unwrap();
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
        let (recorder, recorded) = Recorder::new(false);
        tracing::subscriber::with_default(Registry::default().with(recorder), || {
            let _rank = info_span!(target: RANK, "rank", run = "one", rank = 0u64).entered();
            for _ in 0..MOST_SPANS + 3 {
                info_span!(target: COMPUTE, "forward").in_scope(|| ());
            }
        });
        let recorded = locked(&recorded);
        assert_eq!((recorded.spans.len(), recorded.left_out), (MOST_SPANS, 3));
    }

    /// A device that takes a second for everything that is queued.
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
            let (recorder, recorded) = Recorder::new(gpus);
            tracing::subscriber::with_default(Registry::default().with(recorder), || {
                let _rank = rank("one", 0, &Slow);
                let _step = info_span!(target: STEPS, "step", step = 7).entered();
                info_span!(target: COMPUTE, "forward").in_scope(|| ());
                info_span!(target: COMMUNICATION, "all-reduce").in_scope(|| ());
            });
            let recorded = locked(&recorded);
            let views = recorded.spans.iter().map(Span::view);
            let on_gpu: Vec<_> = views.filter(|view| view.target == GPU).collect();
            let seen: Vec<_> = on_gpu.iter().map(|view| (view.name, view.duration)).collect();
            let second = Duration::from_secs(1);
            assert_eq!(
                seen,
                if gpus { vec![("forward", second), ("all-reduce", second)] } else { vec![] }
            );
            assert!(!gpus || on_gpu[1].start - on_gpu[0].start == 2 * second);
        }
    }
}

//! `--trace FILE`: the work of every device over time, in Chrome's trace format. Perfetto opens the file
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

/// The target of epochs and steps.
pub const STEPS: &str = "steps";
/// The target of spans in which a device computes.
pub const COMPUTE: &str = "compute";
/// The target of spans in which a device sends or waits for another device.
pub const COMMUNICATION: &str = "communication";
/// The target of spans in which a second thread of the device sends and waits, while the first thread computes.
pub const BACKGROUND: &str = "background";
/// The track of times on a GPU. No span has this target: spans of [`COMPUTE`] and [`COMMUNICATION`] are drawn on this
/// track a second time.
const GPU: &str = "GPU";

/// The tracks of each rank, from top to bottom.
const TRACKS: [&str; 5] = [STEPS, COMPUTE, COMMUNICATION, BACKGROUND, GPU];

/// The index of [`GPU`] in [`TRACKS`].
const ON_GPU: usize = 4;

/// The target of the span around all work of a rank.
const RANK: &str = "rank";

/// A target that is enabled if spans are timed on GPUs.
const GPUS: &str = "gpus";

/// The most spans of a trace: about three times the number of the default run on two devices, in about 100 MB of memory.
/// Later spans are left out, and the run reports their number.
const MOST_SPANS: usize = 500_000;

/// Measures times on a device that works through a queue, behind the thread that fills the queue.
pub trait DeviceClock {
    /// Puts a mark into the device's queue. Returns the number of the mark, counted from 0, or `None` if there can be no
    /// further mark.
    fn mark(&mut self) -> Option<usize>;

    /// Waits until the device has reached all marks. Returns the time of each mark since the clock was made.
    fn times(&mut self) -> Vec<Duration>;
}

/// A device whose ranks can be traced. `Display` shows the device's name.
pub trait TracedDevice: fmt::Display {
    /// Makes a clock for the work that this device's thread queues from now on. Returns `None` if the device has no queue.
    fn clock(&self) -> Option<Box<dyn DeviceClock>>;
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

/// A guard: until it is dropped, all work of its thread belongs to one rank.
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

/// Assigns the work of this thread to `rank` on `device`, until the guard is dropped.
pub fn rank(run: &str, rank: usize, device: &impl TracedDevice) -> Rank {
    let span = info_span!(target: RANK, "rank", run, rank, device = %device).entered();
    if tracing::enabled!(target: GPUS, Level::INFO) {
        recorder::time_on_device(device);
    }
    Rank { _span: span }
}

/// The recording of this process's spans.
#[derive(Debug)]
pub struct Trace {
    recorded: Arc<Mutex<Recorded>>,
}

impl Trace {
    /// Begins to record the spans of all threads. With `gpus`, spans are timed on GPUs, too.
    ///
    /// # Errors
    ///
    /// When this process already has a subscriber for spans.
    pub fn begin(gpus: bool) -> io::Result<Self> {
        let (layer, recorded) = Recorder::new(gpus);
        let subscriber = Registry::default().with(layer);
        tracing::subscriber::set_global_default(subscriber).map_err(io::Error::other)?;
        Ok(Self { recorded })
    }

    /// Returns the spans that have ended.
    pub(super) fn spans(&self) -> Vec<View> {
        locked(&self.recorded).spans.iter().map(Span::view).collect()
    }

    /// Writes the spans that have ended.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let recorded = locked(&self.recorded);
        file::write(path, |file| recorded.write(file))
    }

    /// The number of spans that were left out.
    pub(super) fn left_out(&self) -> usize {
        locked(&self.recorded).left_out
    }
}

/// A span that has ended, as the timeline draws it.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) run: usize,
    pub(super) rank: usize,
    pub(super) target: &'static str,
    pub(super) name: &'static str,
    /// The value of the span's only field, if it is a number: of a bucket, or of a step.
    pub(super) number: Option<u64>,
    /// The time since the recording began.
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

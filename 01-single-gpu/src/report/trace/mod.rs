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
//! rank 0 background                      bucket 0 bucket 1
//! ```
//!
//! A span shows what the rank's *thread* was doing. A GPU works on after the thread has queued its work:
//! there, waiting shows where a result is read. What the GPU did when lies beside it, a track for each of
//! its streams, if NVIDIA's profiling library (CUPTI) is there to tell.
//!
//! Spans are kept in memory and written at the end, so that writing disturbs no measurement.

mod busy;
mod events;
mod gpus;
mod recorder;
mod windows;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::span::EnteredSpan;
use tracing::{Level, info_span};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::Registry;

use super::file;
use crate::device::ComputeDevice;
use crate::device::activity::{self, Told};
use crate::lock::locked;
pub(super) use busy::Busy;
use events::{Recorded, Span};
use recorder::Recorder;

/// The target of spans that cut a run into epochs and steps.
pub const STEPS: &str = "steps";
/// The target of spans in which a device computes.
pub const COMPUTE: &str = "compute";
/// The target of spans in which a device sends to, or waits for, another.
pub const COMMUNICATION: &str = "communication";

/// The target of spans in which a second thread of the device sends and waits, while the first computes.
pub const BACKGROUND: &str = "background";

/// The tracks of each rank, from top to bottom.
const TRACKS: [&str; 4] = [STEPS, COMPUTE, COMMUNICATION, BACKGROUND];

/// The target of the span around everything that a rank does.
const RANK: &str = "rank";

/// A target that somebody listens to where GPUs are to tell what they do.
const GPUS: &str = "gpus";

/// The most spans that a trace holds: about three times what the default run has on two devices, in
/// about 100 MB of memory. Later ones are left out, and the run says so.
const MOST_SPANS: usize = 500_000;

/// Until it is dropped, everything that this thread does is the work of a rank.
#[must_use = "what is done after it was dropped is no rank's work"]
#[derive(Debug)]
pub struct Rank {
    _span: EnteredSpan,
    /// Whether its GPU is asked what it does.
    on_gpu: bool,
}

impl Drop for Rank {
    fn drop(&mut self) {
        if self.on_gpu {
            // Next, the thread may end, and with it its part of the GPU.
            activity::fetch();
        }
    }
}

/// Everything that this thread does until the guard is dropped is the work of `rank` on `device`.
pub fn rank(run: &str, rank: usize, device: &ComputeDevice) -> Rank {
    let on_gpu = device.tensors().is_cuda() && tracing::enabled!(target: GPUS, Level::INFO);
    if on_gpu {
        // Why nothing will be told is asked for when the trace is written.
        let _ = activity::watch();
    }
    Rank { _span: info_span!(target: RANK, "rank", run, rank, device = %device).entered(), on_gpu }
}

/// The trace of this process, while it is being recorded.
#[derive(Debug)]
pub struct Trace {
    began: Instant,
    recorded: Arc<Mutex<Recorded>>,
}

impl Trace {
    /// Begins to record the spans of all threads and, if `gpus` says so, what GPUs do.
    ///
    /// # Errors
    ///
    /// When this process already has somebody listening to its spans.
    pub fn begin(gpus: bool) -> io::Result<Self> {
        let (layer, recorded) = Recorder::new(gpus);
        let began = layer.began();
        let subscriber = Registry::default().with(layer);
        tracing::subscriber::set_global_default(subscriber).map_err(io::Error::other)?;
        Ok(Self { began, recorded })
    }

    /// What was recorded so far.
    pub(super) fn spans(&self) -> Vec<View> {
        locked(&self.recorded).spans.iter().map(Span::view).collect()
    }

    /// Takes what GPUs did so far: all that was done when ranks' last results had been read.
    pub(super) fn of_gpus(&self) -> Told {
        if !locked(&self.recorded).ranks.iter().any(|(_, device)| device.starts_with("cuda:")) {
            return Told::default();
        }
        let mut told = match activity::watch() {
            Ok(()) => activity::take(),
            Err(why) => return Told { flaws: vec![why], ..Told::default() },
        };
        if told.activities.is_empty() {
            told.flaws.push("CUPTI told of nothing".to_owned());
        }
        told
    }

    /// What became of GPUs' time.
    pub(super) fn busy(&self, of_gpus: &Told) -> Vec<Busy> {
        Busy::of(&locked(&self.recorded), of_gpus, self.began)
    }

    /// The runs on GPUs of which none of `busy` tells.
    pub(super) fn untold(&self, busy: &[Busy]) -> Vec<String> {
        Busy::untold(&locked(&self.recorded), busy).into_iter().map(str::to_owned).collect()
    }

    /// Writes what was recorded so far.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(super) fn write(&self, path: &Path, of_gpus: &Told) -> io::Result<()> {
        let recorded = locked(&self.recorded);
        let of_gpus = gpus::events(&of_gpus.activities, self.began);
        file::write(path, |file| recorded.write(file, of_gpus))
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
        locked(&recorded).write(&mut file, std::iter::empty()).unwrap();
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
}

//! A subscriber of the `tracing` crate that records spans.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use tracing::span::{Attributes, Id};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::events::{Fields, Recorded, RunRank, Span};
use super::{
    BACKGROUND, COMMUNICATION, COMPUTE, GPUS, ON_DEVICE, ON_GPU, OnDevice, RANK, TRACKS,
    TracedDevice,
};
use crate::lock::locked;

/// The time at which a span was entered, and the number of the mark in the device's queue if the device has a clock.
struct Entered {
    at: Instant,
    mark: Option<usize>,
}

/// Records spans. The registry below this layer stores the parent and the attached data of each open span.
pub(super) struct Recorder {
    began: Instant,
    /// Whether spans are timed on GPUs, too.
    gpus: bool,
    recorded: Arc<Mutex<Recorded>>,
}

impl Recorder {
    /// Makes a recorder. Returns it with the recording that it fills.
    pub(super) fn new(gpus: bool) -> (Self, Arc<Mutex<Recorded>>) {
        let recorded = Arc::<Mutex<Recorded>>::default();
        (Self { began: Instant::now(), gpus, recorded: Arc::clone(&recorded) }, recorded)
    }
}

/// Times the further spans of this thread on `device`, too, if the device has a clock.
pub(super) fn time_on_device(device: &impl TracedDevice) {
    tracing::dispatcher::get_default(|subscriber| {
        if let (Some(recorder), Some(clock)) =
            (subscriber.downcast_ref::<Recorder>(), device.clock())
        {
            let (began, recorded) = (recorder.began.elapsed(), Arc::clone(&recorder.recorded));
            ON_DEVICE.set(Some(OnDevice { clock, began, spans: Vec::new(), recorded }));
        }
    });
}

/// Puts a mark into the queue of this thread's device, if the device has a clock.
fn mark(target: &str) -> Option<usize> {
    if target != COMPUTE && target != COMMUNICATION {
        return None;
    }
    ON_DEVICE.with_borrow_mut(|on_device| on_device.as_mut()?.clock.mark())
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    /// Spans of other crates have no track.
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let target = metadata.target();
        target == RANK || TRACKS.contains(&target) || (target == GPUS && self.gpus)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if span.metadata().target() != RANK {
            span.extensions_mut().insert(fields);
            return;
        }
        let mut recorded = locked(&self.recorded);
        let name = fields.text("run");
        let known = recorded.runs.iter().position(|run| *run == name);
        let run = known.unwrap_or_else(|| {
            recorded.runs.push(name);
            recorded.runs.len() - 1
        });
        let owner = RunRank { run, rank: fields.number("rank") };
        recorded.ranks.push((owner, fields.text("device")));
        span.extensions_mut().insert(owner);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let (at, mark) = (Instant::now(), mark(span.metadata().target()));
            span.extensions_mut().replace(Entered { at, mark });
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let now = Instant::now();
        let Some(span) = context.span(id) else { return };
        // A span within background work is background work, too.
        let background = span.scope().any(|span| span.metadata().target() == BACKGROUND);
        let target = if background { BACKGROUND } else { span.metadata().target() };
        let Some(track) = TRACKS.iter().position(|track| *track == target) else {
            return;
        };
        // The outermost span has the rank. Work that belongs to no rank has no track.
        let root = span.scope().last();
        let Some(owner) = root.and_then(|root| root.extensions().get::<RunRank>().copied()) else {
            return;
        };
        let mut attached = span.extensions_mut();
        let Some(Entered { at, mark: first }) = attached.remove() else { return };
        let span = Span {
            name: span.metadata().name(),
            track,
            owner,
            start: at - self.began,
            duration: now - at,
            fields: attached.remove().unwrap_or_default(),
        };
        if let (Some(first), Some(last)) = (first, mark(target)) {
            let on_device = Span { track: ON_GPU, ..span.clone() };
            ON_DEVICE.with_borrow_mut(|of_thread| {
                if let Some(of_thread) = of_thread {
                    of_thread.spans.push((on_device, first, last));
                }
            });
        }
        locked(&self.recorded).push(span);
    }
}

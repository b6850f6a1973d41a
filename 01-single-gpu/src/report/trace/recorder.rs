//! Listening to spans.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use tracing::span::{Attributes, Id};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::events::{Fields, Place, Recorded, Span};
use super::{BACKGROUND, GPUS, MOST_SPANS, RANK, TRACKS};
use crate::lock::locked;

/// When a span was entered.
struct Entered(Instant);

/// Listens to spans. The registry below it keeps, for each open span, its parent and what we attach.
pub(super) struct Recorder {
    began: Instant,
    /// Whether GPUs are to tell what they do.
    gpus: bool,
    recorded: Arc<Mutex<Recorded>>,
}

impl Recorder {
    /// A recorder, and what it records.
    pub(super) fn new(gpus: bool) -> (Self, Arc<Mutex<Recorded>>) {
        let recorded = Arc::<Mutex<Recorded>>::default();
        (Self { began: Instant::now(), gpus, recorded: Arc::clone(&recorded) }, recorded)
    }

    pub(super) fn began(&self) -> Instant {
        self.began
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    /// Other crates have spans too; they have no place on our tracks.
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
        // What is done within background work is background work.
        let background = span.scope().any(|span| span.metadata().target() == BACKGROUND);
        let target = if background { BACKGROUND } else { span.metadata().target() };
        let Some(track) = TRACKS.iter().position(|track| *track == target) else {
            return;
        };
        // The outermost span says whose work this is. Work that belongs to no rank has no track.
        let root = span.scope().last();
        let Some(place) = root.and_then(|root| root.extensions().get::<Place>().copied()) else {
            return;
        };
        let mut attached = span.extensions_mut();
        let Some(Entered(start)) = attached.remove() else { return };
        let mut recorded = locked(&self.recorded);
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

//! A model that something happens to in the middle of a run.

use std::cell::Cell;

use concise_wrapper::Error;
use concise_wrapper::model::Step;
use concise_wrapper::weights::Weights;
use split_batch::loader::Shards;

use crate::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Event {
    Nothing,
    /// As Ctrl-C: the step is the last one.
    Interrupt,
    /// As Ctrl-C in the evaluation after the step.
    InterruptEvaluation,
    Crash,
    /// The update makes weights infinite. The loss of the step is ordinary.
    RunAway,
}

/// An event in one step, counted from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut(pub(crate) usize, pub(crate) Event);

impl Cut {
    pub(crate) const NEVER: Self = Self(0, Event::Nothing);

    pub(crate) fn at(self, step: usize) -> Event {
        if step == self.0 { self.1 } else { Event::Nothing }
    }
}

/// A model whose steps are counted, and may end the run.
pub(crate) struct Watched<M, F> {
    model: M,
    event: F,
    pub(crate) steps: Cell<usize>,
    last: Cell<Event>,
}

impl<M: Model, F: Fn(usize) -> Event> Watched<M, F> {
    pub(crate) fn new(model: M, event: F) -> Self {
        Self { model, event, steps: Cell::new(0), last: Cell::new(Event::Nothing) }
    }
}

impl<M: Model, F: Fn(usize) -> Event> Model for Watched<M, F> {
    fn hosts(&self) -> Shards {
        self.model.hosts()
    }

    fn backward(&self, share: &LocalBatch) -> Result<Step, Error> {
        self.steps.set(self.steps.get() + 1);
        let event = (self.event)(self.steps.get());
        self.last.set(event);
        if event == Event::Crash {
            return Err(candle_core::Error::msg("crashed on purpose").into());
        }
        let Step { sums, mut gradients } = self.model.backward(share)?;
        if event == Event::RunAway {
            gradients[0] = gradients[0].affine(0.0, f64::INFINITY)?;
        }
        let mut sums = sums.read()?;
        sums.interrupts += u64::from(event == Event::Interrupt);
        Ok(Step { sums: sums.into(), gradients })
    }

    fn weights(&self) -> &Weights {
        self.model.weights()
    }

    fn evaluate(&self, images: &Dataset) -> Result<BatchSums, Error> {
        let mut sums = self.model.evaluate(images)?;
        sums.interrupts += u64::from(self.last.get() == Event::InterruptEvaluation);
        Ok(sums)
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        self.model.rank()
    }
}

pub(crate) fn cut<M: Model>(model: M, cut: Cut) -> Watched<M, impl Fn(usize) -> Event> {
    Watched::new(model, move |step| cut.at(step))
}

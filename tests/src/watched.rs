//! A model that something happens to in the middle of a run, for the tests of checkpoints.

use std::cell::{Cell, RefCell};
use std::ops::Deref;

use concise_wrapper::model::Step;
use concise_wrapper::optimizer::Optimizer;
use concise_wrapper::weights::{Named, Weights};
use concise_wrapper::{Error, Model};
use datasets::Dataset;
use harness::records::BatchSums;
use ops::update::overwrite;
use params_and_allreduce::communicator::SharedCommunicator;
use split_batch::loader::{LocalBatch, Shards};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    Nothing,
    /// As Ctrl-C: the step is the last one.
    Interrupt,
    /// As Ctrl-C in the evaluation after the step.
    InterruptEvaluation,
    Crash,
    /// The update makes a weight infinite. The loss of the step is ordinary.
    RunAway,
}

/// A model with an event in each step, counted from 1. The model is owned or borrowed.
pub struct Watched<M, F> {
    model: M,
    event: F,
    last: Cell<Event>,
    /// Of each step so far.
    pub losses: RefCell<Vec<f64>>,
}

impl<M, F: Fn(usize) -> Event> Watched<M, F> {
    pub fn new(model: M, event: F) -> Self {
        Self { model, event, last: Cell::new(Event::Nothing), losses: RefCell::default() }
    }
}

impl<M: Deref<Target: Model>, F: Fn(usize) -> Event> Model for Watched<M, F> {
    fn hosts(&self) -> Shards {
        self.model.hosts()
    }

    fn backward(&self, batch: &LocalBatch) -> Result<Step, Error> {
        self.model.backward(batch)
    }

    fn step(
        &self,
        batch: &LocalBatch,
        optimizer: &mut dyn Optimizer,
        rate: f64,
    ) -> Result<Step, Error> {
        let event = (self.event)(self.losses.borrow().len() + 1);
        self.last.set(event);
        if event == Event::Crash {
            return Err(candle_core::Error::msg("crashed on purpose").into());
        }
        let step = self.model.step(batch, optimizer, rate)?;
        if event == Event::RunAway {
            let Named { tensor, .. } = &self.model.weights().parameters[0];
            overwrite(&tensor.detach(), &tensor.affine(0.0, f64::INFINITY)?)?;
        }
        let mut sums = step.sums.read()?;
        sums.interrupts += u64::from(event == Event::Interrupt);
        self.losses.borrow_mut().push(sums.loss);
        Ok(Step { sums: sums.into(), ..step })
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

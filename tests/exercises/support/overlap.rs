//! A backward pass with one gradient after another, and all-reduces at the same time. In a check, the gradients are [given](Given). In
//! a run, stage 5 computes the gradients.

use std::cell::RefCell;
use std::collections::VecDeque;

use candle_core::{DType, Shape, Tensor};
use params_and_allreduce::communicator::{Communicator as _, Error};

use crate::ranks::Rank;

/// An action of an answer in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It took the gradient of this parameter.
    Gradient(usize),
    /// It learned that there are no more gradients.
    End,
    /// It started this bucket.
    Start(usize),
    /// It waited for a sum.
    Wait,
}

/// The work of a pass: one thread computes gradients, and a second thread sums buckets.
pub trait Work {
    /// Computes the next gradient.
    fn next_gradient(&self) -> Option<(usize, Tensor)>;

    /// Starts to sum a row of numbers over all ranks.
    fn start(&self, bucket: usize, row: &Tensor) -> Result<(), Error>;

    /// Waits for the oldest sum that was not waited for.
    fn wait(&self) -> Result<Tensor, Error>;
}

/// A backward pass on one rank, and the record of the answer's actions.
pub struct Pass<'a> {
    shapes: Vec<Shape>,
    work: Box<dyn Work + 'a>,
    events: RefCell<Vec<Event>>,
}

impl<'a> Pass<'a> {
    /// A pass with gradients of these shapes.
    pub fn new(shapes: Vec<Shape>, work: impl Work + 'a) -> Self {
        Self { shapes, work: Box::new(work), events: RefCell::default() }
    }

    /// Returns the shapes of all gradients, in the order of the parameters.
    pub fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    /// Computes the next gradient: returns its parameter and the gradient, in f32. Returns `None` at the end of the pass.
    pub fn next_gradient(&self) -> Option<(usize, Tensor)> {
        let next = self.work.next_gradient();
        self.record(next.as_ref().map_or(Event::End, |(parameter, _)| Event::Gradient(*parameter)));
        next
    }

    /// Starts the all-reduce of a bucket, a row of numbers. Returns at once. Fails when another rank has stopped.
    pub fn start(&self, bucket: usize, row: &Tensor) -> Result<(), Error> {
        self.record(Event::Start(bucket));
        self.work.start(bucket, row)
    }

    /// Waits for the sum of the oldest bucket that was started and not waited for. Fails when there is none, when another
    /// rank has another bucket in its place, and when another rank has stopped.
    pub fn wait(&self) -> Result<Tensor, Error> {
        let waits = |event: &&Event| **event == Event::Wait;
        let starts = |event: &&Event| matches!(event, Event::Start(_));
        let nothing = {
            let events = self.events.borrow();
            events.iter().filter(starts).count() == events.iter().filter(waits).count()
        };
        self.record(Event::Wait);
        if nothing {
            return Err(Error::Other("no bucket is on its way to wait for".to_owned()));
        }
        self.work.wait()
    }

    fn record(&self, event: Event) {
        self.events.borrow_mut().push(event);
    }

    /// Returns the actions of the answer.
    pub fn events(&self) -> Vec<Event> {
        self.events.borrow().clone()
    }
}

/// A pass of given gradients. Its all-reduces only send when they are started. They receive and add when the rank waits. So one
/// thread is enough, and all messages can be checked.
pub struct Given<'a> {
    rank: &'a Rank,
    coming: RefCell<VecDeque<(usize, Tensor)>>,
    started: RefCell<VecDeque<(usize, Tensor)>>,
}

impl<'a> Given<'a> {
    /// A pass that computes these gradients, in this order.
    pub fn new(rank: &'a Rank, coming: Vec<(usize, Tensor)>) -> Self {
        Self { rank, coming: RefCell::new(coming.into()), started: RefCell::default() }
    }
}

impl Work for Given<'_> {
    fn next_gradient(&self) -> Option<(usize, Tensor)> {
        self.coming.borrow_mut().pop_front()
    }

    fn start(&self, bucket: usize, row: &Tensor) -> Result<(), Error> {
        let rank = self.rank;
        let number = Tensor::new(bucket as u32, rank.device())?;
        for other in (0..rank.world_size()).filter(|&other| other != rank.rank()) {
            rank.send(other, &number)?;
            rank.send(other, row)?;
        }
        self.started.borrow_mut().push_back((bucket, row.copy()?));
        Ok(())
    }

    fn wait(&self) -> Result<Tensor, Error> {
        let rank = self.rank;
        let oldest = self.started.borrow_mut().pop_front();
        let (bucket, row) = oldest.ok_or_else(|| Error::Other("nothing was started".to_owned()))?;
        let mut sum: Option<Tensor> = None;
        for other in 0..rank.world_size() {
            let next = if other == rank.rank() {
                row.clone()
            } else {
                let theirs = rank.recv(other, &Shape::from(()), DType::U32)?.to_scalar::<u32>()?;
                if theirs as usize != bucket {
                    return Err(Error::Other(format!(
                        "deadlock: rank {} sums bucket {bucket}, and at the same place in its order rank {other} sums bucket {theirs}",
                        rank.rank()
                    )));
                }
                rank.recv(other, row.shape(), row.dtype())?
            };
            sum = Some(match sum {
                None => next,
                Some(sum) => (sum + next)?,
            });
        }
        Ok(sum.unwrap_or(row))
    }
}

//! A backward pass whose gradients come one by one, and all-reduces that run beside it.
//!
//! The all-reduces of this module only send when they are started. They receive and add when the rank waits. So one thread
//! is enough, and all messages can be checked.

use std::cell::RefCell;
use std::collections::VecDeque;

use candle_core::{DType, Shape, Tensor};
use params_and_allreduce::communicator::{Communicator as _, Error};

use crate::ranks::Rank;

/// What an answer has done with a pass.
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

/// A backward pass on one rank, and the rank's queue of all-reduces.
pub struct Pass<'a> {
    rank: &'a Rank,
    shapes: Vec<Shape>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    coming: VecDeque<(usize, Tensor)>,
    started: VecDeque<(usize, Tensor)>,
    events: Vec<Event>,
}

impl<'a> Pass<'a> {
    /// A pass that computes these gradients, in this order.
    pub fn new(rank: &'a Rank, shapes: Vec<Shape>, coming: Vec<(usize, Tensor)>) -> Self {
        let state = State { coming: coming.into(), ..State::default() };
        Self { rank, shapes, state: RefCell::new(state) }
    }

    /// Returns the shapes of all gradients, in the order of the parameters.
    pub fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    /// Computes the next gradient: returns its parameter and the gradient, in f32. Returns `None` at the end of the pass.
    pub fn next_gradient(&self) -> Option<(usize, Tensor)> {
        let mut state = self.state.borrow_mut();
        let next = state.coming.pop_front();
        let event = next.as_ref().map_or(Event::End, |(parameter, _)| Event::Gradient(*parameter));
        state.events.push(event);
        next
    }

    /// Starts the all-reduce of a bucket, a row of numbers. Returns at once. Fails when another rank has stopped.
    pub fn start(&self, bucket: usize, row: &Tensor) -> Result<(), Error> {
        let rank = self.rank;
        let number = Tensor::new(bucket as u32, rank.device())?;
        for other in (0..rank.world_size()).filter(|&other| other != rank.rank()) {
            rank.send(other, &number)?;
            rank.send(other, row)?;
        }
        let mut state = self.state.borrow_mut();
        state.started.push_back((bucket, row.copy()?));
        state.events.push(Event::Start(bucket));
        Ok(())
    }

    /// Waits for the sum of the oldest bucket that was started and not waited for. Fails when there is none, when another
    /// rank has another bucket in its place, and when another rank has stopped.
    pub fn wait(&self) -> Result<Tensor, Error> {
        let rank = self.rank;
        self.state.borrow_mut().events.push(Event::Wait);
        let Some((bucket, row)) = self.state.borrow_mut().started.pop_front() else {
            return Err(Error::Other("no bucket is on its way to wait for".to_owned()));
        };
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

    /// Returns what the answer has done.
    pub fn events(&self) -> Vec<Event> {
        self.state.borrow().events.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::{Sends, run};

    fn row(rank: &Rank) -> Result<Tensor, Error> {
        Ok(Tensor::new(&[1.0f32 + rank.rank() as f32], rank.device())?)
    }

    #[test]
    fn sums_come_in_the_order_of_the_starts() {
        let sums = run(3, Sends::Buffered, |rank| {
            let pass = Pass::new(rank, vec![Shape::from(1)], vec![(0, row(rank)?)]);
            let (_, gradient) = pass.next_gradient().expect("there is one gradient");
            pass.start(4, &gradient)?;
            pass.start(2, &(gradient * 10.0)?)?;
            assert!(pass.next_gradient().is_none());
            let sums = [pass.wait()?.to_vec1::<f32>()?, pass.wait()?.to_vec1::<f32>()?];
            assert!(pass.wait().is_err());
            Ok((sums, pass.events()))
        });
        let sums = sums.unwrap();
        use Event::{End, Gradient, Start, Wait};
        for (sums, events) in sums {
            assert_eq!(sums, [[6.0], [60.0]]);
            assert_eq!(events, [Gradient(0), Start(4), Start(2), End, Wait, Wait, Wait]);
        }
    }

    #[test]
    fn another_order_is_a_deadlock() {
        let failure = run(2, Sends::Buffered, |rank| {
            let pass = Pass::new(rank, Vec::new(), Vec::new());
            pass.start(rank.rank(), &row(rank)?)?;
            pass.wait()
        });
        assert!(failure.unwrap_err().to_string().contains("deadlock: rank "));
    }
}

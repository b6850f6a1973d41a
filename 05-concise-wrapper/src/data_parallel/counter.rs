//! Between the leader and the devices: orders one way, answers the other, and never a wait for a device that is gone.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use candle_core::Tensor;
use datasets::{Batch, Dataset};
use harness::records::BatchSums;
use harness::stopwatch::recv_timeout;
use single_gpu::evaluate::SumsByBatch;

/// What a device is told to do.
pub(super) enum Order {
    /// Loss and gradients of a shard.
    Backward(Batch),
    /// The logits of some images.
    Predict(Tensor),
    /// The sums over its part of the test images.
    Evaluate(Dataset),
    /// Batch norms are to use the statistics of all devices' images.
    SynchroniseNorms,
}

/// What it answers.
pub(super) enum Answer {
    /// The sums of its shard; from the first device, the gradients summed over all.
    Gradients(BatchSums, Vec<Tensor>),
    /// The logits; `None` of no images.
    Logits(Option<Tensor>),
    /// The sums of each batch of its part.
    Sums(SumsByBatch),
    /// Done.
    Done,
}

/// What comes from a device.
enum Said {
    /// What it was asked for.
    Answer(Answer),
    /// It ends, and why.
    Failed(String),
    /// It has ended, whatever it said before.
    Gone,
}

/// The leader's end.
pub(super) struct Leader {
    orders: Vec<Sender<Order>>,
    /// From all devices, by rank.
    answers: Receiver<(usize, Said)>,
    patience: Duration,
}

/// A device's end. When it is dropped, the leader hears of it.
pub(super) struct Follower {
    rank: usize,
    pub(super) orders: Receiver<Order>,
    answers: Sender<(usize, Said)>,
}

/// Why there are no answers.
#[derive(Debug, PartialEq)]
pub(super) enum Missing {
    /// A device has failed, and this is what it said.
    Failed(String),
    /// A device has ended without a word.
    Gone,
    /// This one says nothing, and another has answered long ago.
    Silent(usize),
}

/// The ends of so many devices, each of which may be so much slower than the first to answer.
///
/// Devices wait for each other too. Whoever does so in vain knows whom it waited for, and here that is not known: so
/// `patience` is to be longer than theirs.
pub(super) fn connect(devices: usize, patience: Duration) -> (Leader, Vec<Follower>) {
    let (answers, from_all) = channel();
    let (orders, followers) = (0..devices)
        .map(|rank| {
            let (sender, orders) = channel();
            (sender, Follower { rank, orders, answers: answers.clone() })
        })
        .unzip();
    (Leader { orders, answers: from_all, patience }, followers)
}

impl Leader {
    /// Gives every device an order, and waits for all answers, in rank order.
    ///
    /// As long as nobody has answered it waits: how long a step takes is not known here.
    pub(super) fn exchange(&self, orders: Vec<Order>) -> Result<Vec<Answer>, Missing> {
        for (device, order) in self.orders.iter().zip(orders) {
            device.send(order).map_err(|_| Missing::Gone)?;
        }
        let mut answers: Vec<Option<Answer>> = self.orders.iter().map(|_| None).collect();
        for answered in 0..answers.len() {
            let next = match answered {
                0 => self.answers.recv().map_err(RecvTimeoutError::from),
                _ => recv_timeout(&self.answers, self.patience),
            };
            match next {
                Ok((rank, Said::Answer(answer))) => answers[rank] = Some(answer),
                Ok((_, Said::Failed(text))) => return Err(Missing::Failed(text)),
                Ok((_, Said::Gone)) | Err(RecvTimeoutError::Disconnected) => {
                    return Err(Missing::Gone);
                }
                Err(RecvTimeoutError::Timeout) => {
                    let silent = answers.iter().position(Option::is_none);
                    return Err(silent.map_or(Missing::Gone, Missing::Silent));
                }
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }
}

impl Follower {
    /// Answers an order; false if nobody listens any more.
    pub(super) fn answer(&self, answer: Answer) -> bool {
        self.answers.send((self.rank, Said::Answer(answer))).is_ok()
    }

    /// Says why there will be no more answers, before anyone who needs this device hears that it has ended.
    pub(super) fn fail(&self, why: String) {
        // Where the leader is gone as well, nobody has to know.
        let _ = self.answers.send((self.rank, Said::Failed(why)));
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // Where the leader is gone as well, nobody has to know.
        let _ = self.answers.send((self.rank, Said::Gone));
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn orders(devices: usize) -> Vec<Order> {
        (0..devices).map(|_| Order::SynchroniseNorms).collect()
    }

    #[test]
    fn answers_come_in_the_order_of_ranks() {
        let (leader, followers) = connect(3, LONG);
        for follower in followers.iter().rev() {
            let rank = follower.rank;
            let sums = BatchSums { samples: rank as u64, ..BatchSums::default() };
            assert!(follower.answer(Answer::Gradients(sums, Vec::new())));
        }
        let samples = leader.exchange(orders(3)).unwrap().into_iter().map(|answer| match answer {
            Answer::Gradients(sums, _) => sums.samples,
            _ => u64::MAX,
        });
        assert_eq!(samples.collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn one_that_is_gone_is_not_waited_for() {
        let (leader, mut followers) = connect(3, LONG);
        assert!(followers[2].answer(Answer::Done));
        // Its thread ends, while the others wait for orders.
        let gone = followers.remove(1);
        let ends = thread::spawn(move || {
            drop(gone.orders.recv());
            drop(gone);
        });
        assert_eq!(leader.exchange(orders(3)).map(|_| ()), Err(Missing::Gone));
        ends.join().unwrap();
        assert_eq!(leader.exchange(orders(3)).map(|_| ()), Err(Missing::Gone));
    }

    #[test]
    fn the_first_that_fails_says_why() {
        let (leader, followers) = connect(3, LONG);
        assert!(followers[2].answer(Answer::Done));
        followers[1].fail("out of memory".to_owned());
        followers[0].fail("rank 1 failed".to_owned());
        let why = Missing::Failed("out of memory".to_owned());
        assert_eq!(leader.exchange(orders(3)).map(|_| ()), Err(why));
    }

    #[test]
    fn one_that_stalls_is_named() {
        let (leader, followers) = connect(3, Duration::from_millis(20));
        assert!(followers[0].answer(Answer::Done) && followers[2].answer(Answer::Done));
        assert_eq!(leader.exchange(orders(3)).map(|_| ()), Err(Missing::Silent(1)));
    }
}

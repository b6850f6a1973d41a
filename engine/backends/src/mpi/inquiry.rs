//! Who is to blame when nothing comes: the ranks' postmen ask each other.
//!
//! A rank that waits in vain may wait for one that itself waits for a third. The one to name is at the end
//! of the chain: the rank that waits for nobody, or the one whose process does not even answer. (A postman
//! is a thread of its own, and answers whatever its rank is busy with.) A chain that closes is a deadlock, unless a
//! message is on its way in it: two ranks between which one takes long hold each other up.

use std::sync::MutexGuard;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::postman::Answer;
use super::waiting::WaitsFor;
use crate::communicator::Error;
use crate::thread::roster::from_the_smallest;

/// An answer takes microseconds, and on a busy machine milliseconds. Who needs longer has been stopped.
const LIMIT: Duration = Duration::from_secs(3);

/// One rank's questions after it has waited too long.
pub(super) struct Inquiry<'a> {
    rank: usize,
    world_size: usize,
    waited: Duration,
    /// Sends a question to a rank; `false` where that is no longer possible.
    ask: Box<dyn Fn(usize) -> bool + 'a>,
    answers: MutexGuard<'a, Receiver<Answer>>,
}

impl<'a> Inquiry<'a> {
    pub(super) fn new(
        rank: usize,
        world_size: usize,
        waited: Duration,
        ask: Box<dyn Fn(usize) -> bool + 'a>,
        answers: MutexGuard<'a, Receiver<Answer>>,
    ) -> Self {
        Self { rank, world_size, waited, ask, answers }
    }

    /// What this rank is told, which waits for `whom`.
    pub(super) fn about(&self, whom: WaitsFor) -> Error {
        let mut met = vec![self.rank];
        // The last of them that is held up by the next.
        let mut held_up = None;
        let mut next = whom;
        loop {
            let rank = match next {
                WaitsFor::Rank(rank) => rank,
                WaitsFor::HeldUpBy(rank) => {
                    held_up = Some(met.len() - 1);
                    rank
                }
                WaitsFor::All => match self.absent(&met) {
                    Some(rank) => rank,
                    None => return self.unfinished(),
                },
                WaitsFor::Nobody => return self.timed_out(met.last().copied()),
            };
            if let Some(start) = met.iter().position(|earlier| *earlier == rank) {
                if let Some(held_up) = held_up.filter(|&held_up| held_up >= start) {
                    let by = met.get(held_up + 1).copied().unwrap_or(rank);
                    return self.slow(met[held_up], by);
                }
                return Error::Deadlock { circle: from_the_smallest(met.split_off(start)) };
            }
            met.push(rank);
            next = match self.answer(rank) {
                Some(whom) => whom,
                None => return self.silent(rank),
            };
        }
    }

    /// The first rank that takes no part in a sum; not one that was met before.
    fn absent(&self, met: &[usize]) -> Option<usize> {
        let others = (0..self.world_size).filter(|rank| !met.contains(rank));
        others.into_iter().find(|rank| self.answer(*rank) != Some(WaitsFor::All))
    }

    /// Whom a rank waits for; `None` if its process does not answer.
    fn answer(&self, rank: usize) -> Option<WaitsFor> {
        if !(self.ask)(rank) {
            return None;
        }
        let asked = Instant::now();
        loop {
            let left = LIMIT.checked_sub(asked.elapsed())?;
            match self.answers.recv_timeout(left).ok()? {
                (from, whom) if from == rank => return Some(whom),
                // To a question that was given up.
                _ => {}
            }
        }
    }

    fn timed_out(&self, rank: Option<usize>) -> Error {
        let (rank, seconds) = (rank.unwrap_or(self.rank), self.waited.as_secs_f64());
        Error::TimedOut { rank, seconds, waiting: self.rank }
    }

    fn silent(&self, rank: usize) -> Error {
        let (waited, limit) = (self.waited.as_secs_f64(), LIMIT.as_secs());
        let why = format!("sent nothing for {waited:.1} s, does not answer within {limit} s");
        Error::RankStopped { rank, why, waiting: self.rank }
    }

    fn slow(&self, one: usize, other: usize) -> Error {
        let (one, other) = (one.min(other), one.max(other));
        let (rank, waited) = (self.rank, self.waited.as_secs_f64());
        Error::Other(format!(
            "rank {rank} waited {waited:.1} s, and a message between ranks {one} and {other} is still on its way: is the \
             link so slow, or the time limit so short?"
        ))
    }

    fn unfinished(&self) -> Error {
        let (rank, waited) = (self.rank, self.waited.as_secs_f64());
        Error::Other(format!(
            "rank {rank} waited {waited:.1} s for a sum in which all ranks take part: do they add \
             tensors of one size and type?"
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use super::*;

    /// What rank 0 of a world is told when it waits for `whom` and the others answer like this.
    fn told(whom: WaitsFor, others: &[Option<WaitsFor>]) -> String {
        let (answer, answers) = channel();
        let answers = Mutex::new(answers);
        let ask = |rank: usize| match others[rank - 1] {
            Some(whom) => answer.send((rank, whom)).is_ok(),
            None => false,
        };
        let waited = Duration::from_secs(1);
        let answers = answers.lock().unwrap();
        Inquiry::new(0, others.len() + 1, waited, Box::new(ask), answers).about(whom).to_string()
    }

    #[test]
    fn the_end_of_the_chain_is_named() {
        use WaitsFor::{All, HeldUpBy, Nobody, Rank};
        let told_of = |others| told(Rank(1), others);
        let alive = told_of(&[Some(Rank(2)), Some(Rank(3)), Some(Nobody)]);
        assert!(alive.contains("rank 3 is alive but sends nothing"), "{alive}");
        let silent = told_of(&[Some(Rank(2)), None, Some(Nobody)]);
        assert!(silent.contains("rank 2 sent nothing for 1.0 s, does not answer"), "{silent}");
        let circle = told_of(&[Some(Rank(2)), Some(Rank(0)), Some(Nobody)]);
        assert!(circle.contains("rank 0 waits for rank 1, which waits for rank 2"), "{circle}");
        // Rank 1 cannot get rid of what the stopped rank 2 never fetches.
        let held_up = told_of(&[Some(HeldUpBy(2)), None, Some(Nobody)]);
        assert!(held_up.contains("rank 2 sent nothing for 1.0 s, does not answer"), "{held_up}");
        let slow = told_of(&[Some(HeldUpBy(2)), Some(HeldUpBy(1)), Some(Nobody)]);
        assert!(slow.contains("a message between ranks 1 and 2 is still on its way"), "{slow}");
        // Behind one that is held up, others wait for each other.
        let behind = told(HeldUpBy(1), &[Some(Rank(2)), Some(Rank(1))]);
        assert!(behind.contains("deadlock: rank 1 waits for rank 2"), "{behind}");
        let sum = told(All, &[Some(All), Some(Rank(3)), Some(Nobody)]);
        assert!(sum.contains("rank 3 is alive"), "{sum}");
        let everyone = told(All, &[Some(All), Some(All)]);
        assert!(everyone.contains("of one size"), "{everyone}");
    }
}

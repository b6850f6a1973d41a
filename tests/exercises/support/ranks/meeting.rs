//! The meeting point of all messages.
//!
//! One lock protects every message on the way and the state of each rank. A rank that is about to wait follows the chain of
//! waiting ranks. If the chain leads back to the rank itself, all ranks of the chain are blocked, and only a rank of the chain
//! could free another. This is a deadlock, and it is found at once on a machine of any speed. The proof needs one thread for
//! each rank, which [`Rank`](super::Rank) checks.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use candle_core::{Device, Tensor};
use harness::lock::locked;
use params_and_allreduce::communicator::Error;
use params_and_allreduce::thread::Traffic;

/// The messages that a rank has sent so far: number, sizes and receivers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Messages and bytes in all.
    pub traffic: Traffic,
    /// The bytes of the largest message; 0 if there was no message.
    pub largest_message: u64,
    /// The bytes of the smallest message; `None` if there was no message.
    pub smallest_message: Option<u64>,
    /// The receivers, in order.
    pub receivers: BTreeSet<usize>,
    /// The length of the longest chain of messages that ends with one of its messages: in a chain, the sender of each
    /// message has received the one before.
    pub longest_chain: u64,
}

impl Sent {
    /// Counts a message of so many bytes to a rank, at the end of a chain of this length.
    fn add(&mut self, to: usize, bytes: u64, chain: u64) {
        self.traffic.messages += 1;
        self.traffic.bytes += bytes;
        self.largest_message = self.largest_message.max(bytes);
        self.smallest_message = Some(self.smallest_message.map_or(bytes, |least| least.min(bytes)));
        self.receivers.insert(to);
        self.longest_chain = self.longest_chain.max(chain);
    }
}

/// The moment at which a send returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sends {
    /// At once; the message is kept until it is received. Like `MPI_Bsend` and the channels of stage 2.
    Buffered,
    /// After the message has been received. Like `MPI_Ssend`, `MPI_Send` of large messages, and NCCL. An algorithm has to work
    /// with this.
    WaitForReceiver,
}

/// The state of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Working,
    ReceivingFrom(usize),
    SendingTo(usize),
    Done,
}

/// A rank whose messages fail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) rank: usize,
    /// Its sends fail.
    pub(super) sends: bool,
    /// Its receives fail.
    pub(super) receives: bool,
}

/// The error of a message that fails.
pub(super) const CUT: &str = "the cable is cut";

/// All messages between ranks, and the states of the ranks.
#[derive(Debug)]
pub(super) struct Meeting {
    sends: Sends,
    fault: Option<Fault>,
    state: Mutex<State>,
    /// A message came or went, or a rank is done.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Sent and not yet received, by sender and receiver; with each message, the length of the chain that ends with it.
    messages: Vec<Vec<VecDeque<(Tensor, u64)>>>,
    /// For each rank, the length of the longest chain of messages that it has received.
    chains: Vec<u64>,
    doing: Vec<Doing>,
    sent: Vec<Sent>,
    first_failure: Option<(usize, String)>,
    deadlock: Option<Vec<usize>>,
    /// Whether a message has failed.
    fault_met: bool,
}

impl Meeting {
    pub(super) fn new(world_size: usize, sends: Sends, fault: Option<Fault>) -> Self {
        let state = State {
            messages: vec![vec![VecDeque::new(); world_size]; world_size],
            chains: vec![0; world_size],
            doing: vec![Doing::Working; world_size],
            sent: vec![Sent::default(); world_size],
            first_failure: None,
            deadlock: None,
            fault_met: false,
        };
        Self { sends, fault, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn world_size(&self) -> usize {
        self.lock().doing.len()
    }

    /// The messages that a rank has sent so far.
    pub(super) fn sent(&self, rank: usize) -> Sent {
        self.lock().sent[rank].clone()
    }

    /// Sends a tensor in CPU memory that no other rank holds.
    pub(super) fn send(&self, rank: usize, to: usize, message: Tensor) -> Result<(), Error> {
        debug_assert!(matches!(message.device(), Device::Cpu));
        let mut state = self.lock();
        state.check_ranks(rank, to)?;
        state.fail_if(self.fault.is_some_and(|fault| fault.rank == rank && fault.sends))?;
        let bytes = (message.elem_count() * message.dtype().size_in_bytes()) as u64;
        let chain = state.chains[rank] + 1;
        state.sent[rank].add(to, bytes, chain);
        state.messages[rank][to].push_back((message, chain));
        self.changed.notify_all();
        while self.sends == Sends::WaitForReceiver && !state.messages[rank][to].is_empty() {
            state = self.wait(state, rank, Doing::SendingTo(to))?;
        }
        state.doing[rank] = Doing::Working;
        Ok(())
    }

    /// Waits for the next message from a rank.
    pub(super) fn receive(&self, rank: usize, from: usize) -> Result<Tensor, Error> {
        let mut state = self.lock();
        state.check_ranks(rank, from)?;
        state.fail_if(self.fault.is_some_and(|fault| fault.rank == rank && fault.receives))?;
        loop {
            if let Some((message, chain)) = state.messages[from][rank].pop_front() {
                state.chains[rank] = state.chains[rank].max(chain);
                state.doing[rank] = Doing::Working;
                self.changed.notify_all();
                return Ok(message);
            }
            state = self.wait(state, rank, Doing::ReceivingFrom(from))?;
        }
    }

    /// Whether the faulty rank has tried to send or receive a message that fails.
    pub(super) fn fault_was_met(&self) -> bool {
        self.lock().fault_met
    }

    /// Records that a rank is done, and the reason if it failed.
    pub(super) fn leave(&self, rank: usize, failure: Option<&String>) {
        let mut state = self.lock();
        state.doing[rank] = Doing::Done;
        if let Some(why) = failure {
            state.first_failure.get_or_insert_with(|| (rank, why.clone()));
        }
        self.changed.notify_all();
    }

    /// The result, when all ranks are done.
    pub(super) fn verdict(&self) -> Result<(), String> {
        let state = self.lock();
        if let Some(circle) = &state.deadlock {
            return Err(Error::Deadlock { circle: circle.clone() }.to_string());
        }
        if let Some((rank, why)) = &state.first_failure {
            return Err(format!("rank {rank} {why}"));
        }
        for (from, to_each) in state.messages.iter().enumerate() {
            for (to, unread) in to_each.iter().enumerate() {
                if !unread.is_empty() {
                    return Err(format!(
                        "rank {from} sent a message that rank {to} never received"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The states of all ranks when their time is up.
    pub(super) fn standstill(&self, limit: Duration) -> String {
        let doing = |(rank, doing): (usize, &Doing)| match doing {
            Doing::Working => {
                Some(format!("rank {rank} is still at work (a loop that never ends?)"))
            }
            Doing::ReceivingFrom(other) | Doing::SendingTo(other) => {
                Some(format!("rank {rank} waits for rank {other}"))
            }
            Doing::Done => None,
        };
        let state = self.lock();
        let all: Vec<String> = state.doing.iter().enumerate().filter_map(doing).collect();
        format!("after {:.1} s {}", limit.as_secs_f64(), all.join(", "))
    }

    /// Waits until something has changed. Fails when no rank is left that could change it.
    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        rank: usize,
        doing: Doing,
    ) -> Result<MutexGuard<'a, State>, Error> {
        state.doing[rank] = doing;
        let outcome = state.can_be_freed(rank);
        if outcome.is_err() {
            self.changed.notify_all();
        }
        outcome?;
        Ok(self.changed.wait(state).unwrap_or_else(PoisonError::into_inner))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

impl State {
    fn check_ranks(&self, rank: usize, other: usize) -> Result<(), Error> {
        let world_size = self.doing.len();
        if other == rank || other >= world_size {
            return Err(Error::NoSuchRank { rank, other, world_size });
        }
        Ok(())
    }

    /// Fails the message of a rank with a fault.
    fn fail_if(&mut self, fails: bool) -> Result<(), Error> {
        self.fault_met |= fails;
        if fails { Err(Error::Other(CUT.to_owned())) } else { Ok(()) }
    }

    /// The rank for which a rank waits, if it still waits.
    fn blocked_by(&self, rank: usize) -> Option<usize> {
        match self.doing[rank] {
            Doing::ReceivingFrom(other) if self.messages[other][rank].is_empty() => Some(other),
            Doing::SendingTo(other) if !self.messages[rank][other].is_empty() => Some(other),
            _ => None,
        }
    }

    /// Fails when no rank can free a blocked rank.
    fn can_be_freed(&mut self, rank: usize) -> Result<(), Error> {
        if self.deadlock.is_none() {
            self.deadlock = self.circle_through(rank);
        }
        if let Some(circle) = &self.deadlock {
            return Err(Error::Deadlock { circle: circle.clone() });
        }
        match self.blocked_by(rank) {
            Some(other) if self.doing[other] == Doing::Done => Err(self.left(rank, other)),
            _ => Ok(()),
        }
    }

    /// The ranks that wait for each other if `rank` does, from the smallest on.
    fn circle_through(&self, rank: usize) -> Option<Vec<usize>> {
        let mut circle = vec![rank];
        let mut last = self.blocked_by(rank)?;
        // A chain with more links than ranks has run into a circle without `rank`.
        while last != rank && circle.len() < self.doing.len() {
            circle.push(last);
            last = self.blocked_by(last)?;
        }
        if last != rank {
            return None;
        }
        let smallest = circle.iter().min().and_then(|min| circle.iter().position(|r| r == min));
        circle.rotate_left(smallest.unwrap_or_default());
        Some(circle)
    }

    /// The error of a rank that waits for a rank that is done.
    fn left(&self, waiting: usize, other: usize) -> Error {
        let returned = match self.doing[waiting] {
            Doing::SendingTo(_) => "returned without receiving all that was sent to it",
            _ => "returned early",
        };
        let (rank, why) = match &self.first_failure {
            Some((rank, why)) => (*rank, why.clone()),
            None => (other, returned.to_owned()),
        };
        Error::RankStopped { rank, why, waiting }
    }
}

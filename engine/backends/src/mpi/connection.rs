//! A connection of a rank to all other ranks: messages on their way, waiting with a time limit, failures.
//!
//! No call of MPI blocks here. Ranks may therefore all send first and receive then, and a rank that was stopped delays only
//! the ranks that need its messages. MPI moves a large message only while somebody calls MPI. A rank that waits calls it again
//! and again. While the rank computes, the connection's *progress thread* does.

#![expect(unsafe_code, reason = "MPI's objects are pointers, which Rust keeps in one thread")]

use std::collections::VecDeque;
use std::io::Write as _;
use std::process::exit;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;
use std::{io, mem};

use ::mpi::Tag;
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator as _, Equivalence, MatchedReceiveVec as _, Source as _};
use harness::lock::locked;
use harness::stopwatch::Stopwatch;
use params_and_allreduce::communicator::Error;

use super::message::{Header, Transfer, decode_words, encode_words};
use super::wait_graph::{ALL, ANSWER_LIMIT, Answer, NOBODY, find_cause};
use crate::process::{pause, print_failure};

// The kinds of messages, which are MPI's tags.
/// The type and shape of a tensor.
const HEADER: Tag = 1;
/// The bytes of a tensor, behind its header.
const BYTES: Tag = 2;
/// The sender's work is done: no tensor follows.
const FAREWELL: Tag = 3;
/// The question for which rank the receiver waits.
const ASK: Tag = 4;
/// The rank that the sender waits for, and whether a part of its message has arrived.
const ANSWER: Tag = 5;
/// To rank 0: the reason why the sender has failed.
const FAILURE: Tag = 6;

/// The content of a message whose tag says all. MPI sends no message without a byte.
const NOTHING: &[u8] = &[0];

/// If rank 0 has not ended the job within this time after a failure, the failed rank does.
const REPORT_LIMIT: Duration = Duration::from_secs(3);

/// If MPI has not ended the job within this time, this process ends itself, and `mpirun` ends the job.
const ABORT_LIMIT: Duration = Duration::from_secs(5);

/// The pause of the progress thread while a message is on its way.
const NAP: Duration = Duration::from_micros(50);

/// The pause of the progress thread otherwise: so long a large message waits before it is fetched.
const LONG_NAP: Duration = Duration::from_micros(500);

/// A rank's end of one connection to all other ranks. Any thread may use it.
pub(super) struct Connection {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) timeout: Duration,
    /// `None` when the work of all ranks is done.
    state: Mutex<Option<State>>,
    /// Wakes the progress thread.
    changed: Condvar,
}

impl Connection {
    /// Opens a connection, and starts its progress thread. All ranks call this together, for one connection
    /// at a time. Messages of two duplicates of MPI's world never meet.
    pub(super) fn open(
        name: &str,
        timeout: Duration,
    ) -> Result<(Arc<Self>, JoinHandle<()>), Error> {
        let world = SimpleCommunicator::world().duplicate();
        let (rank, world_size) = (world.rank() as usize, world.size() as usize);
        let state = State {
            world,
            outgoing: Vec::new(),
            incoming: (0..world_size).map(|_| VecDeque::new()).collect(),
            done: vec![false; world_size],
            waits_for: NOBODY,
            answers: vec![None; world_size],
            gave_up_a_sum: false,
        };
        let (state, changed) = (Mutex::new(Some(state)), Condvar::new());
        let connection = Arc::new(Self { rank, world_size, timeout, state, changed });
        let its_connection = Arc::clone(&connection);
        let thread = thread::Builder::new().name(format!("mpi {name}"));
        let thread = thread.spawn(move || its_connection.run_progress_thread());
        let thread = thread.map_err(|error| {
            Error::Other(format!("a thread for MPI could not be started: {error}"))
        });
        Ok((connection, thread?))
    }

    /// Lets MPI work until the work of all ranks is done.
    fn run_progress_thread(&self) {
        let mut guard = locked(&self.state);
        while let Some(state) = &mut *guard {
            state.advance();
            if state.is_done() {
                *guard = None;
                return;
            }
            let nap = if state.is_busy() { NAP } else { LONG_NAP };
            let woken = self.changed.wait_timeout(guard, nap);
            guard = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> Result<R, Error> {
        match &mut *locked(&self.state) {
            Some(state) if !state.done[self.rank] => Ok(work(state)),
            _ => Err(self.stopped(self.rank, "has ended")),
        }
    }

    fn stopped(&self, rank: usize, why: &str) -> Error {
        Error::RankStopped { rank, why: why.to_owned(), waiting: self.rank }
    }

    /// Starts to send the bytes of a tensor, behind its header.
    pub(super) fn send(&self, to: usize, header: Vec<u8>, bytes: Vec<u8>) -> Result<(), Error> {
        self.with(|state| {
            state.start(to, HEADER, header);
            state.start(to, BYTES, bytes);
            if state.is_busy() {
                self.changed.notify_one();
            }
        })
    }

    /// Waits for the header and the bytes of the next tensor of a rank.
    pub(super) fn recv(&self, from: usize) -> Result<(Header, Vec<u8>), Error> {
        let message = self.wait(from, |state| match state.take(from) {
            // A rank sends its last tensor before its farewell.
            None if state.done[from] && state.incoming[from].is_empty() => Some(None),
            message => message.map(Some),
        })?;
        message.ok_or_else(|| self.stopped(from, "returned early"))
    }

    /// Adds up the numbers of all ranks with MPI's all-reduce.
    pub(super) fn all_reduce<T>(&self, addends: Vec<T>) -> Result<Vec<T>, Error>
    where
        T: Equivalence + Clone + Default + 'static,
    {
        let mut transfer = self.with(|state| Transfer::all_reduce(&state.world, addends))?;
        let sum = self.wait(ALL, |_| transfer.finished());
        if sum.is_err() {
            // MPI cannot call an all-reduce off: it may still write to this memory.
            mem::forget(transfer);
            let _ = self.with(|state| state.gave_up_a_sum = true);
        }
        sum
    }

    /// Waits until `look` finds something. Other ranks that ask learn for whom this rank waits, also after an error.
    fn wait<T>(
        &self,
        whom: usize,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Error> {
        let found = self.poll(self.timeout, |state| {
            state.waits_for = whom;
            look(state).inspect(|_| state.waits_for = NOBODY)
        })?;
        if let Some(found) = found {
            return Ok(found);
        }
        self.with(|state| {
            state.answers.fill(None);
            (0..self.world_size).for_each(|rank| state.start(rank, ASK, NOTHING.to_vec()));
        })?;
        self.poll(ANSWER_LIMIT, |state| (!state.answers.contains(&None)).then_some(()))?;
        self.with(|state| Err(find_cause(self.rank, self.timeout, &state.answers)))?
    }

    /// Lets MPI work until `look` finds something, at most for `limit`.
    fn poll<T>(
        &self,
        limit: Duration,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut clock = Stopwatch::start();
        loop {
            let found = self.with(|state| {
                state.advance();
                look(state)
            })?;
            let waited = clock.elapsed();
            if found.is_some() || waited >= limit {
                return Ok(found);
            }
            pause(waited);
        }
    }

    /// Reports that this rank has failed, and ends the job, with exit code 1. No destructors run.
    ///
    /// Ranks often fail together, for one cause. Rank 0 prints the first failure that it gets, and ends the job.
    pub(super) fn fail(&self, why: &str) -> ! {
        let _ = io::stdout().flush();
        let text = format!("rank {} {why}", self.rank);
        let _ = self.with(|state| state.start(0, FAILURE, text.clone().into_bytes()));
        sleep(REPORT_LIMIT);
        end_job(&text)
    }

    /// The rank's work is done. Every later call fails.
    pub(super) fn leave(&self) {
        if let Ok(true) = self.with(|state| state.gave_up_a_sum) {
            self.fail("failed: it left while a sum of all ranks was unfinished");
        }
        let _ = self.with(|state| {
            for other in (0..self.world_size).filter(|&other| other != self.rank) {
                state.start(other, FAREWELL, NOTHING.to_vec());
            }
            state.done[self.rank] = true;
        });
        self.changed.notify_one();
    }
}

/// Prints the reason, and ends all processes of the job, with exit code 1. No destructors run.
#[expect(clippy::disallowed_methods, reason = "ends a job in which nothing can return")]
pub(super) fn end_job(reason: &str) -> ! {
    print_failure(reason);
    // MPI, or standard output, may wait for another thread.
    thread::spawn(|| {
        sleep(ABORT_LIMIT);
        exit(1);
    });
    let _ = io::stdout().flush();
    SimpleCommunicator::world().abort(1)
}

/// The state of a connection.
struct State {
    world: SimpleCommunicator,
    outgoing: Vec<Transfer<u8>>,
    /// By sender, in the order in which they were sent: every tensor that was not taken.
    incoming: Vec<VecDeque<(Header, Transfer<u8>)>>,
    /// By rank: whether its work is done.
    done: Vec<bool>,
    /// The rank that this rank waits for, [`NOBODY`] or [`ALL`].
    waits_for: usize,
    /// Of all ranks, since the last question.
    answers: Vec<Option<Answer>>,
    /// Whether this rank has begun an all-reduce and given up waiting for it.
    gave_up_a_sum: bool,
}

// SAFETY: MPI was initialised for several threads. Any thread may use its objects, and a lock lets one thread at a time.
unsafe impl Send for State {}

impl State {
    /// Starts to send a message.
    fn start(&mut self, to: usize, tag: Tag, content: Vec<u8>) {
        let mut transfer = Transfer::send(&self.world.process_at_rank(to as i32), tag, content);
        if transfer.finished().is_none() {
            self.outgoing.push(transfer);
        }
    }

    /// Takes the next tensor of a rank, if all of it has arrived.
    fn take(&mut self, from: usize) -> Option<(Header, Vec<u8>)> {
        let bytes = self.incoming[from].front_mut()?.1.finished()?;
        let (header, _) = self.incoming[from].pop_front()?;
        Some((header, bytes))
    }

    /// Lets MPI work: fetches every message that has arrived, whether this rank waits for it or not, and answers questions.
    fn advance(&mut self) {
        while let Some((message, status)) = self.world.any_process().immediate_matched_probe() {
            let (from, tag) = (status.source_rank() as usize, status.tag());
            let content: Vec<u8> = (message, status).matched_receive_vec().0;
            match tag {
                HEADER => {
                    let Some(header) = Header::decode(&content) else {
                        end_job(&format!("rank {from} is another program"));
                    };
                    let sender = self.world.process_at_rank(from as i32);
                    let bytes = Transfer::receive(&sender, BYTES, header.following_bytes());
                    self.incoming[from].push_back((header, bytes));
                }
                FAREWELL => self.done[from] = true,
                ASK => {
                    let incoming = self.incoming.get(self.waits_for);
                    let arriving = incoming.is_some_and(|it| !it.is_empty());
                    let answer = [self.waits_for, arriving.into()];
                    self.start(from, ANSWER, encode_words(&answer));
                }
                ANSWER => {
                    if let [waits_for, arriving] = decode_words(&content)[..] {
                        self.answers[from] = Some(Answer { waits_for, arriving: arriving != 0 });
                    }
                }
                FAILURE => end_job(&String::from_utf8_lossy(&content)),
                _ => {}
            }
        }
        self.outgoing.retain_mut(|transfer| transfer.finished().is_none());
    }

    /// Whether a message is on its way.
    fn is_busy(&self) -> bool {
        !self.outgoing.is_empty() || self.incoming.iter().any(|messages| !messages.is_empty())
    }

    /// Whether the work of all ranks is done, and every message has arrived.
    fn is_done(&mut self) -> bool {
        let mut incoming = self.incoming.iter_mut().flatten();
        self.outgoing.is_empty()
            && !self.done.contains(&false)
            && incoming.all(|(_, bytes)| bytes.finished().is_some())
    }
}

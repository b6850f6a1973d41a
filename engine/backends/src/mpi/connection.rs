//! A connection of a rank to all other ranks: messages on their way, waiting with a time limit, failures.
//!
//! No call of MPI blocks here. Ranks may therefore all send first and receive then, and a rank that was stopped delays only
//! the ranks that need its messages. MPI moves a large message only while somebody calls MPI. A rank that waits calls it again
//! and again. While the rank computes, the connection's *progress thread* does.

#![expect(unsafe_code, reason = "MPI's objects are pointers, and MPI uses memory after a call")]

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;
use std::{mem, slice};

use ::mpi::Tag;
use ::mpi::collective::SystemOperation;
use ::mpi::request::{Request, StaticScope};
use ::mpi::topology::{Process, SimpleCommunicator};
use ::mpi::traits::*;
use candle_core::{Device, Error as TensorError, Tensor, WithDType};
use harness::cli::end_process;
use harness::lock::locked;
use harness::stopwatch::{Stopwatch, pause};
use params_and_allreduce::communicator::Error;
use serde::{Deserialize, Serialize};

use super::wait_graph::{ANSWER_LIMIT, Answer, WaitsFor, find_cause};

/// The tag of notes, in JSON.
const NOTE: Tag = 1;
/// The tag of the bytes of a tensor.
const BYTES: Tag = 2;

/// What ranks tell each other beside the bytes of tensors.
#[derive(Serialize, Deserialize)]
enum Note {
    /// A tensor of so many bytes follows: its type and shape in words.
    Header(usize, String),
    /// The sender's work is done: no tensor follows.
    Farewell,
    /// The question for which rank the receiver waits.
    Ask,
    Answer(Answer),
    /// To rank 0: the reason why the sender has failed.
    Failure(String),
}

/// The most elements of one request: MPI counts them in 31 bits.
const PART: usize = 1 << 30;

/// The time after a failure within which rank 0 ends the job. Later, the failed rank does.
const REPORT_LIMIT: Duration = Duration::from_secs(3);

// The pause of the progress thread while a message is on its way, and otherwise: so long a large message waits.
const NAP: Duration = Duration::from_micros(50);
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
    /// Opens a connection, and starts its progress thread. All ranks call this together, for one connection at a time.
    /// Messages of two connections never meet.
    pub(super) fn open(timeout: Duration) -> Result<(Arc<Self>, JoinHandle<()>), Error> {
        let world = SimpleCommunicator::world().duplicate();
        let (rank, world_size) = (world.rank() as usize, world.size() as usize);
        let state = State {
            world,
            outgoing: Vec::new(),
            incoming: (0..world_size).map(|_| VecDeque::new()).collect(),
            done: vec![false; world_size],
            waits_for: WaitsFor::Nobody,
            answers: vec![None; world_size],
            gave_up_a_sum: false,
        };
        let (state, changed) = (Mutex::new(Some(state)), Condvar::new());
        let connection = Arc::new(Self { rank, world_size, timeout, state, changed });
        let its_connection = Arc::clone(&connection);
        let thread = thread::Builder::new().name("MPI's progress".to_owned());
        let thread = thread.spawn(move || its_connection.run_progress_thread());
        Ok((connection, thread.map_err(TensorError::wrap)?))
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

    /// Starts to send a tensor: its type and shape in words, and its bytes.
    pub(super) fn send(&self, to: usize, kind: String, bytes: Vec<u8>) -> Result<(), Error> {
        self.with(|state| {
            state.send_note(to, &Note::Header(bytes.len(), kind));
            state.send(to, BYTES, bytes);
            if state.is_busy() {
                self.changed.notify_one();
            }
        })
    }

    /// Waits for the next tensor of a rank: its type and shape in words, and its bytes.
    pub(super) fn recv(&self, from: usize) -> Result<(String, Vec<u8>), Error> {
        let message =
            self.wait(WaitsFor::Rank(from), |state| match state.incoming[from].front_mut() {
                Some((_, bytes)) => {
                    let bytes = bytes.finished()?;
                    Some(state.incoming[from].pop_front().map(|(kind, _)| (kind, bytes)))
                }
                // A rank sends its last tensor before its farewell.
                None => state.done[from].then_some(None),
            })?;
        message.ok_or_else(|| self.stopped(from, "returned early"))
    }

    /// Adds up the flat tensors of all ranks with MPI's all-reduce, which cannot be called off.
    pub(super) fn all_reduce<T>(&self, flat: &Tensor) -> Result<Tensor, Error>
    where
        T: Equivalence + WithDType + Default,
    {
        let addends = flat.to_vec1::<T>()?;
        let mut transfer = self.with(|state| Transfer::all_reduce(&state.world, addends))?;
        let sum = self.wait(WaitsFor::All, |_| transfer.finished());
        if sum.is_err() {
            let _ = self.with(|state| state.gave_up_a_sum = true);
        }
        Ok(Tensor::from_vec(sum?, flat.shape(), &Device::Cpu)?)
    }

    /// Lets MPI work until `look` finds something. When the time is up, this rank asks all ranks for whom they wait. Its own
    /// answer is `whom`, also after an error.
    fn wait<T>(
        &self,
        whom: WaitsFor,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Error> {
        let (mut clock, mut asked) = (Stopwatch::start(), false);
        loop {
            let waited = clock.elapsed();
            let outcome = self.with(|state| {
                state.advance();
                state.waits_for = whom;
                if let Some(found) = look(state) {
                    state.waits_for = WaitsFor::Nobody;
                    return Some(Ok(found));
                }
                if waited >= self.timeout && !asked {
                    asked = true;
                    state.answers.fill(None);
                    (0..self.world_size).for_each(|rank| state.send_note(rank, &Note::Ask));
                }
                let late = waited >= self.timeout.saturating_add(ANSWER_LIMIT);
                let answered = late || asked && !state.answers.contains(&None);
                answered.then(|| Err(find_cause(self.rank, self.timeout, &state.answers)))
            })?;
            match outcome {
                Some(outcome) => return outcome,
                None => pause(waited),
            }
        }
    }

    /// Reports that this rank has failed, and ends the job, with exit code 1. No destructors run. Ranks often fail together,
    /// for one cause. Rank 0 prints the first failure that it gets.
    pub(super) fn fail(&self, why: &str) -> ! {
        let _ = io::stdout().flush();
        let text = format!("rank {} {why}", self.rank);
        let _ = self.with(|state| state.send_note(0, &Note::Failure(text.clone())));
        sleep(REPORT_LIMIT);
        end_job(&text)
    }

    /// Sends farewells: the rank's work is done. Every later call fails.
    pub(super) fn leave(&self) {
        if self.with(|state| state.gave_up_a_sum).is_ok_and(|gave_up| gave_up) {
            self.fail("failed: it left while a sum of all ranks was unfinished");
        }
        let _ = self.with(|state| {
            let others = (0..self.world_size).filter(|&other| other != self.rank);
            others.for_each(|other| state.send_note(other, &Note::Farewell));
            state.done[self.rank] = true;
        });
        self.changed.notify_one();
    }
}

/// Prints the reason, and ends all processes of the job, with exit code 1.
fn end_job(reason: &str) -> ! {
    end_process(reason, || SimpleCommunicator::world().abort(1))
}

/// Messages on their way, and the ranks that wait.
struct State {
    world: SimpleCommunicator,
    outgoing: Vec<Transfer<u8>>,
    /// By sender, in the order in which they were sent: type, shape and bytes of every tensor that was not taken.
    incoming: Vec<VecDeque<(String, Transfer<u8>)>>,
    /// By rank: whether its work is done.
    done: Vec<bool>,
    waits_for: WaitsFor,
    /// Of all ranks, since the last question.
    answers: Vec<Option<Answer>>,
    /// Whether this rank has begun an all-reduce and given up waiting for it.
    gave_up_a_sum: bool,
}

// SAFETY: MPI was initialised for several threads. Any thread may use its objects, and a lock lets one thread at a time.
unsafe impl Send for State {}

impl State {
    fn send(&mut self, to: usize, tag: Tag, bytes: Vec<u8>) {
        let mut transfer = Transfer::send(&self.world.process_at_rank(to as i32), tag, bytes);
        if transfer.finished().is_none() {
            self.outgoing.push(transfer);
        }
    }

    fn send_note(&mut self, to: usize, note: &Note) {
        self.send(to, NOTE, serde_json::to_vec(note).unwrap_or_default());
    }

    /// Lets MPI work: fetches every note that has arrived, whether this rank waits for it or not, and answers questions.
    fn advance(&mut self) {
        while let Some((message, status)) = self.world.any_process().immediate_matched_probe() {
            let from = status.source_rank() as usize;
            let note: Vec<u8> = (message, status).matched_receive_vec().0;
            match serde_json::from_slice(&note) {
                // The receive is ready before the next look: no look finds bytes.
                Ok(Note::Header(len, kind)) => {
                    let sender = self.world.process_at_rank(from as i32);
                    self.incoming[from].push_back((kind, Transfer::receive(&sender, BYTES, len)));
                }
                Ok(Note::Farewell) => self.done[from] = true,
                Ok(Note::Ask) => {
                    let waits_for = self.waits_for;
                    let arriving = matches!(waits_for, WaitsFor::Rank(rank) if !self.incoming[rank].is_empty());
                    self.send_note(from, &Note::Answer(Answer { waits_for, arriving }));
                }
                Ok(Note::Answer(answer)) => self.answers[from] = Some(answer),
                Ok(Note::Failure(text)) => end_job(&text),
                Err(_) => {}
            }
        }
        self.outgoing.retain_mut(|transfer| transfer.finished().is_none());
    }

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

/// A message or a sum on its way: its memory, and the requests by which MPI reads or writes parts of this memory.
struct Transfer<T: 'static> {
    requests: Vec<Request<'static, [T], StaticScope>>,
    read: Vec<T>,
    written: Vec<T>,
}

impl<T> Transfer<T> {
    /// Starts the requests that `start` makes for parts: MPI reads from the first slice, and writes to the second.
    fn new(
        read: Vec<T>,
        mut written: Vec<T>,
        start: impl FnOnce(&'static [T], &'static mut [T]) -> Vec<Request<'static, [T], StaticScope>>,
    ) -> Self {
        // SAFETY: only the requests use these slices. The transfer owns both vectors and does not change them. It returns
        // or frees them after its requests have finished, and otherwise never.
        let requests = unsafe {
            start(
                slice::from_raw_parts(read.as_ptr(), read.len()),
                slice::from_raw_parts_mut(written.as_mut_ptr(), written.len()),
            )
        };
        Self { requests, read, written }
    }

    /// Returns the memory that MPI has written, once, if MPI has finished. Every call lets MPI make progress.
    fn finished(&mut self) -> Option<Vec<T>> {
        while let Some(request) = self.requests.pop() {
            if let Err(unfinished) = request.test() {
                self.requests.push(unfinished);
                return None;
            }
        }
        Some(mem::take(&mut self.written))
    }
}

impl<T> Drop for Transfer<T> {
    /// Leaks the memory of unfinished requests: MPI still uses it.
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            mem::forget((mem::take(&mut self.read), mem::take(&mut self.written)));
            self.requests.drain(..).for_each(mem::forget);
        }
    }
}

impl Transfer<u8> {
    /// Starts to send bytes, in parts. Without bytes, nothing is sent.
    fn send(to: &Process<'_>, tag: Tag, bytes: Vec<u8>) -> Self {
        let send = |part| to.immediate_send_with_tag(StaticScope, part, tag);
        Self::new(bytes, Vec::new(), |bytes, _| bytes.chunks(PART).map(send).collect())
    }

    /// Starts to receive bytes, in the parts in which they are sent.
    fn receive(from: &Process<'_>, tag: Tag, len: usize) -> Self {
        let receive = |part| from.immediate_receive_into_with_tag(StaticScope, part, tag);
        Self::new(Vec::new(), vec![0; len], |_, all| all.chunks_mut(PART).map(receive).collect())
    }
}

impl<T: Equivalence + Clone + Default> Transfer<T> {
    /// Starts MPI's all-reduce.
    fn all_reduce(world: &SimpleCommunicator, addends: Vec<T>) -> Self {
        let sum = vec![T::default(); addends.len()];
        let plus = SystemOperation::sum;
        let start = |(own, sum)| world.immediate_all_reduce_into(StaticScope, own, sum, plus());
        Self::new(addends, sum, |own, sum| {
            own.chunks(PART).zip(sum.chunks_mut(PART)).map(start).collect()
        })
    }
}

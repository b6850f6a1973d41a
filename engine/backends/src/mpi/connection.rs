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

use super::wait_graph::{ALL, ANSWER_LIMIT, Answer, NOBODY, find_cause};

// The kinds of messages, which are MPI's tags. All but `BYTES` are notes: a number and a text.
const HEADER: Tag = 1; // A tensor follows: the number of its bytes, its type and shape.
const BYTES: Tag = 2; // The bytes of a tensor.
const FAREWELL: Tag = 3; // The sender's work is done: no tensor follows.
const ASK: Tag = 4; // The question for which rank the receiver waits.
const ANSWER: Tag = 5; // The rank that the sender waits for, and a text if a part of its message has arrived.
const FAILURE: Tag = 6; // To rank 0: the reason why the sender has failed.

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
            waits_for: NOBODY,
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
    pub(super) fn send(&self, to: usize, kind: &str, bytes: Vec<u8>) -> Result<(), Error> {
        self.with(|state| {
            state.send_note(to, HEADER, bytes.len(), kind);
            state.send(to, BYTES, bytes);
            if state.is_busy() {
                self.changed.notify_one();
            }
        })
    }

    /// Waits for the next tensor of a rank: its type and shape in words, and its bytes.
    pub(super) fn recv(&self, from: usize) -> Result<(String, Vec<u8>), Error> {
        let message = self.wait(from, |state| match state.incoming[from].front_mut() {
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
        let sum = self.wait(ALL, |_| transfer.finished());
        if sum.is_err() {
            let _ = self.with(|state| state.gave_up_a_sum = true);
        }
        Ok(Tensor::from_vec(sum?, flat.shape(), &Device::Cpu)?)
    }

    /// Lets MPI work until `look` finds something. When the time is up, this rank asks all ranks for whom they wait. Its own
    /// answer is `whom`, also after an error.
    fn wait<T>(
        &self,
        whom: usize,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Error> {
        let (mut clock, mut asked) = (Stopwatch::start(), false);
        loop {
            let waited = clock.elapsed();
            let outcome = self.with(|state| {
                state.advance();
                state.waits_for = whom;
                if let Some(found) = look(state) {
                    state.waits_for = NOBODY;
                    return Some(Ok(found));
                }
                if waited >= self.timeout && !asked {
                    asked = true;
                    state.answers.fill(None);
                    (0..self.world_size).for_each(|rank| state.send_note(rank, ASK, 0, ""));
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
        let _ = self.with(|state| state.send_note(0, FAILURE, 0, &text));
        sleep(REPORT_LIMIT);
        end_job(&text)
    }

    /// Sends farewells: the rank's work is done. Every later call fails.
    pub(super) fn leave(&self) {
        if let Ok(true) = self.with(|state| state.gave_up_a_sum) {
            self.fail("failed: it left while a sum of all ranks was unfinished");
        }
        let _ = self.with(|state| {
            let others = (0..self.world_size).filter(|&other| other != self.rank);
            others.for_each(|other| state.send_note(other, FAREWELL, 0, ""));
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
    fn send(&mut self, to: usize, tag: Tag, bytes: Vec<u8>) {
        let mut transfer = Transfer::send(&self.world.process_at_rank(to as i32), tag, bytes);
        if transfer.finished().is_none() {
            self.outgoing.push(transfer);
        }
    }

    fn send_note(&mut self, to: usize, tag: Tag, number: usize, text: &str) {
        self.send(to, tag, note(number, text));
    }

    /// Lets MPI work: fetches every message that has arrived, whether this rank waits for it or not, and answers questions.
    fn advance(&mut self) {
        while let Some((message, status)) = self.world.any_process().immediate_matched_probe() {
            let (from, tag) = (status.source_rank() as usize, status.tag());
            let note: Vec<u8> = (message, status).matched_receive_vec().0;
            let Some((number, text)) = read_note(&note) else { continue };
            match tag {
                // The receive is ready before the next look: no look finds bytes.
                HEADER => {
                    let sender = self.world.process_at_rank(from as i32);
                    let bytes = Transfer::receive(&sender, BYTES, number);
                    self.incoming[from].push_back((text, bytes));
                }
                FAREWELL => self.done[from] = true,
                ASK => {
                    let incoming = self.incoming.get(self.waits_for);
                    let arriving = incoming.is_some_and(|it| !it.is_empty());
                    let text = if arriving { "arriving" } else { "" };
                    self.send_note(from, ANSWER, self.waits_for, text);
                }
                ANSWER => {
                    let arriving = !text.is_empty();
                    self.answers[from] = Some(Answer { waits_for: number, arriving });
                }
                FAILURE => end_job(&text),
                _ => {}
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

fn note(number: usize, text: &str) -> Vec<u8> {
    [&(number as u64).to_ne_bytes(), text.as_bytes()].concat()
}

fn read_note(bytes: &[u8]) -> Option<(usize, String)> {
    let (number, text) = bytes.split_first_chunk()?;
    Some((u64::from_ne_bytes(*number) as usize, String::from_utf8_lossy(text).into_owned()))
}

/// A request for a part of a transfer's memory.
type PartRequest<T> = Request<'static, [T], StaticScope>;

/// A message or a sum on its way: its memory, and the requests by which MPI reads or writes this memory.
struct Transfer<T: 'static> {
    requests: Vec<PartRequest<T>>,
    read: Vec<T>,
    written: Vec<T>,
}

impl<T> Transfer<T> {
    /// Starts the requests that `start` makes: MPI reads from `read`, and writes to `written`.
    fn new(
        read: Vec<T>,
        mut written: Vec<T>,
        start: impl FnOnce(&'static [T], &'static mut [T]) -> Vec<PartRequest<T>>,
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
        Self::new(addends, sum, |addends, sum| {
            let parts = addends.chunks(PART).zip(sum.chunks_mut(PART));
            let plus = SystemOperation::sum;
            let start = |(own, sum)| world.immediate_all_reduce_into(StaticScope, own, sum, plus());
            parts.map(start).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_note_can_be_read() {
        for (number, text) in [(0, ""), (NOBODY, "arriving"), (24, "F32 [2, 3]")] {
            assert_eq!(read_note(&note(number, text)), Some((number, text.to_owned())));
        }
    }

    #[test]
    fn anything_else_cannot() {
        for bytes in [&b""[..], b"hello"] {
            assert_eq!(read_note(bytes), None, "{bytes:?}");
        }
    }
}

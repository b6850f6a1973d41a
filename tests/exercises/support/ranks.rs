//! An answer on k ranks, each on a one-core slice of the CPU: the threads of stage 2, with a record of all messages.
//!
//! A send may wait for its receiver. The receiver then acknowledges the message on the background connection, and the sender
//! waits for that.
//!
//! The check finds deadlocks, in the record: nothing has moved for some looks, and the ranks wait for each other in a circle.
//! A rank may use several threads, so a circle alone is no proof. On a busy machine the looks take longer, too.

use std::collections::{BTreeMap, VecDeque};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard};

use candle_core::{DType, Device, Shape, Tensor};
use devices::DevicePlan;
use harness::lock::locked;
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator};
use params_and_allreduce::communicator::{check_other, wait_chain};
use params_and_allreduce::thread::{self, Traffic, run_ranks};
use params_and_allreduce::{Algorithm, forward};

use crate::call::{LIMIT, catch, watched};
use crate::expectation::numbers;
use crate::outcome::{Finding, Outcome, demand};

/// The law about tensors that were sent with `send_shared`.
pub const PROMISE: &str =
    "a shared tensor is not written to again, and an update writes to a variable: `send` it";

/// A part of the message about a rank that has written to a tensor that it had shared.
pub const PROMISE_BROKEN: &str = " was written to afterwards";

/// Looks without any news before a circle of waiting ranks is a deadlock.
const STILL: u32 = 40;

/// The error of a message that fails.
const CUT: &str = "the cable is cut";

/// Parts of the failures of ranks that miss each other.
const BETWEEN_RANKS: [&str; 4] =
    ["deadlock: ", " returned early", " still needed it", " never received"];

/// The moment at which a send returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sends {
    /// At once; the message is kept until it is received. Like `MPI_Bsend` and the threads of stage 2.
    Buffered,
    /// After the message has been received. Like `MPI_Ssend`, `MPI_Send` of large messages, and NCCL.
    WaitForReceiver,
}

/// A message that a rank has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The receiver.
    pub to: usize,
    /// The bytes of its elements.
    pub bytes: u64,
    /// The length of the longest chain of messages that ends with this one: the sender of each message of a chain has
    /// received the one before.
    pub chain: u64,
}

/// Runs `work` on every rank and returns the results in rank order.
/// Fails when a rank returns an error, panics, or never ends, when ranks wait for each other in a circle, when a message is
/// sent that nobody receives, and when memory is written to that was shared. The finding names the ranks.
pub fn run<R: Send + 'static>(
    world_size: usize,
    sends: Sends,
    work: impl Fn(&Rank) -> Result<R, Error> + Send + Sync + 'static,
) -> Outcome<Vec<R>> {
    let world = World::new(world_size, sends, None);
    let results = world.run(work).map_err(Finding::new)?;
    let record = world.record();
    for (from, to, memory, held) in &record.shared {
        let kept = bits(memory).is_ok_and(|bits| bits == *held);
        let told =
            format!("rank {from} broke a promise: a tensor that it had shared with rank {to}");
        demand(kept, || Finding::new(format!("{told}{PROMISE_BROKEN}")))?;
    }
    let left = record.on_the_way.iter().find(|(_, messages)| !messages.is_empty());
    left.map_or(Ok(results), |((from, to), _)| {
        Err(Finding::new(format!("rank {from} sent a message that rank {to} never received")))
    })
}

/// Whether ranks missed each other, and no rank failed by itself.
pub fn is_between_ranks(failure: &str) -> bool {
    BETWEEN_RANKS.iter().any(|part| failure.contains(part))
}

/// Names the law that all ranks take part, for a [`run`] that failed: if ranks miss each other, or a rank has an `empty` shard.
/// Otherwise an operation may have failed for another reason, such as its element type.
pub fn all_take_part(law: &str, empty: bool) -> impl Fn(Finding) -> Finding {
    move |finding| match empty || is_between_ranks(&finding.to_string()) {
        true => finding.law(law),
        false => finding,
    }
}

/// Demands that an answer passes errors on. The messages of one rank fail, the first rank's or the last one's: sends, receives
/// or both. That rank has to return an error before it misses another rank. Where both fail, the rank takes no part, and all
/// other ranks have to return an error too.
pub fn errors_are_passed_on<A: Copy + Send + Sync + 'static, R: Send + 'static>(
    (world_size, sends): (usize, Sends),
    answer: A,
    work: fn(A, &Rank) -> Result<R, Error>,
) -> Outcome {
    let kinds = [("messages", [true, true]), ("sends", [true, false]), ("receives", [false, true])];
    for (rank, (kind, fails)) in
        [world_size - 1, 0].into_iter().flat_map(|rank| kinds.map(|kind| (rank, kind)))
    {
        let world = World::new(world_size, sends, Some((rank, fails)));
        let outcome = world.run(move |rank| work(answer, rank));
        let record = world.record();
        if !record.fault_met {
            continue;
        }
        let mut all = [rank].into_iter().chain(0..world_size);
        let hangs = all.find(|other| !record.ended.contains_key(other)).zip(outcome.err());
        let hangs = hangs.map(|(other, why)| (other, "an error", why));
        let is_silent = |(&other, end): (&usize, &Result<(), String>)| match end {
            _ if other != rank && kind != "messages" => None,
            Ok(()) => Some((other, "an error", "a result".to_owned())),
            Err(why) if why.starts_with("panicked: ") => Some((other, "an error", why.clone())),
            // Another text may be the answer's own for the error. But this rank has gone on.
            Err(why) if other == rank && !why.contains(CUT) && is_between_ranks(why) => {
                Some((other, "the error of the message", why.clone()))
            }
            Err(_) => None,
        };
        let silent = hangs.or_else(|| record.ended.iter().find_map(is_silent));
        silent.map_or(Ok(()), |(other, wanted, got)| {
            let law = "a rank returns the error of a message, and every rank that needs this rank returns an error too";
            let what = format!("the {kind} of rank {rank} fail, and rank {other} does not say so");
            Err(Finding::new(what).expected(wanted, got).law(law))
        })?;
    }
    Ok(())
}

/// All ranks of a run.
struct World {
    world_size: usize,
    sends: Sends,
    /// A rank whose sends, receives or both fail.
    fault: Option<(usize, [bool; 2])>,
    record: Mutex<Record>,
}

/// What has happened in a run.
#[derive(Default)]
struct Record {
    /// Grows with everything that happens.
    news: u64,
    /// The messages that were sent and not yet received, by sender and receiver: the lengths of their chains.
    on_the_way: BTreeMap<(usize, usize), VecDeque<u64>>,
    /// The calls that have not returned.
    calls: Vec<Call>,
    /// For each rank, its messages.
    sent: BTreeMap<usize, Vec<Message>>,
    /// For each rank, the length of the longest chain of messages that it has received.
    chains: BTreeMap<usize, u64>,
    /// The tensors that were shared: sender, receiver, memory, and its bits at that time. In the exercises every message is a
    /// copy, so writing to a shared tensor changes nothing. The comparison of the bits finds it every time.
    shared: Vec<(usize, usize, Tensor, Vec<u64>)>,
    /// The ranks that have ended, and the failure of each that failed.
    ended: BTreeMap<usize, Result<(), String>>,
    fault_met: bool,
}

/// A call of a communicator: the rank, the other rank, and whether the rank sends.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Call {
    rank: usize,
    other: usize,
    sends: bool,
}

impl World {
    fn new(world_size: usize, sends: Sends, fault: Option<(usize, [bool; 2])>) -> Arc<Self> {
        Arc::new(Self { world_size, sends, fault, record: Mutex::default() })
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        let mut record = locked(&self.record);
        record.news += 1;
        record
    }

    /// Runs all ranks. Fails with the first failure, a deadlock, or the states of the ranks when their time is up.
    fn run<R: Send + 'static>(
        self: &Arc<Self>,
        work: impl Fn(&Rank) -> Result<R, Error> + Send + Sync + 'static,
    ) -> Result<Vec<R>, String> {
        let world = Arc::clone(self);
        let all = move || {
            let plan = DevicePlan::slices(world.world_size).map_err(|error| error.to_string())?;
            let results = run_ranks(&plan, 10 * LIMIT, |slot| {
                let (slot, acknowledgements) = (slot.clone(), slot.background()?);
                let rank = Recorded { slot, acknowledgements, world: Arc::clone(&world) };
                let rank = Rank { comm: Arc::new(rank), world: Some(Arc::clone(&world)) };
                let outcome = catch(|| work(&rank));
                let end = match &outcome {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(error)) => Err(format!("failed: {error}")),
                    Err(panic) => Err(format!("panicked: {panic}")),
                };
                world.record().ended.insert(rank.rank(), end);
                outcome.unwrap_or_else(|panic| resume_unwind(Box::new(panic.to_string())))
            });
            results.map_err(|failure| failure.to_string())
        };
        let (mut seen, mut still) = (0, 0);
        let look = || {
            let record = locked(&self.record);
            still = if record.news == seen { still + 1 } else { 0 };
            seen = record.news;
            if still < STILL { None } else { record.deadlock() }
        };
        // Shorter than the limit of the case.
        watched(LIMIT / 2, all, look).unwrap_or_else(|given_up| {
            let states = || locked(&self.record).states(self.world_size);
            Err(given_up.why.unwrap_or_else(|| {
                format!("after {:.1} s {}", given_up.seconds.as_secs_f64(), states())
            }))
        })
    }
}

impl Record {
    /// The rank for which a rank waits, if all calls of the rank wait.
    fn blocked_by(&self, rank: usize) -> Option<usize> {
        let mut calls = self.calls.iter().filter(|call| call.rank == rank);
        let waits = |&&Call { rank, other, sends }: &&Call| {
            let way = if sends { (rank, other) } else { (other, rank) };
            self.on_the_way.get(&way).is_some_and(|messages| !messages.is_empty()) == sends
        };
        let first = calls.next().filter(waits)?;
        calls.all(|call| waits(&call)).then_some(first.other)
    }

    fn deadlock(&self) -> Option<String> {
        let circle = |call: &Call| wait_chain(call.rank, |chain| self.blocked_by(*chain.last()?)).1;
        let circle = self.calls.iter().find_map(circle)?;
        Some(Error::Deadlock { circle }.to_string())
    }

    /// The states of the ranks that have not ended.
    fn states(&self, world_size: usize) -> String {
        let running = (0..world_size).filter(|rank| !self.ended.contains_key(rank));
        let state = |rank| match self.calls.iter().find(|call| call.rank == rank) {
            Some(call) => format!("rank {rank} waits for rank {}", call.other),
            None => format!("rank {rank} is still at work (a loop that never ends?)"),
        };
        running.map(state).collect::<Vec<_>>().join(", ")
    }
}

/// A rank, as an answer takes it: a rank of a check, whose messages are recorded, or of a real program.
#[derive(Clone)]
pub struct Rank {
    comm: SharedCommunicator,
    world: Option<Arc<World>>,
}

impl Rank {
    /// A rank of a real program. No message is recorded.
    pub fn new(comm: impl Into<SharedCommunicator>) -> Self {
        Self { comm: comm.into(), world: None }
    }

    /// The messages that this rank has sent so far.
    pub fn sent(&self) -> Vec<Message> {
        let sent = |world: &Arc<World>| world.record().sent.get(&self.rank()).cloned();
        self.world.as_ref().and_then(sent).unwrap_or_default()
    }

    /// The number and the bytes of these messages.
    pub fn traffic(&self) -> Traffic {
        let sent = self.sent();
        let bytes = sent.iter().map(|message| message.bytes).sum();
        Traffic { messages: sent.len() as u64, bytes }
    }
}

impl From<&Rank> for SharedCommunicator {
    fn from(rank: &Rank) -> Self {
        Arc::clone(&rank.comm)
    }
}

impl Communicator for Rank {
    forward!(comm: rank, world_size, device, send, send_shared, recv, shares_memory, world_rank);

    fn all_reduce(&self, tensor: &Tensor, algorithm: Algorithm) -> Result<Tensor, Error> {
        self.comm.all_reduce(tensor, algorithm)
    }
}

/// A rank of a check: its messages are recorded, and may fail.
struct Recorded {
    slot: thread::Rank,
    acknowledgements: SharedCommunicator,
    world: Arc<World>,
}

impl Recorded {
    /// Begins a call. Fails when messages of this kind fail.
    fn begin(&self, other: usize, sends: bool) -> Result<Call, Error> {
        check_other(self, other)?;
        let (rank, mut record) = (self.rank(), self.world.record());
        if self.world.fault.is_some_and(|(at, fails)| at == rank && fails[usize::from(!sends)]) {
            record.fault_met = true;
            return Err(Error::Other(CUT.to_owned()));
        }
        let call = Call { rank, other, sends };
        record.calls.push(call);
        Ok(call)
    }

    fn end(&self, call: Call) -> MutexGuard<'_, Record> {
        let mut record = self.world.record();
        if let Some(place) = record.calls.iter().position(|other| *other == call) {
            record.calls.swap_remove(place);
        }
        record
    }
}

impl Communicator for Recorded {
    forward!(slot: rank, world_size, device);

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        let call = self.begin(to, true)?;
        {
            let mut record = self.world.record();
            let chain = record.chains.get(&call.rank).copied().unwrap_or(0) + 1;
            record.on_the_way.entry((call.rank, to)).or_default().push_back(chain);
            let message = Message { to, bytes: ops::size_in_bytes(tensor) as u64, chain };
            record.sent.entry(call.rank).or_default().push(message);
        }
        let waits = self.world.sends == Sends::WaitForReceiver;
        let sent = match self.slot.send(to, tensor) {
            Ok(()) if waits => self.acknowledgements.recv(to, &Shape::from(0), DType::U8).map(drop),
            // The message is left over, as if the receiver ended a moment later.
            Err(Error::RankStopped { .. }) if !waits => Ok(()),
            sent => sent,
        };
        drop(self.end(call));
        sent
    }

    fn send_shared(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        // A detached tensor shares the memory of its variable.
        let memory = tensor.detach();
        let held = bits(&memory)?;
        self.world.record().shared.push((self.rank(), to, memory, held));
        self.send(to, tensor)
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        let call = self.begin(from, false)?;
        let tensor = self.slot.recv(from, shape, dtype);
        let mut record = self.end(call);
        let chain = record.on_the_way.get_mut(&(from, call.rank)).and_then(VecDeque::pop_front);
        let longest = record.chains.entry(call.rank).or_default();
        *longest = chain.unwrap_or(0).max(*longest);
        drop(record);
        if self.world.sends == Sends::WaitForReceiver {
            // A sender that has ended does not wait.
            let _ = self.acknowledgements.send(from, &Tensor::zeros(0, DType::U8, &Device::Cpu)?);
        }
        tensor
    }
}

/// The bits of a tensor's numbers: as bits, NaN equals NaN.
fn bits(tensor: &Tensor) -> candle_core::Result<Vec<u64>> {
    Ok(numbers(tensor)?.into_iter().map(f64::to_bits).collect())
}

#[cfg(test)]
mod tests;

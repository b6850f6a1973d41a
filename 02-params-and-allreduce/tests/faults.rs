//! A rank that panics, fails, returns early or stalls, before or in the middle of every collective.
//!
//! What is promised of the others, and checked a hundred times for every fault in every collective:
//!
//! - Nobody hangs. A rank that is gone is noticed at once, a rank that stalls within the time-out.
//! - Whoever gets an error is told the rank that began it.
//! - Whoever gets a result has the right one. A rank that has all it needs when the fault happens may
//!   well finish; but where everyone needs the faulty rank and it never sent a thing, nobody does.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, mpsc};
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Shape, Tensor};
use params_and_allreduce::all_reduce::FixedTree;
use params_and_allreduce::collective::{
    all_gather, barrier, broadcast, chunk_range, reduce_scatter,
};
use params_and_allreduce::communicator::{Communicator, Error, Received};
use params_and_allreduce::thread::{Rank, run_ranks};
use params_and_allreduce::{Algorithm, allreduce};
use rand::RngExt;
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::SeedableRng;
use single_gpu::device::{DeviceKind, DevicePlan};

const TRIALS: usize = 100;
/// How long a rank waits where the fault is noticed at once: far longer than noticing may take.
const PATIENT: Duration = Duration::from_secs(30);
/// How long a rank waits for one that stalls: so long that no busy machine stalls the others.
const SHORT: Duration = Duration::from_secs(1);
/// What a call may take beyond that, on a busy machine.
const SLACK: Duration = Duration::from_secs(3);
/// When a trial counts as hanging.
const HUNG: Duration = Duration::from_secs(100);
/// Trials at a time: nearly all of them only wait.
const AT_A_TIME: usize = 96;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Panic,
    Error,
    EarlyReturn,
    Stall,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Collective {
    AllReduce(Algorithm),
    FixedTree,
    ReduceScatter,
    AllGather,
    Broadcast,
    Barrier,
}

const COLLECTIVES: [Collective; 9] = [
    Collective::AllReduce(Algorithm::OneShot),
    Collective::AllReduce(Algorithm::Naive),
    Collective::AllReduce(Algorithm::Tree),
    Collective::AllReduce(Algorithm::Ring),
    Collective::FixedTree,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast,
    Collective::Barrier,
];

/// One trial: which rank misbehaves how, before which of its messages.
#[derive(Clone, Copy, Debug)]
struct Trial {
    collective: Collective,
    fault: Fault,
    ranks: usize,
    len: usize,
    root: usize,
    culprit: usize,
    before_message: usize,
}

impl Collective {
    fn run(self, rank: &impl Communicator, trial: &Trial) -> Result<Vec<f32>, Error> {
        let mine = contribution(rank.rank(), trial.len);
        let tensor = Tensor::new(mine.as_slice(), &Device::Cpu)?;
        let result = match self {
            Self::AllReduce(algorithm) => allreduce(rank, &tensor, algorithm)?,
            // One leaf on each rank.
            Self::FixedTree => FixedTree::new(trial.ranks, trial.ranks)?.sum(rank, &[tensor])?,
            Self::ReduceScatter => reduce_scatter(rank, &tensor)?,
            Self::AllGather => {
                let chunk = chunk_range(trial.len, trial.ranks, rank.rank());
                all_gather(rank, &tensor.narrow(0, chunk.start, chunk.len())?, trial.len)?
            }
            Self::Broadcast => broadcast(rank, &tensor, trial.root)?,
            Self::Barrier => {
                barrier(rank)?;
                return Ok(Vec::new());
            }
        };
        Ok(result.to_vec1()?)
    }

    /// What a rank must get.
    fn expected(self, rank: usize, trial: &Trial) -> Vec<f32> {
        match self {
            Self::AllReduce(_) | Self::FixedTree => plain_sum(trial),
            Self::ReduceScatter => {
                plain_sum(trial)[chunk_range(trial.len, trial.ranks, rank)].to_vec()
            }
            Self::AllGather => (0..trial.ranks)
                .flat_map(|rank| {
                    let chunk = chunk_range(trial.len, trial.ranks, rank);
                    contribution(rank, trial.len)[chunk].to_vec()
                })
                .collect(),
            Self::Broadcast => contribution(trial.root, trial.len),
            Self::Barrier => Vec::new(),
        }
    }
}

/// Whole numbers: every order of adding gives the same sum.
fn contribution(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((rank + 1) * (i + 2) % 17) as f32).collect()
}

fn plain_sum(trial: &Trial) -> Vec<f32> {
    let mut sum = vec![0.0; trial.len];
    for rank in 0..trial.ranks {
        sum.iter_mut().zip(contribution(rank, trial.len)).for_each(|(sum, number)| *sum += number);
    }
    sum
}

/// A communicator that counts its messages, and misbehaves before one of them if it is the culprit's.
/// Reclaiming what it has lent counts as one.
struct Faulty<'a> {
    rank: &'a Rank<'a>,
    messages: Cell<usize>,
    fault: Option<(Fault, usize)>,
    /// How many of the others are done: whoever stalls, stalls until then.
    others_done: &'a AtomicUsize,
}

impl Faulty<'_> {
    fn before_message(&self) -> Result<(), Error> {
        let message = self.messages.get();
        self.messages.set(message + 1);
        match self.fault {
            Some((fault, before)) if before == message => self.misbehave(fault),
            _ => Ok(()),
        }
    }

    fn misbehave(&self, fault: Fault) -> Result<(), Error> {
        match fault {
            // As a panic, without the backtrace that printing one would cost 700 times.
            Fault::Panic => std::panic::resume_unwind(Box::new("on purpose")),
            Fault::Error | Fault::EarlyReturn => {}
            Fault::Stall => {
                while self.others_done.load(Ordering::SeqCst) + 1 < self.world_size() {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
        Err(candle_core::Error::Msg("on purpose".into()).into())
    }
}

impl Communicator for Faulty<'_> {
    fn rank(&self) -> usize {
        self.rank.rank()
    }

    fn world_size(&self) -> usize {
        self.rank.world_size()
    }

    fn device(&self) -> &Device {
        self.rank.device()
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.before_message()?;
        self.rank.send(to, tensor)
    }

    fn share(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.before_message()?;
        self.rank.share(to, tensor)
    }

    fn lend(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.before_message()?;
        self.rank.lend(to, tensor)
    }

    fn reclaim(&self) -> Result<(), Error> {
        self.before_message()?;
        self.rank.reclaim()
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        self.before_message()?;
        self.rank.recv(from, shape, dtype)
    }

    fn borrow(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Received, Error> {
        self.before_message()?;
        self.rank.borrow(from, shape, dtype)
    }
}

/// What a rank that does not misbehave got, and how long it took.
type Answer = (Result<Vec<f32>, Error>, Duration);

/// Runs a trial; the answers of all ranks but the culprit.
fn answers(trial: &Trial) -> Vec<(usize, Answer)> {
    let plan = DevicePlan::new(DeviceKind::Cpu, trial.ranks, NonZeroUsize::new(1)).unwrap();
    let timeout = if trial.fault == Fault::Stall { SHORT } else { PATIENT };
    let (others_done, start) = (AtomicUsize::new(0), Barrier::new(trial.ranks));
    let answers = Mutex::new(Vec::new());
    let outcome = run_ranks(&plan, timeout, |rank| {
        let culprit = rank.rank() == trial.culprit;
        let fault = culprit.then_some((trial.fault, trial.before_message));
        let others_done = &others_done;
        let faulty = Faulty { rank, messages: Cell::new(0), fault, others_done };
        // So that no rank is blamed for a thread that the system started late.
        start.wait();
        let started = Instant::now();
        let result = trial.collective.run(&faulty, trial);
        if culprit {
            return if trial.fault == Fault::EarlyReturn { Ok(()) } else { result.map(|_| ()) };
        }
        let failed = result.is_err();
        answers.lock().unwrap().push((rank.rank(), (result, started.elapsed())));
        others_done.fetch_add(1, Ordering::SeqCst);
        if failed { Err(candle_core::Error::Msg("told above".into()).into()) } else { Ok(()) }
    });
    // Whatever the others made of it, the run must not pass for a success.
    let may_succeed = trial.fault == Fault::EarlyReturn;
    assert!(outcome.is_err() || may_succeed, "{trial:?}");
    answers.into_inner().unwrap()
}

fn check(trial: &Trial) {
    let answers = answers(trial);
    assert_eq!(answers.len(), trial.ranks - 1, "{trial:?}");
    // Before its first message, and of all collectives but one everybody needs everybody.
    let everyone_needs_it =
        trial.collective != Collective::Broadcast || trial.culprit == trial.root;
    let nobody_can_finish = trial.before_message == 0 && everyone_needs_it;
    let in_time = if trial.fault == Fault::Stall { SHORT + SLACK } else { SLACK };
    for (rank, (result, took)) in answers {
        assert!(took <= in_time, "rank {rank} took {took:?} in {trial:?}");
        match result {
            Ok(found) => {
                assert!(!nobody_can_finish, "rank {rank} finished without the culprit: {trial:?}");
                assert_eq!(found, trial.collective.expected(rank, trial), "{rank} in {trial:?}");
            }
            Err(error) => assert!(names_it(&error, trial), "rank {rank}: \"{error}\" in {trial:?}"),
        }
    }
}

/// Whether an error names the culprit, and what it did.
fn names_it(error: &Error, trial: &Trial) -> bool {
    match error {
        Error::TimedOut { rank, .. } => trial.fault == Fault::Stall && *rank == trial.culprit,
        Error::RankStopped { rank, why, .. } => {
            let deed = match trial.fault {
                Fault::Panic => "panicked: on purpose",
                Fault::Error => "failed: on purpose",
                Fault::EarlyReturn => "returned early",
                Fault::Stall => "sent nothing",
            };
            *rank == trial.culprit && why.contains(deed)
        }
        _ => false,
    }
}

/// How many messages the culprit has to do with when nobody misbehaves.
fn messages_of_culprit(trial: &Trial) -> usize {
    let plan = DevicePlan::new(DeviceKind::Cpu, trial.ranks, NonZeroUsize::new(1)).unwrap();
    let counts = run_ranks(&plan, PATIENT, |rank| {
        let others_done = &AtomicUsize::new(0);
        let counting = Faulty { rank, messages: Cell::new(0), fault: None, others_done };
        let found = trial.collective.run(&counting, trial)?;
        assert_eq!(found, trial.collective.expected(rank.rank(), trial), "{trial:?}");
        Ok::<_, Error>(counting.messages.get())
    });
    counts.unwrap()[trial.culprit]
}

fn random_trial(collective: Collective, fault: Fault, seed: u64) -> Trial {
    let mut random = ChaCha12Rng::seed_from_u64(seed);
    let ranks = random.random_range(2..=7);
    let len = match random.random_range(0..4) {
        0 => random.random_range(0..ranks),
        1 => random.random_range(ranks..60),
        2 => random.random_range(60..5000),
        // So large that even a chunk of it is lent, not copied.
        _ => random.random_range(30_000..40_000),
    };
    let [root, culprit] = [0; 2].map(|_| random.random_range(0..ranks));
    let trial = Trial { collective, fault, ranks, len, root, culprit, before_message: 0 };
    // One in three misbehaves before it sends anything, the others somewhere in the middle.
    let messages = messages_of_culprit(&trial);
    let in_the_middle = random.random_range(0..3) > 0;
    let before_message = if in_the_middle { random.random_range(0..messages) } else { 0 };
    Trial { before_message, ..trial }
}

/// A hundred random trials of a fault in each collective.
fn hundred_trials_each(fault: Fault) {
    let (finished, next) = (AtomicU64::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::SeqCst);
                    let Some(&collective) = COLLECTIVES.get(index / TRIALS) else { break };
                    in_limited_time(random_trial(collective, fault, index as u64));
                    finished.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(finished.into_inner(), (COLLECTIVES.len() * TRIALS) as u64);
}

/// Checks a trial in a thread that can be left behind, if it should hang.
fn in_limited_time(trial: Trial) {
    let (done, waiting) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        check(&trial);
        // Nobody listens any more if the trial was given up.
        let _ = done.send(());
    });
    match waiting.recv_timeout(HUNG) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("this hangs: {trial:?}"),
        _ => thread.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload)),
    }
}

#[test]
fn everyone_names_a_rank_that_panics() {
    hundred_trials_each(Fault::Panic);
}

#[test]
fn everyone_names_a_rank_that_fails() {
    hundred_trials_each(Fault::Error);
}

#[test]
fn everyone_names_a_rank_that_returns_early() {
    hundred_trials_each(Fault::EarlyReturn);
}

#[test]
fn everyone_names_a_rank_that_stalls() {
    hundred_trials_each(Fault::Stall);
}

#[test]
fn ranks_that_do_not_agree_are_told_so() {
    for collective in COLLECTIVES.into_iter().filter(|&c| c != Collective::Barrier) {
        for ranks in [2, 3, 6] {
            for odd in 0..ranks {
                for (len, dtype) in [(10, DType::F64), (11, DType::F32)] {
                    let failure = disagreement(collective, ranks, odd, (len, dtype));
                    assert!(
                        failure.contains("sent"),
                        "{collective:?}, {odd} of {ranks}: {failure}"
                    );
                    assert!(failure.contains("expected"), "{collective:?}: {failure}");
                }
            }
        }
    }
}

/// What comes of it when one rank brings another length or element type than F32 `[10]`.
fn disagreement(
    collective: Collective,
    ranks: usize,
    odd: usize,
    odd_one: (usize, DType),
) -> String {
    let plan = DevicePlan::new(DeviceKind::Cpu, ranks, NonZeroUsize::new(1)).unwrap();
    let failure = run_ranks(&plan, PATIENT, |rank| {
        let (len, dtype) = if rank.rank() == odd { odd_one } else { (10, DType::F32) };
        let tensor = Tensor::ones(len, dtype, &Device::Cpu)?;
        match collective {
            Collective::AllReduce(algorithm) => allreduce(rank, &tensor, algorithm)?,
            Collective::FixedTree => {
                FixedTree::new(rank.world_size(), rank.world_size())?.sum(rank, &[tensor])?
            }
            Collective::ReduceScatter => reduce_scatter(rank, &tensor)?,
            Collective::AllGather => {
                let chunk = chunk_range(len, ranks, rank.rank());
                all_gather(rank, &tensor.narrow(0, chunk.start, chunk.len())?, len)?
            }
            Collective::Broadcast => broadcast(rank, &tensor, 0)?,
            Collective::Barrier => tensor,
        };
        Ok::<_, Error>(())
    });
    failure.unwrap_err().to_string()
}

//! One fault in one collective, and what the other ranks make of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use devices::DevicePlan;
use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::{Communicator as _, Error, SharedCommunicator};
use params_and_allreduce::thread::run_ranks;
use rand::RngExt;
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::PATIENT;
use crate::collective::Collective;
use crate::faulty::{Fault, Faulty};

/// How long a rank waits for one that stalls: so long that no busy machine stalls the others.
const SHORT: Duration = Duration::from_secs(2);
/// What a call may take beyond that, on a busy machine.
const SLACK: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug)]
pub struct Trial {
    pub collective: Collective,
    pub fault: Fault,
    pub ranks: usize,
    pub len: usize,
    pub root: usize,
    pub culprit: usize,
    pub before_message: usize,
}

impl Trial {
    fn run(&self, comm: &SharedCommunicator) -> Result<Vec<f32>, Error> {
        let mine = Tensor::new(contribution(comm.rank(), self.len).as_slice(), &Device::Cpu)?;
        let result = self.collective.apply(comm, &mine, self.root)?;
        Ok(if self.collective == Collective::Barrier { Vec::new() } else { result.to_vec1()? })
    }

    fn expected(&self, rank: usize) -> Vec<f32> {
        let chunk = |rank| chunk_range(self.len, self.ranks, rank);
        match self.collective {
            Collective::AllReduce(_) | Collective::TwoLevels => self.plain_sum(),
            Collective::ReduceScatter => self.plain_sum()[chunk(rank)].to_vec(),
            Collective::AllGather => {
                let of_rank = |rank| contribution(rank, self.len)[chunk(rank)].to_vec();
                (0..self.ranks).flat_map(of_rank).collect()
            }
            Collective::Broadcast => contribution(self.root, self.len),
            Collective::Barrier => Vec::new(),
        }
    }

    fn plain_sum(&self) -> Vec<f32> {
        let of_all: Vec<_> = (0..self.ranks).map(|rank| contribution(rank, self.len)).collect();
        (0..self.len).map(|i| of_all.iter().map(|numbers| numbers[i]).sum()).collect()
    }
}

/// Whole numbers: every order of adding gives the same sum.
fn contribution(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((rank + 1) * (i + 2) % 17) as f32).collect()
}

/// How many messages the culprit has to do with when nobody misbehaves.
fn messages_of_culprit(trial: &Trial) -> usize {
    let plan = DevicePlan::slices(trial.ranks).unwrap();
    let counts = run_ranks(&plan, PATIENT, |rank| {
        let (rank, messages, others_done) = (rank.clone(), Arc::default(), Arc::default());
        let counted = Arc::clone(&messages);
        let comm: SharedCommunicator =
            Arc::new(Faulty { rank, messages, fault: None, others_done });
        let found = trial.run(&comm)?;
        assert_eq!(found, trial.expected(comm.rank()), "{trial:?}");
        Ok::<_, Error>(counted.load(Ordering::SeqCst))
    });
    counts.unwrap()[trial.culprit]
}

pub fn random_trial(collective: Collective, fault: Fault, seed: u64) -> Trial {
    let mut random = ChaCha12Rng::seed_from_u64(seed);
    let ranks = random.random_range(2..=7);
    let len = match random.random_range(0..4) {
        0 => random.random_range(0..ranks),
        1 => random.random_range(ranks..60),
        2 => random.random_range(60..5000),
        // So large that even a chunk of it is shared, not copied.
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

/// What a rank that does not misbehave got, and how long it took.
type Answer = (Result<Vec<f32>, Error>, Duration);

/// Runs a trial; the answers of all ranks but the culprit.
fn answers(trial: &Trial) -> Vec<(usize, Answer)> {
    let plan = DevicePlan::slices(trial.ranks).unwrap();
    let timeout = if trial.fault == Fault::Stall { SHORT } else { PATIENT };
    let (others_done, start) = (Arc::<AtomicUsize>::default(), Barrier::new(trial.ranks));
    let answers = Mutex::new(Vec::new());
    let outcome = run_ranks(&plan, timeout, |rank| {
        let culprit = rank.rank() == trial.culprit;
        let fault = culprit.then_some((trial.fault, trial.before_message));
        let (own, messages, others) = (rank.clone(), Arc::default(), Arc::clone(&others_done));
        let faulty = Faulty { rank: own, messages, fault, others_done: others };
        let comm: SharedCommunicator = Arc::new(faulty);
        // So that no rank is blamed for a thread that the system started late.
        start.wait();
        let started = Instant::now();
        let result = trial.run(&comm);
        if culprit {
            return if trial.fault == Fault::EarlyReturn { Ok(()) } else { result.map(|_| ()) };
        }
        let failure = result.as_ref().err().map(ToString::to_string);
        answers.lock().unwrap().push((rank.rank(), (result, started.elapsed())));
        others_done.fetch_add(1, Ordering::SeqCst);
        failure.map_or(Ok(()), |text| Err(Error::Other(text)))
    });
    // Whatever the others made of it, the run must not pass for a success.
    let may_succeed = trial.fault == Fault::EarlyReturn;
    assert!(outcome.is_err() || may_succeed, "{trial:?}");
    answers.into_inner().unwrap()
}

pub fn check(trial: &Trial) {
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
                assert_eq!(found, trial.expected(rank), "{rank} in {trial:?}");
            }
            Err(error) => assert!(names_it(&error, trial), "rank {rank}: \"{error}\" in {trial:?}"),
        }
    }
}

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

//! The data of the book's stepper: the messages of an all-reduce, step by step.
//!
//! The collectives of stage 2 run on ranks that are threads, and a communicator records every message. The picture shows the
//! recorded messages only.
//!
//! One-shot is left out: eight ranks would exchange 56 messages in one step.

mod order;
mod recorder;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use candle_core::{Device, Tensor};
use devices::DevicePlan;
use harness::lock::locked;
use itertools::Itertools as _;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator as _, Error};
use params_and_allreduce::thread::run_ranks;
use serde::Serialize;

pub use recorder::{ELEMENTS, Recorder};

/// The algorithms of the stepper, the simplest first.
pub const ALGORITHMS: [Algorithm; 3] = [Algorithm::Naive, Algorithm::Tree, Algorithm::Ring];

/// The numbers of ranks of the stepper.
pub const RANKS: std::ops::RangeInclusive<usize> = 2..=8;

/// The run that is also drawn as a [picture](crate::pictures::steps()).
pub const PICTURED: (&str, usize) = ("ring", 4);

/// A rank that waits this long in a run of some microseconds waits for ever.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A message from one rank to another: whole chunks of the tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    pub from: usize,
    pub to: usize,
    pub chunks: Vec<usize>,
    /// The ranks whose contributions are added up in the chunks, in order.
    pub sum_of: Vec<usize>,
    /// The bytes of the elements.
    pub bytes: u64,
}

/// One all-reduce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Run {
    /// The name for `--algorithm`.
    pub algorithm: String,
    /// The number of ranks, and of chunks of the tensor.
    pub ranks: usize,
    /// The messages. The messages of one step travel at the same time.
    pub steps: Vec<Vec<Message>>,
    /// The bytes that each rank sent, as the links between the threads counted them.
    pub sent: Vec<u64>,
}

/// All runs of the stepper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Catalogue {
    pub command: String,
    pub elements: usize,
    /// The bytes of these numbers.
    pub bytes: u64,
    pub runs: Vec<Run>,
}

/// The contributions that a rank holds, chunk by chunk: `[rank][chunk]`.
pub type Holdings = Vec<Vec<BTreeSet<usize>>>;

impl Run {
    /// The contributions that each rank holds: before the first step, then after each step.
    ///
    /// The receiver adds a message to its own sum, or the message contains that sum already. Afterwards the rank holds the
    /// contributions of both.
    pub fn holdings(&self) -> Vec<Holdings> {
        let own = |rank| vec![BTreeSet::from([rank]); self.ranks];
        let mut all = vec![(0..self.ranks).map(own).collect::<Holdings>()];
        for messages in &self.steps {
            let mut now = all[all.len() - 1].clone();
            for message in messages {
                for &chunk in &message.chunks {
                    now[message.to][chunk].extend(&message.sum_of);
                }
            }
            all.push(now);
        }
        all
    }
}

impl Catalogue {
    /// Runs every algorithm on every number of ranks.
    /// Fails as [`record`] does.
    pub fn record() -> anyhow::Result<Self> {
        let run = |(algorithm, ranks): (Algorithm, usize)| {
            let run = record(&algorithm.to_string(), ranks, |recorder, tensor| {
                recorder.all_reduce(tensor, algorithm)
            });
            run.with_context(|| format!("{algorithm} on {ranks} ranks"))
        };
        let runs = ALGORITHMS.into_iter().cartesian_product(RANKS).map(run);
        let runs = runs.collect::<anyhow::Result<_>>()?;
        let bytes = (ELEMENTS * size_of::<u32>()) as u64;
        Ok(Self { command: "cargo xtask steps".to_owned(), elements: ELEMENTS, bytes, runs })
    }
}

/// One all-reduce on two to eight ranks, and its messages.
/// Fails when a rank fails, when a message holds something other than whole chunks of one partial sum, when the order of
/// the messages cannot be made into steps, or when a rank does not end with the whole sum.
pub fn record(
    algorithm: &str,
    ranks: usize,
    all_reduce: impl Fn(&Recorder<'_>, &Tensor) -> Result<Tensor, Error> + Sync,
) -> anyhow::Result<Run> {
    let everyone: Vec<usize> = (0..ranks).collect();
    let outcomes = run_ranks(&DevicePlan::slices(ranks)?, TIMEOUT, |rank| {
        let recorder = Recorder::new(rank);
        let contribution = recorder::sum(&everyone, &[rank.rank()], ranks);
        let sum = all_reduce(&recorder, &Tensor::new(contribution, &Device::Cpu)?)?;
        let events = std::mem::take(&mut *locked(&recorder.events));
        Ok::<_, Error>((sum.flatten_all()?.to_vec1::<u32>()?, rank.traffic().bytes, events))
    })?;
    let whole = recorder::sum(&everyone, &everyone, ranks);
    for (rank, (sum, ..)) in outcomes.iter().enumerate() {
        ensure!(*sum == whole, "rank {rank} does not end with the sum");
    }
    let (sent, logs) = outcomes.into_iter().map(|(_, bytes, events)| (bytes, events)).unzip();
    Ok(Run { algorithm: algorithm.to_owned(), ranks, steps: order::in_steps(logs)?, sent })
}

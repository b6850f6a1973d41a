//! What an all-reduce sends, message by message and step by step: the data behind the book's stepper.
//!
//! The collectives of stage 2 run as they are, on ranks that are threads, through a communicator that
//! writes down what it passes on. Nothing in the picture is drawn from what we believe an algorithm does.
//!
//! One-shot is left out: it is one exchange of everything with everyone, and eight ranks would draw 56
//! arrows at once.

mod order;
mod recorder;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use candle_core::{Device, Tensor};
use devices::DevicePlan;
use harness::lock::locked;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator as _, Error};
use params_and_allreduce::thread::run_ranks;
use serde::Serialize;

use crate::stored;

pub use recorder::{ELEMENTS, Recorder};

/// The algorithms that can be stepped through, simplest first.
pub const ALGORITHMS: [Algorithm; 3] = [Algorithm::Naive, Algorithm::Tree, Algorithm::Ring];

/// The numbers of ranks that can be stepped through.
pub const RANKS: std::ops::RangeInclusive<usize> = 2..=8;

/// The run that is also drawn as a [picture](crate::pictures::steps()).
pub const PICTURED: (Algorithm, usize) = (Algorithm::Ring, 4);

/// A rank that waits this long in a run of some microseconds waits for ever.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What travels from one rank to another at once: whole chunks of the tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    pub from: usize,
    pub to: usize,
    pub chunks: Vec<usize>,
    /// The ranks whose contributions are added up in them, in order.
    pub sum_of: Vec<usize>,
    /// The bytes of its elements.
    pub bytes: u64,
}

/// One all-reduce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Run {
    /// Its name, as `--algorithm` has it.
    pub algorithm: String,
    /// How many ranks took part. The tensor is cut into as many chunks.
    pub ranks: usize,
    /// The messages: those of one step travel at the same time.
    pub steps: Vec<Vec<Message>>,
    /// The bytes that each rank sent, as the links between the threads counted them.
    pub sent: Vec<u64>,
}

/// Every run that can be stepped through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Catalogue {
    pub command: String,
    pub elements: usize,
    /// The bytes of these numbers.
    pub bytes: u64,
    pub runs: Vec<Run>,
}

/// Whose contributions a rank holds, chunk by chunk: `[rank][chunk]`.
pub type Holdings = Vec<Vec<BTreeSet<usize>>>;

impl Run {
    /// Whose contributions each rank holds: before the first step, then after each step.
    ///
    /// What arrives either has to be added to what the rank holds, or is a sum in which that is contained
    /// already: it holds both afterwards.
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
        let mut runs = Vec::new();
        for algorithm in ALGORITHMS {
            for ranks in RANKS {
                let all_reduce = |recorder: &Recorder<'_>, tensor: &Tensor| {
                    recorder.all_reduce(tensor, algorithm)
                };
                let run = record(&algorithm.to_string(), ranks, all_reduce);
                runs.push(run.with_context(|| format!("{algorithm} on {ranks} ranks"))?);
            }
        }
        let bytes = (ELEMENTS * size_of::<u32>()) as u64;
        Ok(Self { command: "cargo xtask steps".to_owned(), elements: ELEMENTS, bytes, runs })
    }

    /// The run of an algorithm on so many ranks, if it is there.
    pub fn run(&self, algorithm: Algorithm, ranks: usize) -> Option<&Run> {
        let name = algorithm.to_string();
        self.runs.iter().find(|run| run.algorithm == name && run.ranks == ranks)
    }

    /// The file in the book: JSON, one run a line.
    pub fn json(&self) -> serde_json::Result<String> {
        stored::one_a_line(self, "algorithm")
    }
}

/// One all-reduce on two to eight ranks, and what it sent.
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

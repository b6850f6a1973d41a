//! What an all-reduce costs here: algorithm × size × devices, beside what memory allows.

use std::fmt;
use std::io;
use std::time::Instant;

use candle_core::{DType, Tensor};
use devices::DevicePlan;
use harness::interrupt;
use harness::report::metrics::Metrics;
use harness::statistics::slowest;
use params_and_allreduce::Algorithm;
use params_and_allreduce::add_and_copy::AddAndCopy;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, RankFailure, run_ranks};
use serde::Serialize;

use crate::early_end::EarlyEnd;

/// Bytes of the tensors, in f32.
const SIZES: [(&str, usize); 4] =
    [("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20), ("16 MiB", 16 << 20)];

/// What a row measures.
#[derive(Clone, Copy)]
enum Work {
    AllReduce(Algorithm),
    /// What every all-reduce in the memory of CPU slices has to do.
    AddAndCopy,
    /// Every GPU copies its memory; nothing is exchanged.
    Copy,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllReduce(algorithm) => algorithm.fmt(f),
            Self::AddAndCopy => f.write_str("add and copy"),
            Self::Copy => f.write_str("copy"),
        }
    }
}

/// What one number of devices achieves.
pub(crate) struct Table {
    plan: DevicePlan,
    /// Seconds for each size; `None` where Ctrl-C came first.
    rows: Vec<(Work, [Option<f64>; SIZES.len()])>,
}

/// A number of the table, as `--metrics` writes it.
#[derive(Serialize)]
struct Measured<'a> {
    devices: &'a [String],
    note: Option<&'a str>,
    work: String,
    bytes: usize,
    seconds: f64,
    /// As the table has it: bus bandwidth.
    gb_per_s: f64,
}

/// How often each number is measured.
#[derive(Clone, Copy)]
pub(crate) enum Runs {
    /// The smaller the tensor, the more often.
    BySize,
    /// So often, whatever the size.
    Each(usize),
}

impl Runs {
    /// Of a tensor of `len` numbers: every rank must come to the same.
    fn of(self, len: usize) -> usize {
        match self {
            Self::BySize => ((16 << 20) / len.max(1)).clamp(15, 500),
            Self::Each(runs) => runs,
        }
    }
}

impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BySize => f.write_str("the median of 15 to 500 runs"),
            Self::Each(1) => f.write_str("one run"),
            Self::Each(runs) => write!(f, "the median of {runs} runs"),
        }
    }
}

/// How the numbers are to be read.
pub(crate) fn caption(runs: Runs) -> String {
    format!(
        "all-reduce in GB/s, f32, {runs}, each as slow as its slowest rank
  bus bandwidth as nccl-tests defines it: bytes of the tensor ÷ time × 2(n − 1)/n for n devices"
    )
}

/// What the last row shows between slices of the CPU.
pub(crate) const LIMIT_OF_SLICES: &str = "  \
  add and copy: each adds up its chunk of all tensors and copies the other chunks' sums, without messages
    and without new memory, in GB/s of the same kind: what this machine's memory and caches allow
  the devices are slices of this CPU: these are not the times of GPUs";

/// What the last row shows between GPUs.
pub(crate) const LIMIT_OF_GPUS: &str = "  \
  copy: bytes that each GPU copies within its own memory ÷ time";

impl Table {
    /// Measures everything on the devices of a plan; after Ctrl-C nothing more.
    ///
    /// # Errors
    ///
    /// The failure of the rank that failed first.
    pub(crate) fn measure(plan: &DevicePlan, runs: Runs) -> Result<Self, RankFailure<Error>> {
        let slices = plan.is_of_slices();
        let limit = if slices { Work::AddAndCopy } else { Work::Copy };
        let rows: Vec<Work> =
            Algorithm::OURS.into_iter().map(Work::AllReduce).chain([limit]).collect();
        // Of each size, rank and row: its runs, unless it ended before its time, which is so on all ranks.
        let mut times: Vec<Vec<Vec<Option<Vec<f64>>>>> = Vec::with_capacity(SIZES.len());
        for (_, bytes) in SIZES {
            let len = bytes / DType::F32.size_in_bytes();
            let limit = AddAndCopy::new(plan.len(), if slices { len } else { 0 });
            let ends: Vec<EarlyEnd> = rows.iter().map(|_| EarlyEnd::new()).collect();
            times.push(run_ranks(plan, DEFAULT_TIMEOUT, |rank| {
                rows.iter()
                    .zip(&ends)
                    .map(|(&work, end)| seconds(rank, work, (len, runs), &limit, end))
                    .collect()
            })?);
            if interrupt::requested() {
                break;
            }
        }
        let middle = |row: usize, size: usize| {
            let ranks = times.get(size)?.iter().map(|rank| rank[row].as_ref());
            ranks.collect::<Option<Vec<&Vec<f64>>>>().map(|ranks| slowest(&ranks))
        };
        let middles = |row: usize| std::array::from_fn(|size| middle(row, size));
        let rows = rows.iter().enumerate().map(|(row, work)| (*work, middles(row))).collect();
        Ok(Self { plan: plan.clone(), rows })
    }

    /// Writes a line for each number that was measured.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(crate) fn write(&self, metrics: &mut Metrics) -> io::Result<()> {
        let devices: Vec<String> = self.plan.slots().iter().map(ToString::to_string).collect();
        for (work, times) in &self.rows {
            for ((_, bytes), seconds) in SIZES.into_iter().zip(times) {
                let Some(seconds) = *seconds else { continue };
                let (devices, note) = (&devices[..], self.plan.note());
                let (gb_per_s, work) = (self.rate(*work, bytes, seconds), work.to_string());
                let measured = Measured { devices, note, work, bytes, seconds, gb_per_s };
                metrics.write("all-reduce", &measured)?;
            }
        }
        Ok(())
    }

    /// GB/s of one run.
    fn rate(&self, work: Work, bytes: usize, seconds: f64) -> f64 {
        let n = self.plan.len() as f64;
        let share = match work {
            Work::AllReduce(_) | Work::AddAndCopy => 2.0 * (n - 1.0) / n,
            Work::Copy => 1.0,
        };
        bytes as f64 * share / seconds / 1e9
    }
}

/// Seconds of every run on this rank, of a tensor of so many numbers; `None` on all ranks where Ctrl-C came first.
fn seconds(
    rank: &impl Communicator,
    work: Work,
    (len, runs): (usize, Runs),
    limit: &AddAndCopy,
    end: &EarlyEnd,
) -> Result<Option<Vec<f64>>, Error> {
    // What is added up was written by its rank just before, as gradients are: each sum is the next run's tensor. One that
    // stays as it is would soon be in the caches of all who read it. Zeros stay zeros.
    let mut tensor = Tensor::zeros(len, DType::F32, rank.device())?;
    let runs = runs.of(len);
    let mut seconds = Vec::with_capacity(runs);
    // The first run finds memory that was never touched, and is not counted.
    for run in 0..=runs {
        rank.device().synchronize()?;
        if !end.begins(rank, run, interrupt::requested())? {
            return Ok(None);
        }
        let start = Instant::now();
        match work {
            Work::AllReduce(algorithm) => tensor = rank.all_reduce(&tensor, algorithm)?,
            Work::AddAndCopy => limit.run(rank)?,
            Work::Copy => drop(tensor.force_contiguous()?),
        }
        rank.device().synchronize()?;
        if run > 0 {
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    Ok(Some(seconds))
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.plan)?;
        if let Some(note) = self.plan.note() {
            write!(f, "\n  note: {note}")?;
        }
        write!(f, "\n  {:<18}", "")?;
        for (name, _) in SIZES {
            write!(f, "{name:>9}")?;
        }
        for (work, times) in &self.rows {
            write!(f, "\n  {:<18}", work.to_string())?;
            for ((_, bytes), seconds) in SIZES.into_iter().zip(times) {
                match *seconds {
                    Some(seconds) => write!(f, "{:>9.3}", self.rate(*work, bytes, seconds))?,
                    None => write!(f, "{:>9}", "–")?,
                }
            }
        }
        if self.rows.iter().any(|(_, times)| times.contains(&None)) {
            write!(f, "\n  –: left out after the interrupt")?;
        }
        Ok(())
    }
}

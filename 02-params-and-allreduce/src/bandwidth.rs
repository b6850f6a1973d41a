//! The bandwidth of an all-reduce on this machine: a table of algorithms and sizes, beside the limit of its memory.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use candle_core::{DType, Tensor};
use devices::DevicePlan;
use harness::interrupt;
use harness::report::metrics::Metrics;
use harness::statistics::slowest;
use serde::Serialize;

use crate::Algorithm;
use crate::add_and_copy::AddAndCopy;
use crate::communicator::{Communicator, Error};
use crate::thread::{DEFAULT_TIMEOUT, RankFailure, run_ranks};

/// Bytes of the tensors, in f32.
const SIZES: [(&str, usize); 4] =
    [("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20), ("16 MiB", 16 << 20)];

/// The work that a row of the table measures.
#[derive(Clone, Copy)]
enum Work {
    AllReduce(Algorithm),
    /// The least work of an all-reduce in the memory of CPU slices.
    AddAndCopy,
    /// Every GPU copies its memory. The GPUs exchange nothing.
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

/// The bandwidths for one number of devices.
pub struct Table {
    title: String,
    devices: Vec<String>,
    note: Option<String>,
    /// Seconds for each size. `None` if Ctrl-C came first.
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

/// The number of times that each number is measured.
#[derive(Clone, Copy)]
pub enum Runs {
    /// The smaller the tensor, the more often.
    BySize,
    /// The same number of times for every size.
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

/// The text above the tables, which explains their numbers.
pub fn caption(runs: Runs) -> String {
    format!(
        "all-reduce in GB/s, f32, {runs}, each as slow as its slowest rank
  bus bandwidth as nccl-tests defines it: bytes of the tensor ÷ time × 2(n − 1)/n for n devices"
    )
}

/// Explains the last row between slices of the CPU.
pub const LIMIT_OF_SLICES: &str = "  \
  add and copy: each adds up its chunk of all tensors and copies the other chunks' sums, without messages
    and without new memory, in GB/s of the same kind: what this machine's memory and caches allow
  the devices are slices of this CPU: these are not the times of GPUs";

/// Explains the last row between GPUs.
pub const LIMIT_OF_GPUS: &str = "  \
  copy: bytes that each GPU copies within its own memory ÷ time";

impl Table {
    /// Measures all rows on the devices of a plan. After Ctrl-C it measures nothing more.
    ///
    /// # Errors
    ///
    /// The failure of the rank that failed first.
    pub fn measure(plan: &DevicePlan, runs: Runs) -> Result<Self, RankFailure<Error>> {
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
        let devices = plan.slots().iter().map(ToString::to_string).collect();
        let note = plan.note().map(str::to_owned);
        Ok(Self { title: plan.to_string(), devices, note, rows })
    }

    /// Measures algorithms on the devices of a world that is connected already. All ranks call this together, and get the
    /// same table.
    ///
    /// # Errors
    ///
    /// The errors of an all-reduce.
    pub fn measure_rank(
        rank: &impl Communicator,
        title: String,
        algorithms: &[Algorithm],
        runs: Runs,
    ) -> Result<Self, Error> {
        let mut rows = Vec::new();
        for &algorithm in algorithms {
            let (work, mut times) = (Work::AllReduce(algorithm), [None; SIZES.len()]);
            for ((_, bytes), time) in SIZES.into_iter().zip(&mut times) {
                let len = bytes / DType::F32.size_in_bytes();
                let nothing = AddAndCopy::new(rank.world_size(), 0);
                let own = seconds(rank, work, (len, runs), &nothing, &EarlyEnd::new())?;
                let own = Tensor::new(own.unwrap_or_default(), rank.device())?;
                let count = own.elem_count();
                let all = rank.all_gather(&own, count * rank.world_size())?.to_vec1::<f64>()?;
                let ranks: Vec<Vec<f64>> = all.chunks(count).map(<[f64]>::to_vec).collect();
                *time = Some(slowest(&ranks));
            }
            rows.push((work, times));
        }
        let devices = (0..rank.world_size()).map(|rank| format!("rank {rank}")).collect();
        Ok(Self { title, devices, note: None, rows })
    }

    /// Writes one line for each number.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn write(&self, metrics: &mut Metrics) -> io::Result<()> {
        for (work, times) in &self.rows {
            for ((_, bytes), seconds) in SIZES.into_iter().zip(times) {
                let Some(seconds) = *seconds else { continue };
                let (devices, note) = (&self.devices[..], self.note.as_deref());
                let (gb_per_s, work) = (self.rate(*work, bytes, seconds), work.to_string());
                let measured = Measured { devices, note, work, bytes, seconds, gb_per_s };
                metrics.write("all-reduce", &measured)?;
            }
        }
        Ok(())
    }

    /// GB/s of one run.
    fn rate(&self, work: Work, bytes: usize, seconds: f64) -> f64 {
        let n = self.devices.len() as f64;
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
        write!(f, "{}", self.title)?;
        if let Some(note) = &self.note {
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

/// The run before which an interrupted measurement ends, the same on all ranks, which are threads.
///
/// A signal may reach one rank before a run and another rank after it. A rank that leaves alone would keep the others
/// waiting. So only rank 0 looks for the signal, before a barrier, and after the barrier all ranks read the number:
///
/// ```text
/// rank 0   looks: nothing   barrier 3   run 3   looks: Ctrl-C!   barrier 4   leaves
/// rank 1                    barrier 3   run 3                    barrier 4   leaves
/// ```
///
/// The number of the run is stored because rank 0 may look for run 4 before rank 1 reads the number for run 3.
#[derive(Debug)]
struct EarlyEnd(AtomicUsize);

impl EarlyEnd {
    fn new() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }

    /// Waits for all ranks, and returns whether to make this run: the same on all ranks. Runs are numbered upwards.
    ///
    /// `interrupted` is whether this rank has seen Ctrl-C. Only rank 0's answer counts.
    fn begins(
        &self,
        rank: &impl Communicator,
        run: usize,
        interrupted: bool,
    ) -> Result<bool, Error> {
        if rank.rank() == 0 && interrupted {
            self.0.store(run, Ordering::SeqCst);
        }
        rank.barrier()?;
        Ok(run < self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use devices::DevicePlan;

    use super::*;

    /// Ranks 1 and 2 see the signal long before rank 0, or never.
    #[test]
    fn all_ranks_leave_at_the_run_at_which_rank_0_sees_it() {
        const SEEN_AT: [usize; 3] = [7, 2, usize::MAX];
        let plan = DevicePlan::slices(3).expect("a plan");
        for _ in 0..100 {
            let end = EarlyEnd::new();
            let made = run_ranks(&plan, Duration::from_secs(60), |rank| {
                let mut made = 0;
                while end.begins(rank, made, made >= SEEN_AT[rank.rank()])? {
                    made += 1;
                }
                Ok::<_, Error>(made)
            });
            assert_eq!(made.expect("ranks that agree"), [7; 3]);
        }
    }
}

//! The bandwidth of an all-reduce on this machine: a table of algorithms and sizes, beside the limit of its memory.

use std::fmt;
use std::io;
use std::time::Instant;

use candle_core::{DType, Tensor};
use devices::DevicePlan;
use harness::interrupt;
use harness::report::metrics::Metrics;
use harness::statistics::slowest;
use serde_json::json;

use crate::Algorithm;
use crate::add_and_copy::AddAndCopy;
use crate::communicator::{Communicator, Error};
use crate::thread::{DEFAULT_TIMEOUT, RankFailure, run_ranks};

/// Bytes of the tensors, in f32. The gradients of a ResNet-18 have 45 MB.
const SIZES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 45 << 20];

fn size(bytes: usize) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}

/// The text above the tables. Without `runs`, small tensors are measured more often than large ones.
pub fn caption(runs: Option<u32>) -> String {
    let runs = match runs {
        None => "the median of 15 to 500 runs".to_owned(),
        Some(1) => "one run".to_owned(),
        Some(runs) => format!("the median of {runs} runs"),
    };
    format!(
        "all-reduce in GB/s, f32, {runs}; the slowest rank's time is the run's time
  bus bandwidth as nccl-tests defines it:
    bytes of the tensor ÷ time × 2(n − 1)/n for n devices"
    )
}

/// Explains the last row of a table of CPU slices or of GPUs.
pub fn limit(slices: bool) -> &'static str {
    match slices {
        true => {
            "  add and copy: each slice adds up its chunk of all tensors and copies the other
    chunks' sums, without messages and without new memory
  the devices are slices of this CPU: these are not the times of GPUs"
        }
        false => "  copy: bytes that each GPU copies within its own memory ÷ time",
    }
}

/// The work that a row of the table measures.
#[derive(Clone, Copy)]
enum Work<'a> {
    AllReduce(Algorithm),
    /// The least work of an all-reduce in the memory of CPU slices.
    AddAndCopy(&'a AddAndCopy),
    /// Every GPU copies its memory. The GPUs exchange nothing.
    Copy,
}

/// The bandwidths for one number of devices.
pub struct Table {
    title: String,
    devices: Vec<String>,
    note: Option<String>,
    algorithms: Vec<Algorithm>,
    /// The name of the last row, if there is a limit.
    limit: Option<&'static str>,
    /// For each size, the seconds of each row. `None` if Ctrl-C came first.
    columns: Vec<Vec<Option<f64>>>,
}

impl Table {
    /// Measures the chapter's algorithms and the limit on the devices of a plan. After Ctrl-C it measures nothing more.
    /// Fails when a rank fails, with the failure of the first rank that failed.
    pub fn measure(plan: &DevicePlan, runs: Option<u32>) -> Result<Self, RankFailure<Error>> {
        let slices = plan.is_of_slices();
        let mut table = Self {
            title: plan.to_string(),
            devices: plan.slots().iter().map(ToString::to_string).collect(),
            note: plan.note().map(str::to_owned),
            algorithms: Algorithm::OURS.to_vec(),
            limit: Some(if slices { "add and copy" } else { "copy" }),
            columns: Vec::new(),
        };
        for bytes in SIZES {
            let elements = if slices { bytes / DType::F32.size_in_bytes() } else { 0 };
            let limit = AddAndCopy::new(plan.len(), elements);
            let last = if slices { Work::AddAndCopy(&limit) } else { Work::Copy };
            let rows: Vec<_> =
                Algorithm::OURS.map(Work::AllReduce).into_iter().chain([last]).collect();
            let mut columns =
                run_ranks(plan, DEFAULT_TIMEOUT, |rank| column(rank, &rows, bytes, runs))?;
            table.columns.push(columns.swap_remove(0));
        }
        Ok(table)
    }

    /// Measures algorithms on the devices of a world that is connected already. All ranks call this together, and get the
    /// same table. Fails when an all-reduce fails.
    pub fn measure_rank(
        rank: &impl Communicator,
        title: String,
        algorithms: &[Algorithm],
        runs: Option<u32>,
    ) -> Result<Self, Error> {
        let rows: Vec<Work<'_>> = algorithms.iter().copied().map(Work::AllReduce).collect();
        let columns = SIZES.into_iter().map(|bytes| column(rank, &rows, bytes, runs));
        let columns = columns.collect::<Result<_, Error>>()?;
        let devices = (0..rank.world_size()).map(|rank| format!("rank {rank}")).collect();
        let algorithms = algorithms.to_vec();
        Ok(Self { title, devices, note: None, algorithms, limit: None, columns })
    }

    fn names(&self) -> Vec<String> {
        let limit = self.limit.map(ToOwned::to_owned);
        self.algorithms.iter().map(ToString::to_string).chain(limit).collect()
    }

    /// GB/s of a number of the table.
    fn rate(&self, row: usize, column: usize) -> Option<f64> {
        let n = self.devices.len() as f64;
        let is_copy = row == self.algorithms.len() && self.limit == Some("copy");
        let share = if is_copy { 1.0 } else { 2.0 * (n - 1.0) / n };
        self.columns[column][row].map(|seconds| SIZES[column] as f64 * share / seconds / 1e9)
    }

    /// Writes one line for each number. Fails when the file cannot be written.
    pub fn write(&self, metrics: &mut Metrics) -> io::Result<()> {
        for (row, work) in self.names().into_iter().enumerate() {
            for (column, bytes) in SIZES.into_iter().enumerate() {
                let (rate, seconds) = (self.rate(row, column), self.columns[column][row]);
                let (Some(gb_per_s), Some(seconds)) = (rate, seconds) else { continue };
                let measured = json!({
                    "devices": self.devices, "note": self.note, "work": work, "bytes": bytes,
                    "seconds": seconds, "gb_per_s": gb_per_s,
                });
                metrics.write("all-reduce", &measured)?;
            }
        }
        Ok(())
    }

    /// Names the fastest algorithm for each size. Returns `None` if numbers are missing.
    fn conclusion(&self) -> Option<String> {
        let fastest = |column: usize| {
            let rates = (0..self.algorithms.len()).map(|row| Some((self.rate(row, column)?, row)));
            let rates: Vec<(f64, usize)> = rates.collect::<Option<_>>()?;
            rates.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, row)| row)
        };
        let rows: Vec<usize> = (0..SIZES.len()).map(fastest).collect::<Option<_>>()?;
        let (mut parts, mut first) = (Vec::new(), 0);
        for group in rows.chunk_by(|one, next| one == next) {
            let last = first + group.len() - 1;
            let range = match (size(SIZES[first]), size(SIZES[last])) {
                (from, to) if first < last => format!("from {from} to {to}"),
                (only, _) => format!("at {only}"),
            };
            parts.push(format!("{} {range}", self.algorithms[group[0]]));
            first = last + 1;
        }
        Some(format!("fastest: {}.", parts.join(", ")))
    }
}

/// Measures the seconds of all rows for one size: the medians over runs of the slowest rank's time. All ranks get the same
/// values, or `None` if Ctrl-C came first.
fn column(
    rank: &impl Communicator,
    rows: &[Work<'_>],
    bytes: usize,
    runs: Option<u32>,
) -> Result<Vec<Option<f64>>, Error> {
    let mut tensor = Tensor::zeros(bytes / DType::F32.size_in_bytes(), DType::F32, rank.device())?;
    let runs = runs.map_or(((64 << 20) / bytes).clamp(15, 500), |runs| runs as usize);
    let mut seconds = vec![Vec::with_capacity(runs); rows.len()];
    // The rows take turns, so a slow moment of the machine meets all of them. The first round, on new memory, does not count.
    for run in 0..=runs {
        for (work, seconds) in rows.iter().zip(&mut seconds) {
            // The rank has just written its tensor, as it writes gradients in training.
            tensor = tensor.force_contiguous()?;
            rank.device().synchronize()?;
            if !all_go_on(rank, interrupt::requested())? {
                return Ok(vec![None; rows.len()]);
            }
            let start = Instant::now();
            match work {
                Work::AllReduce(algorithm) => tensor = rank.all_reduce(&tensor, *algorithm)?,
                Work::AddAndCopy(limit) => limit.run(rank)?,
                Work::Copy => drop(tensor.force_contiguous()?),
            }
            rank.device().synchronize()?;
            if run > 0 {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
    }
    let median = |of_row| -> Result<_, Error> {
        let all =
            rank.all_gather(&Tensor::new(of_row, rank.device())?, runs * rank.world_size())?;
        let ranks: Vec<Vec<f64>> = all.to_vec1()?.chunks(runs).map(<[f64]>::to_vec).collect();
        Ok(Some(slowest(&ranks)))
    };
    seconds.into_iter().map(median).collect()
}

/// Waits for all ranks, and returns whether they make another run: the same on all ranks.
///
/// A signal may reach one rank before a run and another rank after it. A rank that leaves alone would keep the others
/// waiting. So rank 0 alone decides by its own `interrupted`, and sends its decision to all ranks.
fn all_go_on(rank: &impl Communicator, interrupted: bool) -> Result<bool, Error> {
    let decision = Tensor::new(&[u8::from(!interrupted)], rank.device())?;
    let decision = rank.broadcast(&decision, 0)?.to_vec1::<u8>()?;
    rank.barrier()?;
    Ok(decision == [1])
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.title)?;
        if let Some(note) = &self.note {
            write!(f, "\n  note: {note}")?;
        }
        write!(f, "\n  {:<18}", "")?;
        SIZES.iter().try_for_each(|&bytes| write!(f, "{:>9}", size(bytes)))?;
        for (row, name) in self.names().iter().enumerate() {
            write!(f, "\n  {name:<18}")?;
            for column in 0..SIZES.len() {
                match self.rate(row, column) {
                    Some(rate) => write!(f, "{rate:>9.3}")?,
                    None => write!(f, "{:>9}", "–")?,
                }
            }
        }
        match self.conclusion() {
            Some(conclusion) => write!(f, "\n  {conclusion}"),
            None => write!(f, "\n  –: left out after the interrupt"),
        }
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
            let made = run_ranks(&plan, Duration::from_secs(60), |rank| {
                let mut made = 0;
                while all_go_on(rank, made >= SEEN_AT[rank.rank()])? {
                    made += 1;
                }
                Ok::<_, Error>(made)
            });
            assert_eq!(made.expect("ranks that agree"), [7; 3]);
        }
    }

    #[test]
    fn the_conclusion_names_the_fastest_algorithm_of_each_size() {
        let seconds = |one_shot, ring, limit| vec![Some(one_shot), Some(ring), Some(limit)];
        let mut table = Table {
            title: String::new(),
            devices: vec![String::new(); 2],
            note: None,
            algorithms: vec![Algorithm::OneShot, Algorithm::Ring],
            limit: Some("add and copy"),
            columns: vec![seconds(1.0, 2.0, 0.5); 5],
        };
        let conclusion = |table: &Table| table.conclusion().unwrap_or_default();
        assert_eq!(conclusion(&table), "fastest: one-shot from 4 KiB to 45 MiB.");
        table.columns[2] = seconds(3.0, 2.0, 0.5);
        let parts = "one-shot from 4 KiB to 64 KiB, ring at 1 MiB, one-shot from 16 MiB to 45 MiB";
        assert_eq!(conclusion(&table), format!("fastest: {parts}."));
        table.columns[4][0] = None;
        assert_eq!(table.conclusion(), None);
    }
}

//! The bandwidth of an all-reduce on this machine: a table of algorithms and sizes, with the limit of its memory.

use std::fmt;
use std::io;
use std::time::Instant;

use candle_core::{DType, Tensor};
use devices::DevicePlan;
use harness::interrupt;
use harness::load::Load;
use harness::report::{self, file::LazyFile};
use harness::statistics::slowest;
use harness::verdict::{Doubt, EQUAL_TIMES, Speed, ranked};
use serde_json::json;

use crate::Algorithm;
use crate::add_and_copy::AddAndCopy;
use crate::communicator::{Communicator, Error};
use crate::thread::{DEFAULT_TIMEOUT, RankFailure, run_ranks};

/// Bytes of the tensors, in f32. The gradients of a ResNet-18 have 45 MB.
const SIZES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 45 << 20];

/// A size in KiB or MiB.
pub fn size(bytes: usize) -> String {
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
        "all-reduce in GB/s, f32, {runs}
  bus bandwidth: bytes of the tensor ÷ time of the slowest rank × 2(n − 1)/n for n devices, as in nccl-tests
  one-shot: each device gets and adds all tensors; naive: the first device adds, and sends the sum to all; tree: naive in \
  pairs; ring: pieces go round"
    )
}

/// Explains the last row of a table of CPU slices or of GPUs.
pub fn limit(slices: bool) -> &'static str {
    match slices {
        true => {
            "  memory limit: the rate of the ring's additions and copies with one wait, without messages; algorithms that \
             copy less, or work in pieces that fit into the cache, can pass this limit
  the devices are slices of this CPU: these are not the times of GPUs"
        }
        false => "  memory limit: bytes that each GPU copies within its own memory ÷ time",
    }
}

/// An all-reduce on one rank: takes its tensor, and returns the sum over all ranks.
pub type Sum<'a> = Box<dyn Fn(&Tensor) -> Result<Tensor, Error> + 'a>;

/// The all-reduce by an algorithm.
pub fn by(comm: &(impl Communicator + ?Sized), algorithm: Algorithm) -> Sum<'_> {
    Box::new(move |tensor| comm.all_reduce(tensor, algorithm))
}

/// The bandwidths for one number of devices.
#[derive(Default)]
pub struct Table {
    title: String,
    devices: Vec<String>,
    note: Option<String>,
    /// Whether devices share a core or a GPU.
    shared: bool,
    /// A note that other programs used the cores.
    busy: Option<String>,
    runs: Option<u32>,
    /// The names of the rows of algorithms.
    algorithms: Vec<String>,
    /// If there is a last row with the limit, the bytes that it moves for each byte of the tensor.
    limit: Option<f64>,
    /// For each size, the seconds of each row. `None` if Ctrl-C came first.
    columns: Vec<Vec<Option<f64>>>,
}

impl Table {
    /// Measures the chapter's algorithms and the limit on the devices of a plan. After Ctrl-C it measures nothing more.
    /// Fails when a rank fails, with the failure of the first rank that failed.
    pub fn measure(plan: &DevicePlan, runs: Option<u32>) -> Result<Self, RankFailure<Error>> {
        let (slices, load) = (plan.is_of_slices(), Load::now());
        let mut table = Self {
            title: plan.to_string(),
            devices: plan.slots().iter().map(ToString::to_string).collect(),
            note: plan.note().map(str::to_owned),
            shared: plan.shares_hardware(),
            runs,
            algorithms: Algorithm::OURS.map(|it| it.to_string()).to_vec(),
            limit: Some(if slices { share(plan.len()) } else { 1.0 }),
            ..Self::default()
        };
        for bytes in SIZES {
            let elements = if slices { bytes / DType::F32.size_in_bytes() } else { 0 };
            let limit = AddAndCopy::new(plan.len(), elements);
            let mut columns = run_ranks(plan, DEFAULT_TIMEOUT, |comm| {
                let mut rows = Vec::from(Algorithm::OURS.map(|it| by(comm, it)));
                rows.push(match slices {
                    true => Box::new(|tensor| limit.run(comm).map(|()| tensor.clone())),
                    // Every GPU copies its memory. The GPUs exchange nothing.
                    false => Box::new(|tensor| Ok(tensor.force_contiguous()?)),
                });
                seconds(comm, &rows, bytes, runs)
            })?;
            table.columns.push(columns.swap_remove(0));
        }
        table.busy = plan.busy_since(&load);
        Ok(table)
    }

    /// Measures algorithms on the devices of a world that is connected already. All ranks call this together, and get the same
    /// table. Fails when an all-reduce fails.
    pub fn measure_rank(
        comm: &(impl Communicator + ?Sized),
        title: String,
        algorithms: &[Algorithm],
        runs: Option<u32>,
    ) -> Result<Self, Error> {
        let rows: Vec<_> = algorithms.iter().map(|&algorithm| by(comm, algorithm)).collect();
        let columns = SIZES.into_iter().map(|bytes| seconds(comm, &rows, bytes, runs));
        let columns = columns.collect::<Result<_, Error>>()?;
        let devices = (0..comm.world_size()).map(|rank| format!("rank {rank}")).collect();
        let algorithms = algorithms.iter().map(Algorithm::to_string).collect();
        Ok(Self { title, devices, runs, algorithms, columns, ..Self::default() })
    }

    /// The names of all rows.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.algorithms.iter().map(String::as_str).chain(self.limit.map(|_| "memory limit"))
    }

    /// GB/s of a number of the table.
    fn rate(&self, row: usize, column: usize) -> Option<f64> {
        let limit = self.limit.filter(|_| row == self.algorithms.len());
        let moved = SIZES[column] as f64 * limit.unwrap_or(share(self.devices.len()));
        self.columns[column][row].map(|seconds| moved / seconds / 1e9)
    }

    /// Writes one line for each number. Fails when the file cannot be written.
    pub fn write(&self, metrics: &mut LazyFile) -> io::Result<()> {
        for (row, work) in self.names().enumerate() {
            for (column, bytes) in SIZES.into_iter().enumerate() {
                let (rate, seconds) = (self.rate(row, column), self.columns[column][row]);
                let (Some(gb_per_s), Some(seconds)) = (rate, seconds) else { continue };
                let measured = json!({
                    "devices": self.devices, "note": self.note, "busy": self.busy, "work": work, "bytes": bytes,
                    "seconds": seconds, "gb_per_s": gb_per_s,
                });
                metrics.write_json("all-reduce", &measured)?;
            }
        }
        Ok(())
    }

    /// The doubts about the times, or else the fastest algorithms. Returns `None` if numbers are missing.
    fn conclusion(&self) -> Option<String> {
        let (count, rows) = (self.devices.len(), 0..self.algorithms.len());
        let all = |row| (0..SIZES.len()).map(|column| self.rate(row, column)).collect();
        let rates: Vec<Vec<f64>> = rows.clone().map(all).collect::<Option<_>>()?;
        let doubts = [
            self.shared.then_some(Doubt::Shared(count)),
            self.busy.as_ref().map(|_| Doubt::Busy),
            self.runs.and_then(Doubt::of_repetitions),
        ];
        let doubts: Vec<Doubt> = doubts.into_iter().flatten().collect();
        let best = |column: usize| rates.iter().map(|rates| rates[column]).fold(0.0, f64::max);
        let fastest = |column: usize| {
            let close = |row: &usize| Speed::of(best(column) / rates[*row][column]) == Speed::Equal;
            let names = rows.clone().filter(close).map(|row| self.algorithms[row].clone());
            format!("{} at {}", report::joined(names), size(SIZES[column]))
        };
        let last = SIZES.len() - 1;
        let limit = self.limit.and_then(|_| self.rate(self.algorithms.len(), last));
        let of_limit = |it| format!(", with {:.0} % of the memory limit", 100.0 * best(last) / it);
        let limit = limit.map(of_limit).unwrap_or_default();
        if count == 1 {
            return Some("One device has nothing to add up.".to_owned());
        }
        Some(ranked(&doubts, || {
            let (within, small, large) = (100.0 * EQUAL_TIMES, fastest(0), fastest(last));
            format!("Fastest, or within {within:.0} % of it: {small}, and {large}{limit}.")
        }))
    }
}

/// The bytes that each rank of a ring sends for each byte of the tensor: the factor of bus bandwidth.
pub fn share(ranks: usize) -> f64 {
    2.0 * (ranks as f64 - 1.0) / ranks as f64
}

/// Measures the seconds of several all-reduces of a tensor of so many bytes: the medians over runs of the slowest rank's time.
/// All ranks call this together, and get the same values, or `None` if Ctrl-C came first. Fails when an all-reduce fails.
pub fn seconds(
    comm: &(impl Communicator + ?Sized),
    sums: &[Sum<'_>],
    bytes: usize,
    runs: Option<u32>,
) -> Result<Vec<Option<f64>>, Error> {
    let mut tensor = Tensor::zeros(bytes / DType::F32.size_in_bytes(), DType::F32, comm.device())?;
    let runs = runs.map_or(((64 << 20) / bytes).clamp(15, 500), |runs| runs as usize);
    let mut seconds = vec![Vec::with_capacity(runs); sums.len()];
    // The sums take turns, so a slow moment of the machine meets all of them. The first round, on new memory, does not count.
    for run in 0..=runs {
        for (sum, seconds) in sums.iter().zip(&mut seconds) {
            // The rank has just written its tensor, as it writes gradients in training.
            tensor = tensor.force_contiguous()?;
            comm.device().synchronize()?;
            if !all_go_on(comm, interrupt::requested())? {
                return Ok(vec![None; sums.len()]);
            }
            let start = Instant::now();
            tensor = sum(&tensor)?;
            comm.device().synchronize()?;
            if run > 0 {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
    }
    let median = |of_row| -> Result<_, Error> {
        let all =
            comm.all_gather(&Tensor::new(of_row, comm.device())?, runs * comm.world_size())?;
        let ranks: Vec<Vec<f64>> = all.to_vec1()?.chunks(runs).map(<[f64]>::to_vec).collect();
        Ok(Some(slowest(&ranks)))
    };
    seconds.into_iter().map(median).collect()
}

/// Waits for all ranks, and returns whether they make another run. Rank 0 decides for all: a signal may reach one rank before a
/// run and another rank after it, and all ranks would wait for a rank that leaves alone.
fn all_go_on(comm: &(impl Communicator + ?Sized), interrupted: bool) -> Result<bool, Error> {
    let decision = Tensor::new(&[u8::from(!interrupted)], comm.device())?;
    let decision = comm.broadcast(&decision, 0)?.to_vec1::<u8>()?;
    comm.barrier()?;
    Ok(decision == [1])
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = report::columns();
        // The sizes that a narrow terminal leaves out first.
        let ranks = [0, 2, 0, 1, 0];
        let mut table = report::Table::new("").indented(2);
        for (bytes, rank) in SIZES.into_iter().zip(ranks) {
            table = table.column(&size(bytes), rank);
        }
        for (row, name) in self.names().enumerate() {
            let number = |column| {
                self.rate(row, column).map_or_else(|| "–".to_owned(), |rate| format!("{rate:.3}"))
            };
            table.row([name.to_owned()].into_iter().chain((0..SIZES.len()).map(number)));
        }
        let notes = |note: &Option<String>| {
            note.iter().map(|note| format!("\n  note: {note}")).collect::<String>()
        };
        let above = format!("{}{}", self.title, notes(&self.note));
        let left_out = || "–: left out after the interrupt".to_owned();
        let conclusion = self.conclusion().unwrap_or_else(left_out);
        let below = format!("{}\n  {conclusion}", notes(&self.busy));
        let text = |text: &str| report::wrapped(text.trim_start_matches('\n'), columns);
        write!(f, "{}\n{}\n{}", text(&above), table.text(columns), text(&below))
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
            let made = run_ranks(&plan, Duration::from_secs(60), |comm| {
                let mut made = 0;
                while all_go_on(comm, made >= SEEN_AT[comm.rank()])? {
                    made += 1;
                }
                Ok::<_, Error>(made)
            });
            assert_eq!(made.expect("ranks that agree"), [7; 3]);
        }
    }

    /// A table of two devices with these GB/s of one-shot, the ring and the limit.
    fn table(one_shot: [f64; 5], ring: [f64; 5], limit: [f64; 5]) -> Table {
        let seconds = |column: usize| {
            let rates = [one_shot[column], ring[column], limit[column]];
            rates.map(|rate| Some(SIZES[column] as f64 / rate / 1e9)).to_vec()
        };
        Table {
            title: "[a, b]".to_owned(),
            devices: vec![String::new(); 2],
            algorithms: vec!["one-shot".to_owned(), "ring".to_owned()],
            limit: Some(share(2)),
            columns: (0..SIZES.len()).map(seconds).collect(),
            ..Table::default()
        }
    }

    fn conclusion(table: &Table) -> String {
        table.conclusion().expect("a complete table")
    }

    #[test]
    fn the_conclusion_names_the_fastest_algorithms() {
        let alone = table([2.0; 5], [1.0; 5], [4.0; 5]);
        let turns = table([2.0, 2.0, 1.0, 2.0, 1.0], [1.0, 1.0, 2.0, 1.0, 2.0], [1.0; 5]);
        let close = table([2.09; 5], [2.0; 5], [900.0; 5]);
        let without = Table { limit: None, ..table([2.0; 5], [1.0; 5], [4.0; 5]) };
        for (table, expected) in [
            (&alone, "one-shot at 4 KiB, and one-shot at 45 MiB, with 50 % of the memory limit."),
            (&turns, "one-shot at 4 KiB, and ring at 45 MiB, with 200 % of the memory limit."),
            (
                &close,
                "one-shot and ring at 4 KiB, and one-shot and ring at 45 MiB, with 0 % of the memory limit.",
            ),
            (&without, "one-shot at 4 KiB, and one-shot at 45 MiB."),
        ] {
            assert_eq!(conclusion(table), format!("Fastest, or within 5 % of it: {expected}"));
        }
        let mut missing = alone;
        missing.columns[4][0] = None;
        assert_eq!(missing.conclusion(), None);
        assert!(missing.to_string().ends_with("\n  –: left out after the interrupt"), "{missing}");
    }

    #[test]
    fn with_a_doubt_about_times_nothing_is_ranked() {
        let flat = table([2.0; 5], [1.0; 5], [900.0; 5]);
        let share = Some("4 threads share 2 cores".to_owned());
        let few = Table { note: share, shared: true, runs: Some(3), ..flat };
        assert_eq!(conclusion(&few), format!("{} {}", Doubt::Shared(2), Doubt::FewRepetitions));
        assert!(few.to_string().starts_with("[a, b]\n  note: 4 threads share 2 cores\n"), "{few}");
        let busy = Table { busy: Some("other programs".to_owned()), shared: false, ..few };
        assert!(busy.to_string().contains("\n  note: other programs\n  Other programs"), "{busy}");
        assert!(!busy.to_string().contains("astest"), "{busy}");
        let alone = Table { devices: vec![String::new()], ..busy };
        assert_eq!(conclusion(&alone), "One device has nothing to add up.");
    }
}

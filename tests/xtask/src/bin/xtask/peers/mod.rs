//! `cargo xtask peers`: our code and PyTorch, Gloo and Open MPI on the same work, in turn.
//!
//! Each side runs in its own process, one at a time, with the same number of threads. The sides take turns
//! (A B A B …), so a machine that is slower for a while is slower for all of them. A ratio is the median of the ratios of
//! neighbours. Each process makes one run that does not count, then several, and their median is its result.

mod comparison;
pub(crate) mod ours;
mod programs;
pub(crate) mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use comparison::{Comparison, Side, Topic, Way};
use course::doctor::probe::{ask, first_line};
use course::process;
use devices::{DeviceKind, DevicePlan, available_cores};
use harness::cli::{UsageError, name_of, whole};
use harness::interrupt;
use harness::report::summary::Versions;
use harness::report::{error_line, file, line};
use itertools::Itertools as _;
use ours::Precision;
use programs::{Measured, Programs};
use table::{Outcome, Row, Table, quantity};
use xtask::root;

use crate::machine::{this_machine, today};

#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// Make the Python environment first, in your cache folder: up to 5 GB from PyPI
    #[arg(long, conflicts_with = "python")]
    set_up: bool,

    /// Use this Python, which has PyTorch, instead of the one that --set-up makes
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,

    /// The other side's scripts [default: tests/peers of the checkout that this tool was built in]
    #[arg(long, value_name = "FOLDER")]
    scripts: Option<PathBuf>,

    /// On what: `cuda` measures training steps on a GPU, in f32, TF32 and bf16
    #[arg(long, default_value = "cpu", value_parser = ["cpu", "cuda"])]
    device: String,

    /// Measure another build of this tool in place of this one
    #[arg(long, value_name = "PATH")]
    ours: Option<PathBuf>,

    /// How often all take turns [default: 7; with --quick 1]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1000))]
    alternations: Option<u32>,

    /// The time limit of one process
    #[arg(long, value_name = "SECONDS", default_value = "240", value_parser = whole::<u64>(1..=86_400))]
    patience: u64,

    /// Do only these; the numbers are not stored, unless --update or --output says so
    #[arg(long, value_name = "NAME", value_delimiter = ',', num_args = 1..)]
    only: Vec<Topic>,

    /// Of these, only steps on so many images; stored as with --only
    #[arg(long, value_name = "IMAGES", value_delimiter = ',', num_args = 1..)]
    batch: Vec<usize>,

    /// Of these, only what is computed in this; stored as with --only
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',', num_args = 1..)]
    precision: Vec<Precision>,

    /// Of these, only beside a PyTorch that works in this way; stored as with --only
    #[arg(long, value_enum, value_name = "WAY", value_delimiter = ',', num_args = 1..)]
    way: Vec<Way>,

    /// Put the numbers of --only into the stored table, if that is from this machine with these versions; a file that
    /// --output names may be a new one
    #[arg(long, requires = "only", conflicts_with = "quick")]
    update: bool,

    /// Find out whether everything runs; the numbers mean nothing and are stored as with --only
    #[arg(long)]
    quick: bool,

    /// Where the numbers are stored [default: book/data/peers-cpu.json, or peers-gpu.json]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Arguments {
    fn alternations(&self) -> usize {
        self.alternations
            .map_or(if self.quick { 1 } else { 7 }, |alternations| alternations as usize)
    }

    fn on_a_gpu(&self) -> bool {
        self.device == "cuda"
    }

    fn asks_for(&self, one: &Comparison) -> bool {
        let of_batch = || one.batch.is_some_and(|batch| self.batch.contains(&batch));
        (self.only.is_empty() || self.only.contains(&one.topic))
            && (self.batch.is_empty() || of_batch())
            && (self.precision.is_empty() || self.precision.contains(&one.precision))
            && (self.way.is_empty() || self.way.contains(&one.way))
    }

    /// The flags that choose a part of the comparisons.
    fn part(&self) -> String {
        let only = self.only.iter().map(|topic| format!(" --only {}", name_of(topic)));
        let batch = self.batch.iter().map(|batch| format!(" --batch {batch}"));
        let precision = self.precision.iter().map(|one| format!(" --precision {}", name_of(one)));
        let way = self.way.iter().map(|way| format!(" --way {}", name_of(way)));
        only.chain(batch).chain(precision).chain(way).collect()
    }

    /// The command that measures the same, without names of this machine's files. Later updates of a table add other
    /// parts.
    fn command(&self) -> String {
        let device = if self.on_a_gpu() { " --device cuda" } else { "" };
        let part = if self.update { String::new() } else { self.part() };
        let quick = if self.quick { " --quick" } else { "" };
        format!("cargo xtask peers --alternations {}{device}{part}{quick}", self.alternations())
    }

    /// The file of the numbers. A part of the numbers replaces the whole table only on request.
    fn output(&self) -> anyhow::Result<Option<PathBuf>> {
        let name = if self.on_a_gpu() { "peers-gpu.json" } else { "peers-cpu.json" };
        let whole = !self.quick && (self.part().is_empty() || self.update);
        let book = || whole.then(|| root().join("book/data").join(name));
        let path = self.output.clone().or_else(book);
        if let Some(path) = &path {
            file::check(path).with_context(|| path.display().to_string())?;
        }
        Ok(path)
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if cfg!(debug_assertions) && arguments.ours.is_none() {
        bail!("this build is for finding mistakes, and slow: measure with `cargo xtask peers`");
    }
    let all = if arguments.on_a_gpu() {
        DevicePlan::new(DeviceKind::Cuda, 1, None).map_err(UsageError::new)?;
        comparison::on_a_gpu(arguments.quick)
    } else {
        comparison::on_cores(arguments.quick)
    };
    let asked: Vec<_> = all.iter().filter(|one| arguments.asks_for(one)).collect();
    if asked.is_empty() {
        let flags = "--only, --batch, --precision and --way";
        bail!(UsageError::new(format!("on this device nothing is measured as {flags} ask for")));
    }
    let output = arguments.output()?;
    let scripts = arguments.scripts.clone().unwrap_or_else(|| root().join("tests/peers"));
    let programs = Programs {
        ours: match &arguments.ours {
            Some(ours) => ours.clone(),
            None => std::env::current_exe().context("where this program lies")?,
        },
        python: match &arguments.python {
            Some(python) => python.clone(),
            None => programs::python(arguments.set_up.then_some(scripts.as_path()))?,
        },
        scripts,
        patience: Duration::from_secs(arguments.patience),
    };
    let mut table = table(arguments, &programs)?;
    if let Some(path) = output.as_ref().filter(|path| arguments.update && path.exists()) {
        let stored = std::fs::read(path)?;
        let stored = serde_json::from_slice(&stored).map_err(anyhow::Error::new);
        let continued = stored.and_then(|stored| table.continue_stored(stored));
        continued.with_context(|| path.display().to_string())?;
    }
    if available_cores() < 2 {
        line("note: this machine has one core: times of two threads show overhead, not speed-up")?;
    }
    for (position, &comparison) in asked.iter().enumerate() {
        let measure = |side: &Side| programs.measure(comparison, side);
        let outcomes = take_turns(comparison, arguments.alternations(), measure)?;
        let rows = Row::all(comparison, &outcomes);
        rows.iter().try_for_each(line)?;
        table.put(rows, &all);
        // A run may end early, and its results are already stored. But only a whole table replaces the book's.
        let last = position + 1 == asked.len();
        let now = last || arguments.output.is_some() || arguments.update;
        if let Some(path) = output.as_ref().filter(|_| now) {
            table.write(path)?;
        }
    }
    match table.failures()[..] {
        [] => Ok(()),
        ref failed => bail!("failed: {}", failed.join(", ")),
    }
}

/// The table without rows: this machine, and the versions of both sides.
fn table(arguments: &Arguments, programs: &Programs) -> anyhow::Result<Table> {
    let mut versions = programs.versions()?;
    let mut machine = this_machine();
    if arguments.on_a_gpu() {
        // Both sides compute on the first GPU of CUDA, which need not be the first of the machine.
        let gpu = versions.get("gpu").cloned().flatten();
        machine.gpus = vec![gpu.context("PyTorch finds no GPU")?];
    }
    let ours = serde_json::to_value(Versions::of_this_binary())?;
    versions.extend(serde_json::from_value::<BTreeMap<_, _>>(ours)?);
    versions.insert("rustc".to_owned(), ask("rustc", &["--version"]).ok().map(first_line));
    Ok(Table {
        command: arguments.command(),
        date: today(),
        alternations: arguments.alternations(),
        quick: arguments.quick,
        machine,
        versions,
        rows: Vec::new(),
    })
}

/// Lets the sides of a comparison take turns. A side that fails is out, and all other sides go on. Fails after Ctrl-C.
fn take_turns(
    comparison: &Comparison,
    alternations: usize,
    measure: impl Fn(&Side) -> anyhow::Result<Measured>,
) -> anyhow::Result<Vec<Outcome>> {
    let mut outcomes = vec![Outcome::default(); comparison.sides.len()];
    for turn in 1..=alternations {
        for (side, outcome) in comparison.sides.iter().zip(&mut outcomes) {
            if outcome.failure.is_some() {
                continue;
            }
            let measured = measure(side);
            if interrupt::requested() {
                return Err(process::interrupted());
            }
            let result = match measured {
                Ok((medians, note)) => {
                    let told = medians.iter().map(|n| quantity(*n, comparison.unit)).join(", ");
                    outcome.runs.push(medians);
                    outcome.note = note;
                    told
                }
                Err(why) => {
                    let why = format!("{why:#}");
                    outcome.failure = Some(why.clone());
                    format!("failed: {why}")
                }
            };
            let (what, threads, side) = (&comparison.what, comparison.threads(), &side.label);
            let turn = format!("turn {turn} of {alternations}");
            error_line(format_args!("{what}, threads {threads}, {turn}: {side} {result}"));
        }
    }
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn sides_take_turns_and_a_side_that_fails_is_out() {
        let all = comparison::on_cores(true);
        let comparison = all.iter().find(|it| it.topic == Topic::DataParallelStep).unwrap();
        let log = RefCell::new(Vec::new());
        let measure = |side: &Side| {
            log.borrow_mut().push(side.label.clone());
            let calls = log.borrow().iter().filter(|label| **label == side.label).count();
            anyhow::ensure!(side.label != "ours, one device" || calls < 2, "it crashed");
            Ok((vec![calls as f64], None))
        };
        let outcomes = take_turns(comparison, 3, measure).unwrap();
        let (ours, alone, peer) = ("ours", "ours, one device", "PyTorch DDP, Gloo");
        assert_eq!(log.into_inner(), [ours, alone, peer, ours, alone, peer, ours, peer]);
        assert_eq!(outcomes[2].runs, [[1.0], [2.0], [3.0]]);
        assert_eq!(outcomes[1].failure.as_deref(), Some("it crashed"));
    }
}

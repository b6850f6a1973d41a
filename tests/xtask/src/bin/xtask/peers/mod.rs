//! `cargo xtask peers`: our code and PyTorch, Gloo and Open MPI on the same work, in turn.
//!
//! Whoever takes part runs in a process of its own, one at a time, with the same number of threads. They
//! take turns (A B A B …), so that a machine that is slower for a while is slower for all of them; a ratio
//! is the median of the ratios of neighbours. Each process makes one run that is not counted, then several,
//! and their median is its result.

mod comparison;
mod document;
mod environment;
mod on_a_gpu;
pub(crate) mod ours;
mod report;
mod side;
mod turns;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use comparison::{Comparison, Topic};
use devices::{DeviceKind, DevicePlan, available_cores};
use document::Document;
use harness::cli::{UsageError, name_of};
use harness::interrupt;
use harness::report::{file, line};
use on_a_gpu::Way;
use ours::Precision;
use report::Header;
use side::{PATIENCE, Programs};
use xtask::{Machine, root};

use crate::machine::this_machine;
use course::process;

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
    #[arg(long, value_enum, default_value_t = On::Cpu)]
    device: On,

    /// Measure another build of this tool in place of this one
    #[arg(long, value_name = "PATH")]
    ours: Option<PathBuf>,

    /// How often all take turns [default: 7; with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    alternations: Option<u32>,

    /// How long one side may take, which else hangs [default: 240]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    patience: Option<u32>,

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum On {
    /// Cores of the processor
    Cpu,
    /// One GPU
    Cuda,
}

impl Arguments {
    fn alternations(&self) -> usize {
        self.alternations
            .map_or(if self.quick { 1 } else { 7 }, |alternations| alternations as usize)
    }

    fn patience(&self) -> Duration {
        self.patience.map_or(PATIENCE, |seconds| Duration::from_secs(seconds.into()))
    }

    fn all(&self) -> Vec<Comparison> {
        match self.device {
            On::Cpu => comparison::all(self.quick),
            On::Cuda => on_a_gpu::all(self.quick),
        }
    }

    fn comparisons(&self) -> Vec<Comparison> {
        let asked = |one: &Comparison| {
            let of_batch = || one.batch.is_some_and(|batch| self.batch.contains(&batch));
            (self.only.is_empty() || self.only.contains(&one.topic))
                && (self.batch.is_empty() || of_batch())
                && (self.precision.is_empty() || self.precision.contains(&one.precision))
                && (self.way.is_empty() || self.way.contains(&one.way))
        };
        self.all().into_iter().filter(asked).collect()
    }

    fn partial(&self) -> bool {
        !(self.only.is_empty()
            && self.batch.is_empty()
            && self.precision.is_empty()
            && self.way.is_empty())
    }

    /// The file that is written, if one is: what is known to be less than the whole table replaces it only on
    /// request.
    fn output(&self) -> anyhow::Result<Option<PathBuf>> {
        let path = match &self.output {
            Some(path) => path.clone(),
            None if self.quick || (self.partial() && !self.update) => return Ok(None),
            None => {
                let folder = root().join("book/data");
                std::fs::create_dir_all(&folder)
                    .with_context(|| format!("{}", folder.display()))?;
                folder.join(match self.device {
                    On::Cpu => "peers-cpu.json",
                    On::Cuda => "peers-gpu.json",
                })
            }
        };
        file::check(&path).with_context(|| format!("{}", path.display()))?;
        Ok(Some(path))
    }

    /// The table that `--update` puts numbers into, if this run does not begin it.
    fn stored(&self, output: Option<&Path>) -> anyhow::Result<Option<String>> {
        let Some(path) = output.filter(|_| self.update) else { return Ok(None) };
        if self.output.is_some() && !path.exists() {
            return Ok(None);
        }
        let stored = std::fs::read_to_string(path);
        let what = || format!("{}, which --update puts numbers into", path.display());
        stored.map(Some).with_context(what)
    }

    /// The command that measures the same, or the table of which this is a part: without the names of this machine's
    /// files.
    fn command(&self) -> String {
        let mut command = format!("cargo xtask peers --alternations {}", self.alternations());
        if self.device == On::Cuda {
            command.push_str(" --device cuda");
        }
        // A table that --update begins will have more.
        if !self.update {
            let only = self.only.iter().map(|topic| ("only", name_of(topic)));
            let batch = self.batch.iter().map(|batch| ("batch", batch.to_string()));
            let precision = self.precision.iter().map(|chosen| ("precision", name_of(chosen)));
            let way = self.way.iter().map(|way| ("way", name_of(way)));
            for (flag, value) in only.chain(batch).chain(precision).chain(way) {
                command.push_str(&format!(" --{flag} {value}"));
            }
        }
        if self.quick {
            command.push_str(" --quick");
        }
        command
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if cfg!(debug_assertions) && arguments.ours.is_none() {
        bail!("this build is for finding mistakes, and slow: measure with `cargo xtask peers`");
    }
    if arguments.device == On::Cuda {
        DevicePlan::new(DeviceKind::Cuda, 1, None).map_err(UsageError::new)?;
    }
    let comparisons = arguments.comparisons();
    if comparisons.is_empty() {
        bail!(UsageError::new(match arguments.device {
            On::Cpu =>
                "nothing that is measured has all that --only, --batch, --precision and --way ask for",
            On::Cuda =>
                "on a GPU only training steps on one device are measured: --only lenet-step,resnet18-step, \
                 --batch 256,512 (LeNet: 256), --precision f32,tf32,bf16, \
                 --way eager,compiled,tuned,deterministic (the last in f32)",
        }));
    }
    let output = arguments.output()?;
    let scripts = arguments.scripts.clone().unwrap_or_else(|| root().join("tests/peers"));
    let python = match &arguments.python {
        Some(python) => python.clone(),
        None if arguments.set_up => environment::set_up(&scripts)?,
        None => environment::find()?,
    };
    let ours = match &arguments.ours {
        Some(ours) => ours.clone(),
        None => std::env::current_exe().context("where this program lies")?,
    };
    let programs = Programs { ours, python, scripts, patience: arguments.patience() };
    let versions = environment::versions(&programs)?;
    let alternations = arguments.alternations();
    let all = arguments.all().into_iter().map(|one| one.what).collect();
    let machine = match arguments.device {
        On::Cpu => this_machine(),
        // That both sides compute on: the first that CUDA shows them, which need not be the first of the machine.
        On::Cuda => match versions.get("gpu") {
            Some(Some(gpu)) => Machine { gpus: vec![gpu.clone()], ..this_machine() },
            _ => bail!("{}: its PyTorch finds no GPU", programs.python.display()),
        },
    };
    let mut document =
        Document::new(arguments.command(), alternations, arguments.quick, machine, versions, all);

    let stored = arguments.stored(output.as_deref())?;
    if let Some(stored) = &stored {
        // Whether it can take in rows of this run is known before they are measured.
        document.put_into(stored)?;
    }

    if available_cores() < 2 {
        line("note: this machine has one core: times of two threads show overhead, not speed-up")?;
    }
    line(Header)?;
    for (position, comparison) in comparisons.iter().enumerate() {
        let rows = turns::measure(comparison, alternations, &programs);
        let interrupted = interrupt::requested();
        rows.iter().try_for_each(line)?;
        let last = position + 1 == comparisons.len() && !interrupted;
        let news = !rows.is_empty();
        document.add(rows);
        // Whatever ends this early, what was measured is there. But only a whole table replaces the book's.
        let now = last || arguments.output.is_some() || arguments.update;
        if let Some(path) = output.as_deref().filter(|_| news && now) {
            document.write(path, stored.as_deref())?;
        }
        if interrupted {
            return Err(process::interrupted());
        }
    }
    match document.failures()[..] {
        [] => Ok(()),
        ref failed => bail!("failed: {}", failed.join(", ")),
    }
}

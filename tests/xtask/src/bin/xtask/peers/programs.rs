//! The programs on both sides: each does its work once, in its own process, and prints its times.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use harness::cli::name_of;
use harness::machine::default_data_folder;
use harness::report::error_line;
use harness::statistics::median;
use serde::Deserialize as _;
use serde_json::Value;
use xtask::root;

use super::comparison::{Comparison, Program, Side};
use super::ours::{self, Precision};
use crate::shell;

#[derive(Clone, Debug)]
pub(super) struct Programs {
    /// This tool, or another build of it.
    pub(super) ours: PathBuf,
    pub(super) python: PathBuf,
    pub(super) scripts: PathBuf,
    /// The time limit of a process.
    pub(super) patience: Duration,
}

/// The result of one process: the median of each series, in the comparison's order, and a note.
pub(super) type Measured = (Vec<f64>, Option<String>);

impl Programs {
    /// Runs one side of a comparison.
    pub(super) fn measure(&self, comparison: &Comparison, side: &Side) -> anyhow::Result<Measured> {
        let Comparison { threads, precision, flags, unit, series, .. } = comparison;
        let program = match side.program {
            Program::Ours(work) => {
                format!("'{}' {} {}", self.ours.display(), ours::COMMAND, name_of(&work))
            }
            Program::Script(script) => self.script(script),
        };
        // The libraries below PyTorch read these variables before PyTorch can set the number of threads.
        let environment = format!("OMP_NUM_THREADS={threads} MKL_NUM_THREADS={threads}");
        let environment = match precision {
            Precision::F32 => format!("NVIDIA_TF32_OVERRIDE=0 {environment}"),
            _ => format!("unset NVIDIA_TF32_OVERRIDE; {environment}"),
        };
        let answer = self.answer(&format!("{environment} {program}{flags}{}", side.flag))?;
        let middle = |name: &&str| {
            let numbers = Vec::<f64>::deserialize(&answer[unit][name]).unwrap_or_default();
            let measured = !numbers.is_empty() && numbers.iter().all(|number| *number > 0.0);
            ensure!(measured, "did not measure \"{name}\"");
            Ok(median(numbers))
        };
        let medians = series.iter().map(middle).collect::<anyhow::Result<_>>()?;
        Ok((medians, answer["note"].as_str().map(str::to_owned)))
    }

    /// The versions of Python and its packages by name. A package that is not there has none.
    pub(super) fn versions(&self) -> anyhow::Result<BTreeMap<String, Option<String>>> {
        let answer = self.answer(&self.script("versions.py"));
        let answer = answer.and_then(|answer| Ok(serde_json::from_value(answer)?));
        answer.with_context(|| {
            let python = self.python.display();
            format!("{python} has no PyTorch that works; --set-up makes one that has")
        })
    }

    fn script(&self, name: &str) -> String {
        // No run changes the checkout. Elsewhere Python may keep compiled files, which saves seconds at each start.
        let here = self.scripts.starts_with(root());
        let environment = if here { "PYTHONDONTWRITEBYTECODE=1 " } else { "" };
        let (python, script) = (self.python.display(), self.scripts.join(name));
        format!("{environment}'{python}' '{}'", script.display())
    }

    /// Runs a program, and returns the last JSON object that it prints. Fails with its last line.
    fn answer(&self, command: &str) -> anyhow::Result<Value> {
        let ended = shell::run(command, Path::new("."), self.patience)?;
        let lines = || ended.output.lines().map(str::trim).filter(|line| !line.is_empty());
        ensure!(ended.status.success(), "{}", lines().next_back().unwrap_or("it printed nothing"));
        let object = lines().rfind(|line| line.starts_with('{')).unwrap_or("");
        serde_json::from_str(object).context("it printed no measurement")
    }
}

/// The interpreter of the environment in the cache folder. With `scripts`, makes the environment with the packages that
/// the scripts need.
pub(super) fn python(scripts: Option<&Path>) -> anyhow::Result<PathBuf> {
    let images = default_data_folder();
    let folder = images.map(|images| images.with_file_name("peers"));
    let folder = folder.context("this machine has no folder for caches: use --python")?;
    let python = folder.join("bin/python");
    if let Some(scripts) = scripts {
        error_line(format_args!("making a Python environment in {}", folder.display()));
        let (mut make, mut fill) = (Command::new("python3"), Command::new(&python));
        make.args(["-m", "venv"]).arg(&folder);
        fill.args(["-m", "pip", "install", "--disable-pip-version-check", "--requirement"]);
        for command in [&mut make, fill.arg(scripts.join("requirements.txt"))] {
            let status = command.stdin(Stdio::null()).stdout(std::io::stderr()).status();
            let status = status.with_context(|| format!("{command:?}"))?;
            ensure!(status.success(), "{command:?} failed ({status})");
        }
    }
    ensure!(
        python.is_file(),
        "there is no Python with PyTorch at {}: `cargo xtask peers --set-up` makes one (up to 5 GB), \
         and --python names one of your own",
        python.display()
    );
    Ok(python)
}

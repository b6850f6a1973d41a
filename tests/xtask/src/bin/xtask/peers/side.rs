//! One side of a comparison, once: a process that does its work and prints what it measured.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use harness::cli::name_of;
use harness::statistics::median;
use serde::{Deserialize, Serialize};

use super::comparison::{Comparison, Program, Side, Unit};
use super::ours;
use course::process::{Group, How, Printed};
use xtask::root;

/// The longest measurement takes a minute or two; a process that has not ended by then hangs. Who ends a whole comparison
/// before that names a shorter time (`--patience`): then it is known who hangs.
pub(super) const PATIENCE: Duration = Duration::from_secs(240);

/// What a process prints as its last line: the numbers of each thing that it measured, by name.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Answer {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) seconds: BTreeMap<String, Vec<f64>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) bytes: BTreeMap<String, Vec<f64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Programs {
    /// This tool, or another build of it.
    pub(super) ours: PathBuf,
    pub(super) python: PathBuf,
    pub(super) scripts: PathBuf,
    pub(super) patience: Duration,
}

/// What one process measured: the median of each series, in the comparison's order.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) medians: Vec<f64>,
    pub(super) note: Option<String>,
}

impl Programs {
    /// Lets one side do its work, with nothing else going on.
    pub(super) fn measure(&self, comparison: &Comparison, side: &Side) -> Result<Measured, String> {
        let mut command = match &side.program {
            Program::Ours(work) => {
                let mut command = Command::new(&self.ours);
                command.arg(ours::COMMAND).arg(name_of(work));
                command
            }
            Program::Script(script) => self.script(script),
        };
        // The libraries below PyTorch read these before PyTorch can say how many threads it wants.
        let threads = comparison.threads.each.to_string();
        command.env("OMP_NUM_THREADS", &threads).env("MKL_NUM_THREADS", &threads);
        match comparison.may_round {
            true => command.env_remove("NVIDIA_TF32_OVERRIDE"),
            false => command.env("NVIDIA_TF32_OVERRIDE", "0"),
        };
        let answer = last_line(command.args(&side.arguments), self.patience)?;
        let answer: Answer = serde_json::from_str(&answer)
            .map_err(|error| format!("answered something else than was asked: {error}"))?;
        let lists = match comparison.unit {
            Unit::Seconds => answer.seconds,
            Unit::Bytes => answer.bytes,
        };
        let of_series = |name: &&str| match lists.get(*name) {
            Some(numbers) if numbers.iter().all(|number| *number > 0.0) && !numbers.is_empty() => {
                Ok(median(numbers.iter().copied()))
            }
            _ => Err(format!("did not measure \"{name}\"")),
        };
        let medians = comparison.series.iter().map(of_series).collect::<Result<_, _>>()?;
        Ok(Measured { medians, note: answer.note })
    }

    pub(super) fn script(&self, name: &str) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(self.scripts.join(name));
        // No run should change the reader's checkout. From elsewhere, Python may keep what it compiles: if nobody has
        // compiled PyTorch's own files, each start takes seconds more.
        if self.scripts.starts_with(root()) {
            command.env("PYTHONDONTWRITEBYTECODE", "1");
        }
        command
    }
}

/// Runs a program and returns the last line that it prints, or why there is none: the last line of what it
/// complains about.
pub(super) fn last_line(command: &mut Command, patience: Duration) -> Result<String, String> {
    let to_text = |error: std::io::Error| error.to_string();
    let (stdout, stderr) =
        (Printed::nothing().map_err(to_text)?, Printed::nothing().map_err(to_text)?);
    command.stdout(stdout.stream().map_err(to_text)?).stderr(stderr.stream().map_err(to_text)?);
    let group = Group::start(command).map_err(|error| {
        format!("{} cannot be started: {error}", command.get_program().display())
    })?;
    let status = match group.wait(patience).map_err(to_text)? {
        How::Alone(status) => status,
        How::OutOfTime => return Err(format!("did not end within {} s", patience.as_secs())),
        How::Interrupted => return Err("was interrupted".to_owned()),
        How::TooMuch(excess) => return Err(excess.to_string()),
    };
    match (status.success(), last_of(&stdout.text().map_err(to_text)?)) {
        (true, Some(answer)) => Ok(answer),
        (true, None) => Err("answered nothing".to_owned()),
        (false, _) => Err(complaint(status, last_of(&stderr.text().map_err(to_text)?))),
    }
}

fn complaint(status: ExitStatus, last_words: Option<String>) -> String {
    last_words.unwrap_or_else(|| format!("failed without a word ({status})"))
}

fn last_of(text: &str) -> Option<String> {
    text.lines().map(str::trim).rfind(|line| !line.is_empty()).map(str::to_owned)
}

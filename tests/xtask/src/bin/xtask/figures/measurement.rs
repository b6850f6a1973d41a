//! The lines that a stage's `--metrics` or `--trace` has written, with the machine and the command.

use std::time::Duration;

use anyhow::{Context as _, bail};
use drawing::svg::escaped;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use xtask::{Machine, root};

use crate::machine::{this_machine, today};
use crate::shell;

/// Three trainings take a few minutes.
const LIMIT: Duration = Duration::from_secs(1800);

/// Runs a command, and returns the text of the file that the command calls `FILE`.
pub(super) fn written_by(command: &str) -> anyhow::Result<String> {
    let written = tempfile::NamedTempFile::new()?;
    let here = command.replace("FILE", &written.path().to_string_lossy());
    let ended = shell::run(&here, &root(), LIMIT)?;
    if !ended.status.success() {
        bail!("`{command}` failed ({}):\n{}", ended.status, ended.output.trim_end());
    }
    Ok(std::fs::read_to_string(written.path())?)
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Recorded {
    command: String,
    date: Option<String>,
    machine: Machine,
    lines: Vec<Value>,
}

/// The lines of a file that `--metrics` wrote on this machine, as JSON.
pub(super) fn data(command: &str, metrics: &str) -> anyhow::Result<String> {
    here(command, lines_of(metrics)?)
}

/// Lines that were measured on this machine, as JSON.
pub(super) fn here(command: &str, lines: Vec<Value>) -> anyhow::Result<String> {
    let (command, date, machine) = (command.to_owned(), today(), this_machine());
    Ok(serde_json::to_string_pretty(&Recorded { command, date, machine, lines })?)
}

impl Recorded {
    /// Reads the data of a figure.
    pub(super) fn parse(texts: &[String]) -> anyhow::Result<Self> {
        Ok(serde_json::from_str(texts.first().context("no data")?)?)
    }

    pub(super) fn lines<T: DeserializeOwned>(&self, kind: &str) -> anyhow::Result<Vec<T>> {
        let lines = self.lines.iter().filter(|line| line["kind"] == kind);
        let lines: Vec<T> = lines.map(|line| T::deserialize(line)).collect::<Result<_, _>>()?;
        if lines.is_empty() {
            bail!("there are no lines of kind \"{kind}\"");
        }
        Ok(lines)
    }

    pub(super) fn caption(&self) -> String {
        caption(&self.machine, self.date.as_deref(), &self.command)
    }
}

/// `Measured on …, DATE, by COMMAND.`
pub(super) fn caption(machine: &Machine, date: Option<&str>, command: &str) -> String {
    let (machine, command) = (escaped(&machine.on(date)), escaped(command));
    format!("Measured on {machine}, by <code>{command}</code>.\n")
}

/// The lines of a file that `--metrics` wrote.
pub(super) fn lines_of(metrics: &str) -> anyhow::Result<Vec<Value>> {
    Ok(metrics.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

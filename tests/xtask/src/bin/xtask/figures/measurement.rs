//! The lines that a stage's `--metrics` or `--trace` has written, with the machine and the command.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use harness::report::file;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use xtask::html::escaped;
use xtask::{Machine, root};

use crate::machine::{this_machine, today};
use crate::shell;

/// Three trainings take a few minutes.
const LIMIT: Duration = Duration::from_secs(1800);

/// A measurement of a figure's data.
pub(super) struct Measurement {
    /// The command, which writes the file that it calls `FILE`.
    pub(super) command: &'static str,
    /// Makes the figure's data of the command and of the text of `FILE`, as JSON.
    pub(super) data: fn(&str, &str) -> anyhow::Result<String>,
}

impl Measurement {
    /// Runs the command, and stores the data.
    pub(super) fn make(&self, path: &Path) -> anyhow::Result<()> {
        let written = tempfile::NamedTempFile::new()?;
        let here = self.command.replace("FILE", &written.path().to_string_lossy());
        let ended = shell::run(&here, &root(), LIMIT)?;
        if !ended.status.success() {
            let output = ended.output.trim_end();
            bail!("`{}` failed ({}):\n{output}", self.command, ended.status);
        }
        let data = (self.data)(self.command, &std::fs::read_to_string(written.path())?)?;
        file::write(path, |file| writeln!(file, "{data}"))
            .with_context(|| format!("{}", path.display()))
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Recorded {
    command: String,
    date: Option<String>,
    machine: Machine,
    lines: Vec<Value>,
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
    let machine = escaped(&machine.short());
    let date = date.map_or_else(String::new, |date| format!(", {date}"));
    format!("Measured on {machine}{date}, by <code>{}</code>.\n", escaped(command))
}

/// The lines of a file that `--metrics` wrote.
pub(super) fn lines_of(metrics: &str) -> anyhow::Result<Vec<Value>> {
    Ok(metrics.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

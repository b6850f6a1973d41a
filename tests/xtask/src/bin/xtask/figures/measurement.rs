//! What a stage's `--metrics` or `--trace` wrote, with the machine on which it did.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use harness::report::file;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use xtask::Machine;
use xtask::html::escaped;
use xtask::root;

use crate::machine::{this_machine, today};
use crate::shell;

/// Three trainings take a few minutes.
const LIMIT: Duration = Duration::from_secs(1800);

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Recorded {
    command: String,
    date: Option<String>,
    machine: Machine,
    lines: Vec<Value>,
}

impl Recorded {
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(serde_json::from_str(text)?)
    }

    pub(super) fn here(command: &str, lines: Vec<Value>) -> Self {
        Self { command: command.to_owned(), date: today(), machine: this_machine(), lines }
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

/// Runs a command that writes a file where it says FILE, and stores what is made of that.
pub(super) fn make<T: Serialize>(
    path: &Path,
    command: &str,
    data: impl FnOnce(&str) -> anyhow::Result<T>,
) -> anyhow::Result<()> {
    let metrics = tempfile::NamedTempFile::new()?;
    let here = command.replace("FILE", &metrics.path().to_string_lossy());
    let ended = shell::run(&here, &root(), LIMIT)?;
    if !ended.status.success() {
        bail!("`{command}` failed ({}):\n{}", ended.status, ended.output.trim_end());
    }
    let data = data(&std::fs::read_to_string(metrics.path())?)?;
    file::write(path, |file| {
        serde_json::to_writer_pretty(&mut *file, &data)?;
        writeln!(file)
    })
    .with_context(|| format!("{}", path.display()))
}

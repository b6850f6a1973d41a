//! The file: all rows, and what has to be known about them.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use course_tests::Machine;
use serde::Serialize;
use serde_json::Value;

use super::report::Row;
use super::software::Software;
use crate::machine::{this_machine, today};

/// The whole file.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Document {
    command: String,
    date: Option<String>,
    /// How often all sides took turns.
    alternations: usize,
    /// Whether this only tried out that everything runs.
    quick: bool,
    machine: Machine,
    versions: Software,
    rows: Vec<Row>,
}

impl Document {
    /// An empty table, made here and today.
    pub(super) fn new(
        command: String,
        alternations: usize,
        quick: bool,
        peers: BTreeMap<String, Option<String>>,
    ) -> Self {
        Self {
            command,
            date: today(),
            alternations,
            quick,
            machine: this_machine(),
            versions: Software::with(peers),
            rows: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, rows: Vec<Row>) {
        self.rows.extend(rows);
    }

    /// The stored table with this one's rows in place of its rows of the same topics.
    ///
    /// # Errors
    ///
    /// When the two were not measured in the same way, on the same machine, with the same versions.
    pub(super) fn put_into(&self, stored: &str) -> anyhow::Result<Value> {
        let mut stored: Value = serde_json::from_str(stored).context("the stored table")?;
        let new = serde_json::to_value(self)?;
        for what in ["machine", "versions", "alternations", "quick"] {
            if stored[what] != new[what] {
                bail!("the stored table has another entry \"{what}\": measure all of it");
            }
        }
        let measured = |row: &Value| {
            self.rows
                .iter()
                .any(|own| serde_json::to_value(own.topic).is_ok_and(|t| t == row["topic"]))
        };
        let mut rows: Vec<Value> = stored["rows"].as_array().cloned().unwrap_or_default();
        let place = rows.iter().position(measured).unwrap_or(rows.len());
        rows.retain(|row| !measured(row));
        let place = place.min(rows.len());
        rows.splice(place..place, new["rows"].as_array().cloned().unwrap_or_default());
        stored["rows"] = rows.into();
        stored["date"] = new["date"].clone();
        Ok(stored)
    }

    /// Those that failed, each once.
    pub(super) fn failures(&self) -> Vec<&str> {
        let mut failed: Vec<&str> = self.rows.iter().flat_map(Row::failures).collect();
        failed.sort_unstable();
        failed.dedup();
        failed
    }
}

//! The file: all rows, and what has to be known about them.

use std::collections::BTreeMap;

use course_tests::Machine;
use serde::Serialize;

use super::machine::Software;
use super::report::Row;
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

    /// Those that failed, each once.
    pub(super) fn failures(&self) -> Vec<&str> {
        let mut failed: Vec<&str> = self.rows.iter().flat_map(Row::failures).collect();
        failed.sort_unstable();
        failed.dedup();
        failed
    }
}

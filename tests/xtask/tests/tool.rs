//! The tests of the authors' tool, the book, the figures, releases, and the dependencies of packages.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

mod book;
mod dependencies;
mod exercises;
mod interrupts;
mod peers;
mod release;
mod scaling;
mod schedules;
#[cfg(unix)]
#[path = "../../course/tests/stand_in.rs"]
mod stand_in;
mod steps;

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use predicates::prelude::PredicateBooleanExt as _;
use predicates::str::{contains, ends_with, starts_with};
use serde_json::Value;
use tempfile::TempDir;
use xtask::book::Book;
use xtask::root;

fn tool(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(words);
    command
}

//! The tool of those who write the course, the book, its figures, the releases, and which package may use which, in one
//! program.

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
use std::time::{Duration, Instant};

use assert_cmd::Command;
use predicates::prelude::PredicateBooleanExt as _;
use predicates::str::{contains, diff, ends_with, starts_with};
use serde_json::{Value, json};
#[cfg(unix)]
use stand_in::{stand_in, wait_until};
use tempfile::TempDir;
use xtask::book::Book;
use xtask::root;
use xtask::stored::{check_current, check_fits_into_a_page, in_the_book};

fn tool(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(words);
    command
}

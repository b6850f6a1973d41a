//! The course tool, the book, its figures, the releases, and which package may use which, in one program.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

mod book;
mod book_rules;
mod dependencies;
mod divergence;
mod doctor;
mod exercises;
mod gpu_run;
mod interrupts;
mod peers;
mod release;
mod scaling;
mod schedules;
mod steps;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use assert_cmd::Command;
use course_tests::book::{Book, commands};
use course_tests::stand_in::{stand_in, wait_until};
use course_tests::stored::{check_current, check_fits_into_a_page, in_the_book};
use predicates::prelude::PredicateBooleanExt as _;
use predicates::str::{contains, diff, ends_with, starts_with};
use serde_json::{Value, json};
use tempfile::TempDir;

fn course(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_course"));
    command.args(words);
    command
}

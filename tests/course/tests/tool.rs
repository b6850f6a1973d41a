//! The learner's tool, in one program.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

mod divergence;
mod doctor;
mod exercises {
    mod asking;
    mod fixture;
    mod mistakes;
    mod reader;
    mod runaway;
    mod running;
    mod settings;
    mod watching;
}
#[path = "../../src/signals.rs"]
mod signals;
mod stand_in;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use assert_cmd::Command;
use predicates::function::function;
use predicates::prelude::{Predicate, PredicateBooleanExt as _};
use predicates::str::{contains, diff, ends_with, starts_with};
use stand_in::{has_ended, stand_in};
use tempfile::TempDir;

/// A text with all these parts.
fn all<const N: usize>(parts: [&'static str; N]) -> impl Predicate<str> {
    function(move |text: &str| parts.iter().all(|part| text.contains(part)))
}

fn tool(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_course"));
    command.args(words);
    command
}

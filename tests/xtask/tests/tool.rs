//! The tests of the authors' tool, the book, the figures, releases, and the dependencies of packages.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

mod book;
mod dependencies;
mod exercises;
mod interactive;
mod peers;
mod release;
#[path = "../../course/tests/stand_in.rs"]
mod stand_in;

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

#[test]
fn a_command_for_the_tool_itself_is_not_listed() {
    let told = starts_with("error: a command is missing, one of: verify, peers, book, outputs, ")
        .and(ends_with("sharded, release-notes (`cargo xtask --help` says what they do)\n"));
    tool(&[]).assert().code(2).stdout("").stderr(told);
    tool(&["--help"]).assert().success().stdout(contains("peers-ours").not());
}

#[test]
fn a_signal_ends_what_the_tool_runs() {
    for (signal, code, flags) in [
        ("INT", 130, &["walk", "--page", "ch02-all-reduce"][..]),
        ("TERM", 143, &["verify"]),
        ("INT", 130, &["outputs", "--check", "ch02-default"]),
    ] {
        let mut tool = course_tests::signals::with_default_sigint(env!("CARGO_BIN_EXE_xtask"));
        let output = stand_in::signalled(tool.args(flags), signal);
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {output:?}");
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(!told.contains('✗') && output.stderr.is_empty(), "{flags:?}: {output:?}");
    }
}

//! A program, as the tests of its command line start it.

use assert_cmd::Command;
use predicates::prelude::{PredicateBooleanExt as _, predicate};
use predicates::str::contains;

/// A program without a network, which nobody's cache reaches.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("COURSE_MIRRORS", "http://127.0.0.1:9");
    command.env("COURSE_DATA_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/no-data"));
    command
}

/// Checks that a program refuses its flags: with one line on standard error, and nothing anywhere else.
pub fn refused(mut command: Command, says: &str) {
    let one_line =
        predicate::function(|text: &str| text.starts_with("error: ") && text.lines().count() == 1);
    command.assert().code(2).stdout("").stderr(contains(says).and(one_line));
}

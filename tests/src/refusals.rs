//! Flags that a program refuses.

use assert_cmd::Command;

use super::program::refused;

/// Checks each line of a table: flags, ` | `, and a part of the message.
pub fn check(table: &str, program: impl Fn(&[&str]) -> Command) {
    for row in table.trim().lines() {
        let (flags, says) = row.split_once(" | ").expect("flags and a message");
        refused(program(&flags.split_whitespace().collect::<Vec<_>>()), says);
    }
}

//! Reasons for changes that may survive: written by a person, in a file beside the answers.
//!
//! A line names the exercise, the solution's line, the change, and the reason:
//!
//! ```text
//! ch02_ring | let next = (rank + 1) % ranks; | `+` → `-` | a ring may turn either way
//! ```
//!
//! Lines that begin with `#`, and empty ones, are for readers.

use std::fs;
use std::io;

use anyhow::{Context as _, bail};

use super::mutate::Mutant;
use course::exercises::tree::Tree;

pub(super) const FILE: &str = "survivors.txt";

#[derive(Debug)]
pub(super) struct Reasons {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    exercise: String,
    /// The solution's line and the change, as they are compared.
    change: String,
    reason: String,
    line: usize,
    used: bool,
}

impl Reasons {
    /// Reads the reasons; where there is no file, there are none.
    pub(super) fn load(tree: &Tree) -> anyhow::Result<Self> {
        let path = tree.package.with_file_name("answers").join(FILE);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.with_context(|| format!("{}", path.display()))?,
        };
        let entries = parse(&text).with_context(|| format!("{}", path.display()))?;
        Ok(Self { entries })
    }

    pub(super) fn of(&mut self, exercise: &str, mutant: &Mutant) -> Option<&str> {
        let change = change(mutant);
        let fits = |entry: &&mut Entry| entry.exercise == exercise && entry.change == change;
        let entry = self.entries.iter_mut().find(fits)?;
        entry.used = true;
        Some(&entry.reason)
    }

    pub(super) fn unused(&self, exercise: &str) -> Vec<String> {
        let of_exercise = self.entries.iter().filter(|entry| entry.exercise == exercise);
        let unused = of_exercise.filter(|entry| !entry.used);
        unused
            .map(|entry| {
                format!("{FILE}:{}: no such change survives: {}", entry.line, entry.change)
            })
            .collect()
    }
}

pub(super) fn entry(exercise: &str, mutant: &Mutant) -> String {
    format!("{exercise} | {} | REASON", change(mutant))
}

fn change(mutant: &Mutant) -> String {
    format!("{} | {}", mutant.source.trim(), mutant.what)
}

fn parse(text: &str) -> anyhow::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        if text.trim().is_empty() || text.starts_with('#') {
            continue;
        }
        // The solution's own line may have a ` | ` or two.
        let parts = text.split_once(" | ").and_then(|(exercise, rest)| {
            let (change, reason) = rest.rsplit_once(" | ")?;
            Some((exercise.trim(), change.trim(), reason.trim()))
        });
        let Some((exercise, change, reason)) = parts else {
            bail!("line {line} is not `EXERCISE | SOLUTION'S LINE | CHANGE | REASON`")
        };
        if reason.is_empty() || reason == "REASON" {
            bail!("line {line} has no reason");
        }
        let [exercise, change, reason] = [exercise, change, reason].map(str::to_owned);
        entries.push(Entry { exercise, change, reason, line, used: false });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant() -> Mutant {
        let (source, what) = ("    let c = a | b;".to_owned(), "`|` → `&`".to_owned());
        Mutant { line: 7, source, what, text: String::new() }
    }

    #[test]
    fn a_written_reason_is_found_and_an_idle_one_told() {
        let text = format!("# why\n\n{}\n", entry("ch01_a", &mutant()).replace("REASON", "equal"));
        let mut reasons = Reasons { entries: parse(&text).unwrap() };
        assert_eq!(reasons.of("ch01_b", &mutant()), None);
        let idle = "survivors.txt:3: no such change survives: let c = a | b; | `|` → `&`";
        assert_eq!(reasons.unused("ch01_a"), [idle]);
        assert_eq!(reasons.of("ch01_a", &mutant()), Some("equal"));
        assert!(reasons.unused("ch01_a").is_empty());
    }

    #[test]
    fn a_line_without_a_reason_is_refused() {
        for text in ["ch01_a | line", &entry("ch01_a", &mutant()), "ch01_a | a | b | "] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}

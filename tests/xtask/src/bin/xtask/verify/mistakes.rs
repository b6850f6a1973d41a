//! The known answers to an exercise beside the solution. Each is in a file as changes to the solution: mistakes in `wrong.diff`,
//! and right answers of another kind, if there are any, in `right.diff`.
//!
//! ```text
//! # last_layer_lost
//! A table without a place for "all layers": the last one is forgotten.
//! expect: no stage has layer 5
//! @@
//! -    let layers = costs.len();
//! +    let layers = costs.len() - 1;
//! ```
//!
//! `# ` begins an answer. `expect: ` gives a part of the message that the author of a mistake should see. Each `@@` begins a change in
//! the form of a unified diff: the lines with a space or `-` stand in the solution exactly once, and the lines with a
//! space or `+` take their place. A change that has only lines with `+` is the whole answer, but for the solution's last line,
//! which makes a program of it.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use course::exercises::tree::Exercise;

#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) name: String,
    /// A part of the message that the check has to print; empty if the file has none.
    pub(super) expect: String,
    pub(super) text: String,
}

/// The answers of a file, in its order. Without the file there are none.
pub(super) fn of(exercise: &Exercise, file: &str) -> anyhow::Result<Vec<Known>> {
    let read = |path: &Path| fs::read_to_string(path).with_context(|| path.display().to_string());
    let changes = exercise.answer(file);
    if !changes.exists() {
        return Ok(Vec::new());
    }
    let known = parse(&read(&changes)?, &read(&exercise.answer("solution.rs"))?);
    known.with_context(|| file.to_owned())
}

fn parse(changes: &str, solution: &str) -> anyhow::Result<Vec<Known>> {
    let known = |text: &str| {
        let parts: Vec<&str> = text.split("\n@@\n").collect();
        let about = parts[0];
        let name = about.lines().next().unwrap_or_default().to_owned();
        let expect = about.lines().find_map(|line| line.strip_prefix("expect:"));
        let expect = expect.unwrap_or_default().trim().to_owned();
        // From the last change to the first: no change sees the new lines of a change above.
        let changed =
            parts[1..].iter().rev().try_fold(solution.to_owned(), |text, it| change(&text, it));
        let text = changed.with_context(|| name.clone())?;
        Ok(Known { name, expect, text })
    };
    format!("\n{changes}").split("\n# ").skip(1).map(known).collect()
}

/// Returns the text with a change.
fn change(text: &str, change: &str) -> anyhow::Result<String> {
    let lines_with = |marks: [char; 2]| {
        let line = |line: &str| {
            let mark = line.chars().next().unwrap_or(' ');
            marks.contains(&mark).then(|| format!("{}\n", line.get(1..).unwrap_or_default()))
        };
        change.trim_end().lines().filter_map(line).collect::<String>()
    };
    let (old, new) = (lines_with([' ', '-']), lines_with([' ', '+']));
    if old.is_empty() {
        let end = text.find("exercises::check!").unwrap_or(text.len());
        return Ok(new + &text[end..]);
    }
    // The newline sees to it that a change begins at the beginning of a line.
    let (text, old) = (format!("\n{text}"), format!("\n{old}"));
    match text.matches(&old).count() {
        1 => Ok(text.replace(&old, &format!("\n{new}"))[1..].to_owned()),
        times => bail!("these lines stand {times} times in solution.rs, and not once:{old}"),
    }
}

#[test]
fn changes_are_applied_and_expectations_read() {
    let solution = "a\nb\n\nc\nb\n";
    let text = "# one\nAbout it.\nexpect: law: a \n@@\n-a\n+A\n@@\n c\n-b\n+B\n+\n\n# all\n@@\n+x\n+\n+y\n\n";
    let mistakes = parse(text, solution).unwrap();
    let told = mistakes.iter().map(|one| [&*one.name, &*one.expect, &*one.text]);
    let expected = [["one", "law: a", "A\nb\n\nc\nB\n\n"], ["all", "", "x\n\ny\n"]];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    for (line, times) in [("b", 2), ("d", 0)] {
        let refused = parse(&format!("# one\n@@\n-{line}\n+e\n"), solution).unwrap_err();
        let expected = format!("one: these lines stand {times} times");
        assert!(format!("{refused:#}").starts_with(&expected), "{refused:#}");
    }
}

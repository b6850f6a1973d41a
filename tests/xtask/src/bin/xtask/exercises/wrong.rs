//! The known mistakes in answers to an exercise. The file `wrong.diff` has each as changes to the solution.
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
//! `# ` begins a mistake. `expect: ` gives a part of the message that its author should see. Each `@@` begins a change in
//! the form of a unified diff: the lines with a space or `-` stand in the solution exactly once, and the lines with a
//! space or `+` take their place. A change that has only lines with `+` is the whole answer, but for the solution's last line,
//! which makes a program of it.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, bail};

use course::exercises::tree::{Exercise, Tree};

#[derive(Clone, Debug)]
pub(super) struct Mistake {
    pub(super) name: String,
    /// A part of the message that the check has to print.
    pub(super) expect: Option<String>,
    pub(super) text: String,
}

/// The mistakes of an exercise, in the order of their file.
pub(super) fn mistakes(tree: &Tree, exercise: &Exercise) -> anyhow::Result<Vec<Mistake>> {
    let read =
        |path: &Path| fs::read_to_string(path).with_context(|| tree.relative(path).to_string());
    let (changes, solution) = (read(&exercise.wrong())?, read(&exercise.solution())?);
    parse(&changes, &solution)
}

fn parse(changes: &str, solution: &str) -> anyhow::Result<Vec<Mistake>> {
    let answer = |text: &str| {
        let mut parts = text.split("\n@@\n");
        let about = parts.next().unwrap_or_default();
        let name = about.lines().next().unwrap_or_default().to_owned();
        let expect = about.lines().find_map(|line| line.strip_prefix("expect: "));
        let expect = expect.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let changes = parts.map(|change| place(change.trim_end(), solution));
        let changes = changes.collect::<anyhow::Result<Vec<_>>>();
        let mut changes = changes.with_context(|| format!("wrong.diff: {name}"))?;
        changes.sort_by_key(|(place, _)| Reverse(place.start));
        let mut text = solution.to_owned();
        for (place, new) in changes {
            text.replace_range(place, &new);
        }
        Ok(Mistake { name, expect, text })
    };
    format!("\n{changes}").split("\n# ").skip(1).map(answer).collect()
}

/// Where a change applies, and the lines that go there.
fn place(change: &str, solution: &str) -> anyhow::Result<(Range<usize>, String)> {
    let lines_with = |marks: [char; 2]| {
        let line = |line: &str| {
            let mark = line.chars().next().unwrap_or(' ');
            marks.contains(&mark).then(|| format!("{}\n", line.get(1..).unwrap_or_default()))
        };
        change.lines().filter_map(line).collect::<String>()
    };
    let (old, new) = (lines_with([' ', '-']), lines_with([' ', '+']));
    if old.is_empty() {
        let end = solution.find("exercises::check!").unwrap_or(solution.len());
        return Ok((0..end, new));
    }
    // The newline sees to it that a change begins at the beginning of a line.
    let text = format!("\n{solution}");
    let places: Vec<usize> = text.match_indices(&format!("\n{old}")).map(|(at, _)| at).collect();
    let &[start] = &places[..] else {
        bail!("these lines stand {} times in solution.rs, and not once:\n{old}", places.len())
    };
    Ok((start..start + old.len(), new))
}

/// Writes answers as `FOLDER/EXERCISE/NAME.rs`, and removes other files of `FOLDER/EXERCISE`. A file that would be the same
/// is left alone, because cargo would compile it again.
pub(super) fn write<'a>(
    folder: &Path,
    exercise: &Exercise,
    answers: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> anyhow::Result<()> {
    let folder = folder.join(&exercise.name);
    let write = || {
        fs::create_dir_all(&folder)?;
        let mut written = BTreeSet::new();
        for (name, text) in answers {
            let path = folder.join(format!("{name}.rs"));
            if fs::read_to_string(&path).ok().as_deref() != Some(text) {
                fs::write(&path, text)?;
            }
            written.insert(path);
        }
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if !written.contains(&path) {
                fs::remove_file(&path)?;
            }
        }
        std::io::Result::Ok(())
    };
    write().with_context(|| folder.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOLUTION: &str = "a\nb\n\nc\nb\n";

    #[test]
    fn changes_are_applied_and_expectations_read() {
        let text = "# one\nAbout it.\nexpect: law: a \n@@\n-a\n+A\n@@\n c\n-b\n+B\n+\n\n# all\n@@\n+x\n+\n+y\n\n";
        let answers = parse(text, SOLUTION).unwrap();
        let told: Vec<_> = answers.iter().map(|one| (&*one.name, one.expect.as_deref())).collect();
        assert_eq!(told, [("one", Some("law: a")), ("all", None)]);
        assert_eq!(answers[0].text, "A\nb\n\nc\nB\n\n");
        assert_eq!(answers[1].text, "x\n\ny\n");
    }

    #[test]
    fn a_change_that_fits_nowhere_or_twice_is_refused_by_name() {
        for (line, times) in [("b", 2), ("d", 0)] {
            let refused = parse(&format!("# one\n@@\n-{line}\n+e\n"), SOLUTION).unwrap_err();
            let told = format!("{refused:#}");
            let expected = format!("wrong.diff: one: these lines stand {times} times");
            assert!(told.starts_with(&expected), "{told}");
        }
    }
}

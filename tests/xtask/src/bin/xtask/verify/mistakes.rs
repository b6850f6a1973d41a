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
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, bail};
use course::exercises::tree::Exercise;

#[derive(Clone, Debug)]
pub(super) struct Mistake {
    pub(super) name: String,
    /// A part of the message that the check has to print; empty if the file has none.
    pub(super) expect: String,
    pub(super) text: String,
}

/// The mistakes of an exercise, in the order of their file.
pub(super) fn of(exercise: &Exercise) -> anyhow::Result<Vec<Mistake>> {
    let read = |path: &Path| fs::read_to_string(path).with_context(|| path.display().to_string());
    parse(&read(&exercise.wrong())?, &read(&exercise.solution())?)
}

fn parse(changes: &str, solution: &str) -> anyhow::Result<Vec<Mistake>> {
    let mistake = |text: &str| {
        let mut parts = text.split("\n@@\n");
        let about = parts.next().unwrap_or_default();
        let name = about.lines().next().unwrap_or_default().to_owned();
        let expect =
            about.lines().find_map(|line| line.strip_prefix("expect:")).unwrap_or_default();
        let places = parts.map(|change| place(change.trim_end(), solution));
        let places = places.collect::<anyhow::Result<Vec<_>>>();
        let mut places = places.with_context(|| format!("wrong.diff: {name}"))?;
        places.sort_by_key(|(place, _)| Reverse(place.start));
        let mut text = solution.to_owned();
        for (place, new) in places {
            text.replace_range(place, &new);
        }
        Ok(Mistake { name, expect: expect.trim().to_owned(), text })
    };
    format!("\n{changes}").split("\n# ").skip(1).map(mistake).collect()
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
        let expected = format!("wrong.diff: one: these lines stand {times} times");
        assert!(format!("{refused:#}").starts_with(&expected), "{refused:#}");
    }
}

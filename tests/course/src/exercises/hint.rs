//! `cargo course hint`: one step at a time, from a nudge to nearly the answer.

use std::fs;

use anyhow::Context as _;
use harness::report::{self, line, terminal_columns};

use super::progress::Progress;
use super::tree::{Exercise, Tree};

/// The longest line of a hint.
const WIDEST: usize = 100;

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Step {
    pub title: String,
    pub text: String,
}

/// The steps of a hint. Each begins with a line `## TITLE`.
pub fn steps(exercise: &Exercise) -> anyhow::Result<Vec<Step>> {
    let path = exercise.answer("hint.md");
    let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    Ok(parse(&text))
}

fn parse(text: &str) -> Vec<Step> {
    let mut in_code = false;
    let lines: Vec<&str> = text.lines().collect();
    let steps = lines.chunk_by(|_, next| {
        in_code ^= next.starts_with("```");
        in_code || !next.starts_with("## ")
    });
    let step = |lines: &[&str]| {
        let title = lines.first()?.strip_prefix("## ")?.trim().to_owned();
        Some(Step { title, text: lines[1..].join("\n").trim().to_owned() })
    };
    // The heading of the file is no step.
    steps.filter_map(step).collect()
}

/// Prints the next step of a hint, or all steps.
pub fn run(tree: &Tree, exercise: &Exercise, all: bool) -> anyhow::Result<()> {
    let steps = steps(exercise)?;
    let shown = Progress::remember_hints(tree, exercise, |read| {
        // After the last step all steps are shown again.
        if all || read >= steps.len() { 0..steps.len() } else { read..read + 1 }
    })?;
    let (name, all, end) = (&exercise.name, steps.len(), shown.end);
    let columns = terminal_columns().min(WIDEST);
    for number in shown {
        let Step { title, text } = &steps[number];
        line(format_args!("{name} · hint {} of {all}: {title}", number + 1))?;
        line(format_args!("\n{}\n", wrapped(text, columns)))?;
    }
    Ok(line(match end == all {
        true => format!("That was the last step; our solution: cargo course solution {name}"),
        false => format!("The next step: cargo course hint {name} (all of them: --all)"),
    })?)
}

/// Wraps Markdown. Code and tables keep their lines. The lines of a list item are indented by the item's mark.
fn wrapped(text: &str, columns: usize) -> String {
    // Each paragraph and each item is one line, and may be wrapped.
    let mut lines: Vec<(String, bool)> = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        let is_code = in_code || is_fence;
        in_code ^= is_fence;
        match lines.last_mut() {
            _ if is_code || line.is_empty() || line.starts_with(['|', '#']) => {
                lines.push((line.to_owned(), false));
            }
            Some((paragraph, true)) if mark(line) == 0 => {
                *paragraph += &format!(" {}", line.trim())
            }
            _ => lines.push((line.to_owned(), !line.starts_with("    "))),
        }
    }
    let wrap = |(line, is_text): &(String, bool)| {
        let mark = if *is_text { mark(line) } else { return line.clone() };
        let lines = report::wrapped(line, columns.saturating_sub(mark));
        lines.replace('\n', &format!("\n{}", " ".repeat(mark)))
    };
    lines.iter().map(wrap).collect::<Vec<_>>().join("\n")
}

/// The width of a list item's mark: 2 for `- item`, 3 for `1. item`, 0 for other lines.
fn mark(line: &str) -> usize {
    let text = line.trim_start();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    match digits {
        0 if text.starts_with("- ") || text.starts_with("* ") => 2,
        1.. if text[digits..].starts_with(". ") => digits + 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_begin_with_their_heading_and_code_is_left_alone() {
        let text = "# Hint\n\nAbout.\n\n## Look\n\nAt it.\n\n## Write\n```sh\n## no step\n```\n";
        let step = |title: &str, text: &str| Step { title: title.into(), text: text.into() };
        assert_eq!(parse(text), [step("Look", "At it."), step("Write", "```sh\n## no step\n```")]);
        assert_eq!(parse("no steps\n"), []);
    }

    #[test]
    fn paragraphs_and_lists_are_wrapped_and_code_is_not() {
        let text = "One two three four\nfive.\n\n- an item of\n  a list\n- another\n\n```\nlet a = 1; let b = 2;\n```\n\n\
                    | a table | with a long row |\n\n    let indented = \"code\";";
        let expected = "One two three\nfour five.\n\n- an item of\n  a list\n- another\n\n```\nlet a = 1; let b = 2;\n```\n\n\
                        | a table | with a long row |\n\n    let indented = \"code\";";
        assert_eq!(wrapped(text, 15), expected);
        assert_eq!(wrapped("1. first thing\n   goes on", 12), "1. first\n   thing\n   goes on");
    }
}

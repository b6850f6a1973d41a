//! `cargo course hint`: one step at a time, from a nudge to nearly the answer.

use std::fs;

use anyhow::{Context as _, bail};
use harness::report::line;

use super::list;
use super::progress::Progress;
use super::tree::{Exercise, Tree};

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Step {
    pub title: String,
    pub text: String,
}

/// The steps of a hint: what follows each line that begins with `## `.
pub fn steps(exercise: &Exercise) -> anyhow::Result<Vec<Step>> {
    let path = exercise.hint();
    let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    Ok(parse(&text))
}

fn parse(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        in_code ^= line.starts_with("```");
        match (line.strip_prefix("## "), steps.last_mut()) {
            (Some(title), _) if !in_code => {
                steps.push(Step { title: title.trim().to_owned(), text: String::new() });
            }
            (_, Some(step)) => {
                step.text.push_str(line);
                step.text.push('\n');
            }
            // Before the first step: the file's own heading.
            (_, None) => {}
        }
    }
    for step in &mut steps {
        step.text = step.text.trim().to_owned();
    }
    steps
}

/// Shows the step after those that were read, or all of them, of the exercise that is named or the next.
pub fn run(tree: &Tree, name: Option<&str>, all: bool) -> anyhow::Result<()> {
    let Some(exercise) = Progress::load(tree)?.named_or_next(tree, name)? else {
        return list::all_solved(tree);
    };
    let steps = steps(exercise)?;
    if steps.is_empty() {
        bail!("{} has no step: no line that begins with `## `", exercise.hint().display());
    }
    let shown = Progress::remember_hints(tree, exercise, |read| {
        // Whoever has read them all and asks again wants to see them again.
        if all || read >= steps.len() { 0..steps.len() } else { read..read + 1 }
    })?;
    let shown_last = shown.end == steps.len();
    for number in shown.clone() {
        let Step { title, text } = &steps[number];
        line(format_args!("{} · hint {} of {}: {title}", exercise.name, number + 1, steps.len()))?;
        line(format_args!("\n{text}\n"))?;
    }
    let name = &exercise.name;
    if shown_last {
        line(format_args!("That was the last step; our solution: cargo course solution {name}"))?;
    } else {
        line(format_args!("The next step: cargo course hint {name} (all of them: --all)"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_begin_with_their_heading_and_code_is_left_alone() {
        let text = "# Hint\n\nAbout.\n\n## Look\n\nAt it.\n\n## Write\n```sh\n## no step\n```\n";
        let step = |title: &str, text: &str| Step { title: title.into(), text: text.into() };
        let steps = parse(text);
        assert_eq!(steps, [step("Look", "At it."), step("Write", "```sh\n## no step\n```")]);
        assert_eq!(parse("no steps\n"), []);
    }
}

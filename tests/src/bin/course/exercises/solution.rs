//! `cargo course solution`: ours, for whoever has solved it or wants to see it.

use std::fs;

use anyhow::Context as _;
use harness::report::line;

use super::confirm::confirm;
use super::progress::{Progress, Standing};
use super::tree::{Exercise, Tree};

/// Prints our solution; asks first, unless the exercise is solved.
pub(super) fn run(tree: &Tree, exercise: &Exercise, yes: bool) -> anyhow::Result<()> {
    let solved = Progress::load(tree)?.of(exercise) == Standing::Solved;
    let question = format!("{} is not solved yet. Show our solution?", exercise.name);
    if !solved && !yes && !confirm(&question)? {
        line(format_args!("A hint may be enough: cargo course hint {}", exercise.name))?;
        return Ok(());
    }
    let path = exercise.solution();
    let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    line(text.trim_end())?;
    Ok(())
}

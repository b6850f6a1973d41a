//! `cargo course solution`: the course's solution. Asks first while the learner's answer does not pass.

use std::fs;
use std::io::{BufRead as _, IsTerminal as _, Write as _, stderr, stdin};

use anyhow::Context as _;
use harness::cli::UsageError;
use harness::report::line;

use super::progress::{Progress, Standing};
use super::tree::{Exercise, Tree};

pub fn run(tree: &Tree, exercise: &Exercise, yes: bool) -> anyhow::Result<()> {
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

/// Asks a question. Enter means no. Fails without a terminal.
pub fn confirm(question: &str) -> anyhow::Result<bool> {
    if !stdin().is_terminal() {
        let refusal = format!("nobody can be asked here: {question} If so, add --yes");
        return Err(UsageError::new(refusal).into());
    }
    let mut terminal = stderr();
    write!(terminal, "{question} [y/N] ")?;
    terminal.flush()?;
    let mut answer = String::new();
    stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

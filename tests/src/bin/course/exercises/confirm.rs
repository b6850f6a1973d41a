//! Asking before something that cannot be unseen or undone.

use std::io::{BufRead as _, IsTerminal as _, Write as _, stderr, stdin};

use harness::cli::UsageError;

/// Asks a question that Enter answers with no.
pub(super) fn confirm(question: &str) -> anyhow::Result<bool> {
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

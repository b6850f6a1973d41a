//! `cargo course watch`: a check with every save, and on to the next exercise once one passes.
//!
//! The file is read again and again instead of asking the system for notices of changes. It is one small
//! file; reading works on every file system, network shares and shared folders of virtual machines among
//! them, and whichever way an editor replaces it; and a save that changes nothing starts nothing.

use std::time::Duration;

use console::Term;
use harness::interrupt;
use harness::report::line;

use super::check::{self, Outcome};
use super::list;
use super::progress::Progress;
use super::tree::{Exercise, Tree};

/// How often the file is read. Two readings have to agree, so that no half-written file is compiled.
const LOOK: Duration = Duration::from_millis(100);

/// Checks an exercise, the one that is named or the next, whenever it is saved, until all are solved or
/// somebody presses Ctrl-C.
pub fn run(tree: &Tree, name: Option<&str>, limit: Duration) -> anyhow::Result<()> {
    interrupt::watch()?;
    let terminal = Term::stdout();
    let mut current = Progress::load(tree)?.named_or_next(tree, name)?;
    let mut saved = true;
    while let Some(exercise) = current {
        let text = exercise.text()?;
        // After a pass its message stays, with the next exercise below it.
        if saved && terminal.is_term() {
            terminal.clear_screen()?;
        }
        line(format_args!("{}\n", exercise.heading()))?;
        let outcome = check::once(tree, exercise, limit)?;
        check::tell(tree, exercise, &outcome)?;
        match outcome {
            Outcome::Interrupted => break,
            Outcome::Passed(_) => {
                current = Progress::load(tree)?.next(tree);
                // Saved again while it was checked: the newer text is what counts.
                saved = current.is_some_and(|next| next.name == exercise.name);
                line("")?;
            }
            _ => {
                line("\nSave it, and it is checked again. Ctrl-C ends this")?;
                saved = changed(exercise, &text);
                if !saved {
                    break;
                }
            }
        }
    }
    list::what_is_next(tree)
}

/// Waits until the file has another text than this and is not being written; false after Ctrl-C.
fn changed(exercise: &Exercise, text: &str) -> bool {
    let mut before = None;
    while !interrupt::requested() {
        // While an editor replaces it, it may not be there.
        let now = exercise.text().ok();
        if now.is_some() && now == before && now.as_deref() != Some(text) {
            return true;
        }
        before = now;
        std::thread::sleep(LOOK);
    }
    false
}

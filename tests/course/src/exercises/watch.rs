//! `cargo course watch`: a check with every save, and on to the next exercise once one passes.
//!
//! The file is read again and again instead of asking the system for notices of changes. It is one small
//! file; reading works on every file system, network shares and shared folders of virtual machines among
//! them, and whichever way an editor replaces it; and a save that changes nothing starts nothing.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use console::Term;
use harness::interrupt;
use harness::report::line;

use super::outcome::Outcome;
use super::progress::Progress;
use super::tree::{Exercise, Tree};
use super::{check, list, report};

/// How often the file is read. Two readings have to agree, so that no half-written file is compiled.
const LOOK: Duration = Duration::from_millis(100);

/// Checks an exercise, the one that is named or the next, whenever it is saved, until all are solved or
/// somebody presses Ctrl-C. A save ends a check that is running.
pub fn run(tree: &Tree, name: Option<&str>, limit: Duration, all: bool) -> anyhow::Result<()> {
    interrupt::watch()?;
    let terminal = Term::stdout();
    let mut current = Progress::load(tree)?.named_or_next(tree, name)?;
    let mut saved = true;
    while let Some(exercise) = current {
        let file = Watched::new(exercise)?;
        // After a pass its message stays, with the next exercise below it.
        if saved && terminal.is_term() {
            terminal.clear_screen()?;
        }
        line(format_args!("{}\n", exercise.heading()))?;
        let outcome = check::once(tree, exercise, limit, &|| !file.has_changed())?;
        report::show(tree, exercise, &outcome, all)?;
        match outcome {
            Outcome::Interrupted if interrupt::requested() => break,
            Outcome::Interrupted => {
                line("Saved: the check begins anew\n")?;
                saved = true;
            }
            Outcome::Passed(_) => {
                current = Progress::load(tree)?.next(tree);
                // Saved again while it was checked: the newer text is what counts.
                saved = current.is_some_and(|next| next.name == exercise.name);
                line("")?;
            }
            _ => {
                line(format_args!("\n{}", outcome.verdict()))?;
                line("Save it, and it is checked again. Ctrl-C ends this")?;
                while !interrupt::requested() && !file.has_changed() {
                    std::thread::sleep(LOOK);
                }
                saved = !interrupt::requested();
                if !saved {
                    break;
                }
            }
        }
    }
    list::what_is_next(tree)
}

/// The file of an exercise, compared with the text that it had.
struct Watched<'a> {
    exercise: &'a Exercise,
    text: String,
    last: RefCell<Reading>,
}

struct Reading {
    at: Instant,
    text: Option<String>,
}

impl<'a> Watched<'a> {
    fn new(exercise: &'a Exercise) -> anyhow::Result<Self> {
        let text = exercise.text()?;
        let last = RefCell::new(Reading { at: Instant::now(), text: Some(text.clone()) });
        Ok(Self { exercise, text, last })
    }

    /// Whether the file has another text and is not being written. Reads it now and then, however often it is called.
    fn has_changed(&self) -> bool {
        let mut last = self.last.borrow_mut();
        if last.at.elapsed() < LOOK {
            return false;
        }
        // While an editor replaces the file, it may not be there.
        let now = self.exercise.text().ok();
        let is_settled = now.is_some() && now == last.text;
        let has_changed = is_settled && now.as_ref() != Some(&self.text);
        *last = Reading { at: Instant::now(), text: now };
        has_changed
    }
}

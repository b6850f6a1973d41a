//! `cargo course watch`: checks an exercise at every save, and goes on to the next exercise after a pass.
//!
//! The tool reads the file ten times a second. Notices of the system would miss changes on network shares and in shared folders
//! of virtual machines. A save without a change starts no check.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use console::{Term, is_dumb};
use harness::interrupt;
use harness::report::line;

use super::program::Outcome;
use super::progress::Progress;
use super::tree::{Exercise, Tree};
use super::{check, list, report};

/// The time between two readings. Two readings have to agree: no half-written file is compiled.
const LOOK: Duration = Duration::from_millis(100);

/// Checks an exercise at every save, until all exercises are solved or Ctrl-C is pressed. A save ends a running check.
pub fn run(tree: &Tree, exercise: &Exercise, limit: Duration, all: bool) -> anyhow::Result<()> {
    interrupt::watch()?;
    let terminal = Term::stdout();
    let mut current = Some(exercise);
    let mut saved = true;
    while let Some(exercise) = current {
        let file = Watched::new(exercise)?;
        // The message of a pass stays on the screen, above the next exercise. A dumb terminal would print the signs that clear it.
        if saved && terminal.is_term() && !is_dumb() {
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
                // A text that was saved during the check is checked next.
                saved = current.is_some_and(|next| next.name == exercise.name);
                line("")?;
            }
            _ => {
                line(format_args!("\n{}", outcome.verdict()))?;
                line("Save it, and it is checked again. Ctrl-C ends this")?;
                while !file.has_changed() {
                    if interrupt::requested() {
                        return list::what_is_next(tree);
                    }
                    std::thread::sleep(LOOK);
                }
                saved = true;
            }
        }
    }
    list::what_is_next(tree)
}

/// The file of an exercise, and its text at the beginning of a check.
struct Watched<'a> {
    exercise: &'a Exercise,
    text: String,
    /// The time and the text of the last reading.
    last: RefCell<(Instant, Option<String>)>,
}

impl<'a> Watched<'a> {
    fn new(exercise: &'a Exercise) -> anyhow::Result<Self> {
        let text = exercise.text()?;
        let last = RefCell::new((Instant::now(), Some(text.clone())));
        Ok(Self { exercise, text, last })
    }

    /// Whether the file has another text and is complete. Reads the file at most ten times a second.
    fn has_changed(&self) -> bool {
        let mut last = self.last.borrow_mut();
        if last.0.elapsed() < LOOK {
            return false;
        }
        // An editor that replaces the file may have removed it.
        let now = self.exercise.text().ok();
        let is_settled = now.is_some() && now == last.1;
        let has_changed = is_settled && now.as_ref() != Some(&self.text);
        *last = (Instant::now(), now);
        has_changed
    }
}

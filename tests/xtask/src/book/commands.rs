//! The commands that pages print.

use super::outputs::{Recordings, needs_gpu};
use super::{Book, stem};

/// The words after `console`, for the reader who runs the commands: they take minutes, need a GPU or MPI, wait for a person, change
/// the reader's files, or fail on purpose.
pub const MARKS: [&str; 6] = ["long", "gpu", "mpi", "interactive", "edits", "fails"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub page: String,
    pub line: usize,
    pub text: String,
    pub marks: Vec<String>,
}

/// The commands of all pages in their order, and the commands of the outputs that the pages include.
pub fn all(book: &Book, recordings: &Recordings) -> Vec<Command> {
    let mut commands = Vec::new();
    for page in book.pages() {
        for block in &page.blocks {
            let Some(marks) = block.marks() else { continue };
            let (mut marks, mut content) = (marks.to_vec(), &*block.content);
            if let Some(include) = page.output(block) {
                // The first line of an output. The other lines may look like anything.
                content =
                    book.text(&include.file).and_then(|it| it.lines().next()).unwrap_or_default();
                let name = stem(&include.file);
                let recording = recordings.get(&name);
                for (mark, has) in [
                    ("long", recording.is_some_and(|recording| recording.is_long())),
                    ("fails", recording.is_some_and(|recording| recording.fails)),
                    ("gpu", needs_gpu(&name)),
                ] {
                    marks.extend(has.then(|| mark.to_owned()));
                }
            }
            let typed = content.lines().filter_map(|line| line.strip_prefix("$ "));
            commands.extend(typed.map(|text| Command {
                page: page.name.display().to_string(),
                line: block.line,
                text: text.to_owned(),
                marks: marks.clone(),
            }));
        }
    }
    commands
}

//! The commands that pages print.

use std::io;

use super::Book;
use super::directive::only_directive;
use super::outputs::{Recording, Recordings};

/// What can be written behind `console`, and what it means to whoever runs the commands:
/// they take minutes, need a GPU or MPI, wait for a person, change the reader's files, or fail on purpose.
pub const MARKS: [&str; 6] = ["long", "gpu", "mpi", "interactive", "edits", "fails"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub page: String,
    pub line: usize,
    pub text: String,
    pub marks: Vec<String>,
}

/// The commands of all pages, in the order in which they are read, with those of the outputs that they include.
pub fn all(book: &Book) -> io::Result<Vec<Command>> {
    let recordings = Recordings::load(book.root())?;
    let mut commands = Vec::new();
    for page in book.in_order() {
        for block in &page.blocks {
            let Some([language, marks @ ..]) = block.info.as_deref() else { continue };
            if language != "console" {
                continue;
            }
            let mut marks = marks.to_vec();
            let mut content = block.content.clone();
            let output = content.lines().next().and_then(only_directive);
            if let Some(include) = output
                && let Some(file) = book.resolve(page, &include.path)
            {
                // Of an output, its first line; what it prints may look like anything.
                let recorded = match std::fs::read_to_string(book.root().join(&file)) {
                    // The rule about includes tells that it is missing.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    text => text?,
                };
                content = recorded.lines().next().unwrap_or_default().to_owned();
                let name = super::stem(&file);
                let recording = recordings.get(&name);
                if recording.is_some_and(Recording::is_long) {
                    marks.push("long".to_owned());
                }
                if recording.is_some_and(|recording| recording.fails) {
                    marks.push("fails".to_owned());
                }
                if super::outputs::needs_gpu(&name) {
                    marks.push("gpu".to_owned());
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
    Ok(commands)
}

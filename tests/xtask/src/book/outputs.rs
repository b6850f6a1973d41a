//! Recorded outputs: `book/outputs/NAME.txt`, with the command in its first line, and the machine that each was recorded on.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use drawing::svg::escaped;
use itertools::Itertools as _;
use serde::{Deserialize, Serialize};

pub use super::page::OUTPUTS as FOLDER;
use super::page::{Block, Include, Page};
use super::{Book, Found, Wrong, files_below, stem};
use crate::Machine;

/// The recordings, and the lines about them that pages include.
pub const RECORDINGS: &str = "book/outputs/machine.json";
pub const RECORDED: &str = "book/outputs/recorded.html";

/// A check does not make outputs again that take longer.
const LONG: f64 = 20.0;

/// How an output came about.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Recording {
    pub machine: Machine,
    pub date: Option<String>,
    /// How long its command took.
    pub seconds: f64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fails: bool,
}

/// The recordings by the names of their outputs.
pub type Recordings = BTreeMap<String, Recording>;

impl Recording {
    /// Whether its command takes too long for every check.
    pub fn is_long(&self) -> bool {
        self.seconds > LONG
    }

    /// `Recorded on AMD EPYC, 2 cores, 2026-11-23, in 83 s.`
    fn caption(&self) -> String {
        let time = match self.seconds {
            ..1.0 => "less than 1 s".to_owned(),
            seconds => format!("{seconds:.0} s"),
        };
        format!("Recorded on {}, in {time}.", self.machine.on(self.date.as_deref()))
    }
}

/// Reads the recordings of a checkout.
pub fn recordings(root: &Path) -> io::Result<Recordings> {
    Ok(serde_json::from_slice(&std::fs::read(root.join(RECORDINGS))?)?)
}

/// The text of [`RECORDED`]: a paragraph for each output, between anchors of its name.
pub fn recorded_html(recordings: &Recordings) -> String {
    let paragraph = |(name, recording): (&String, &Recording)| {
        let caption = escaped(&recording.caption());
        format!(
            "<!-- ANCHOR: {name} -->\n<p class=\"recorded\">{caption}</p>\n<!-- ANCHOR_END: {name} -->\n"
        )
    };
    recordings.iter().map(paragraph).collect()
}

/// Whether an output is of a run on a GPU, by its name.
pub fn needs_gpu(name: &str) -> bool {
    name.starts_with("gpu-")
}

/// The names of all outputs, in order.
pub fn names(root: &Path) -> Vec<String> {
    files_below(&root.join(FOLDER), "txt").iter().map(|path| stem(path)).collect()
}

/// Outputs that no page shows, without a command, or without a recording.
pub(super) fn files(book: &Book, found: &mut Found) {
    let recordings = serde_json::from_str(book.text(RECORDINGS).unwrap_or_default());
    let recordings: Recordings = recordings.unwrap_or_default();
    if book.text(RECORDED) != Some(&recorded_html(&recordings)) {
        let what = format_args!("is not of {RECORDINGS}: `cargo xtask outputs NAME` writes both");
        found.at(RECORDED, 1, what);
    }
    for (file, text) in book.files(FOLDER, "txt") {
        let name = stem(file);
        if !book.includes(file) {
            found.at(file, 1, "no page shows this output: include it, or remove it");
        }
        if !text.starts_with("$ ") {
            found.at(file, 1, "write the command into the first line, as `$ COMMAND`");
        }
        if !recordings.contains_key(&name) || text.lines().nth(1).is_none() {
            found.at(file, 1, format_args!("not recorded yet: `cargo xtask outputs {name}`"));
        }
    }
    for name in recordings.keys() {
        if book.text(format!("{FOLDER}/{name}.txt")).is_none() {
            found.at(RECORDINGS, 1, format_args!("there is no output {name}.txt"));
        }
    }
}

/// Where a page begins to show an output, the line after the code block says where the output was recorded.
pub(super) fn recorded(_: &Book, page: &Page) -> Wrong {
    // A later block of the same output needs no such line.
    let shown = page.blocks.iter().filter_map(|block| Some((block, page.output(block)?)));
    let wrong = |(block, output): (&Block, &Include)| {
        let after = block.line + block.content.lines().count() + 2;
        let line = format!("{{{{#include ../outputs/recorded.html:{}}}}}", stem(&output.file));
        // The line is HTML, and so are all lines up to the next blank line.
        let mut lines = page.text.lines().skip(after - 1);
        let is_right =
            lines.next() == Some(&line) && lines.next().is_none_or(|it| it.trim().is_empty());
        (!is_right).then(|| (after, format!("write {line} here, and a blank line after it")))
    };
    shown.unique_by(|(_, output)| &output.file).filter_map(wrong).collect()
}

//! `--metrics FILE`: one JSON object a line, one line an epoch, and a summary at the end of each run.
//!
//! Every line is written as soon as it is known, so a run can be watched, and a run that is cut short
//! leaves whole lines only.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::summary::Summary;
use super::{file, passed_on};
use crate::train::EpochRecord;

/// A metrics file.
#[derive(Debug)]
pub struct Metrics {
    file: File,
    path: PathBuf,
}

#[derive(Serialize)]
struct Line<'a, T> {
    kind: &'a str,
    #[serde(flatten)]
    content: &'a T,
}

#[derive(Serialize)]
struct EpochLine<'a> {
    run: &'a str,
    #[serde(flatten)]
    record: &'a EpochRecord,
}

impl Metrics {
    /// Creates the file, or empties it; what passes on what it gets (a pipe, what we print to) is opened as it is.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = match passed_on::open(path)? {
            Some(file) => file,
            None => File::create(path)?,
        };
        Ok(Self { file, path: path.to_owned() })
    }

    pub(super) fn epoch(&mut self, run: &str, record: &EpochRecord) -> io::Result<()> {
        self.write("epoch", &EpochLine { run, record })
    }

    /// Writes the end of a run.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn summary(&mut self, summary: &Summary) -> io::Result<()> {
        self.write("summary", summary)
    }

    /// Writes one line: an object whose field `kind` says what it is, and the fields of `content`.
    ///
    /// # Errors
    ///
    /// When the file cannot be written: the message names it and its flag.
    pub fn write(&mut self, kind: &str, content: &impl Serialize) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(&Line { kind, content })?;
        bytes.push(b'\n');
        // One call, so that a line is there whole or not at all.
        let written = self.file.write_all(&bytes);
        written.map_err(|error| file::of_flag("--metrics", &self.path, &error))
    }
}

//! `--metrics FILE`: one JSON object a line, one line an epoch, and a summary at the end of each run.
//!
//! Every line is written as soon as it is known, so a run can be watched, and a run that is cut short
//! leaves whole lines only. (On a disk that is full, half a line may be left, which a run that goes on removes.)

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::summary::Summary;
use super::{file, passed_on};
use crate::records::EpochRecord;

/// A metrics file. It is made, or emptied, when the first epoch begins: a run that is refused before that leaves an older
/// file as it is.
#[derive(Debug)]
pub struct Metrics {
    file: Option<File>,
    path: PathBuf,
    goes_on: bool,
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
    /// A file for the lines of one call. What passes on what it gets (a pipe, what we print to) is opened at once, as it is.
    ///
    /// # Errors
    ///
    /// When what passes it on cannot be opened.
    pub fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { file: passed_on::open(path)?, path: path.to_owned(), goes_on: false })
    }

    /// Lines go behind those that are in the file already: of the run that is gone on with.
    pub(super) fn go_on(&mut self) {
        self.goes_on = true;
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
        let written = self.begin()?.write_all(&bytes);
        written.map_err(|error| file::of_flag("--metrics", &self.path, &error))
    }

    /// Makes or empties the file, if that has not been done; where a run goes on, what is there stays, as far as lines are
    /// whole.
    ///
    /// # Errors
    ///
    /// When the file cannot be written: the message names it and its flag.
    pub(super) fn begin(&mut self) -> io::Result<&mut File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => self.open().map_err(|error| file::of_flag("--metrics", &self.path, &error))?,
        };
        Ok(self.file.insert(file))
    }

    fn open(&self) -> io::Result<File> {
        // Whoever else writes there, a line goes to the end.
        let file = OpenOptions::new().append(true).create(true).open(&self.path)?;
        let kept = if self.goes_on { whole_lines(&fs::read(&self.path)?) } else { 0 };
        file.set_len(kept as u64)?;
        Ok(file)
    }
}

/// Bytes up to the end of the last line.
fn whole_lines(text: &[u8]) -> usize {
    text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_file_is_there_until_the_first_epoch_begins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let begun = || Metrics::new(&path).unwrap();
        let read = || fs::read_to_string(&path).unwrap();
        begun();
        assert!(!path.exists());
        let of = |number: u32| serde_json::json!({ "number": number });
        let (first, second) =
            ("{\"kind\":\"a\",\"number\":1}\n", "{\"kind\":\"a\",\"number\":2}\n");
        begun().write("a", &of(1)).unwrap();
        begun();
        assert_eq!(read(), first);
        let mut again = begun();
        again.write("a", &of(2)).unwrap();
        again.write("a", &of(1)).unwrap();
        assert_eq!(read(), [second, first].concat());
        let mut rest = begun();
        rest.go_on();
        rest.write("a", &of(2)).unwrap();
        assert_eq!(read(), [second, first, second].concat());
        // Cut by a full disk.
        fs::write(&path, [first, "{\"kind\":\"a"].concat()).unwrap();
        let mut rest = begun();
        rest.go_on();
        rest.write("a", &of(2)).unwrap();
        assert_eq!(read(), [first, second].concat());
        begun().begin().unwrap();
        assert_eq!(read(), "");
        let mut nowhere = begun();
        drop(folder);
        let told = nowhere.begin().unwrap_err().to_string();
        assert!(told.starts_with("--metrics ") && told.contains("metrics.jsonl: "), "{told}");
    }
}

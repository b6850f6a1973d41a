//! `--metrics FILE`: one JSON object per line, one line per epoch, and a summary at the end of each run.
//!
//! Each line is written at once, so a user can watch a run, and a run that is cut short leaves whole lines only.

use std::io::{self, Write as _};
use std::path::Path;

use serde::Serialize;

use super::file::LazyFile;
use crate::records::EpochRecord;

/// A metrics file, which the first epoch creates or empties: a run that is refused leaves an older file as it is.
#[derive(Debug)]
pub struct Metrics(LazyFile);

#[derive(Serialize)]
struct Line<'a, T> {
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'a str>,
    #[serde(flatten)]
    content: &'a T,
}

impl Metrics {
    /// Names the file. A special file and this process's own output are opened at once.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        LazyFile::new("--metrics", path).map(Self)
    }

    /// Appends to the whole lines of an older file: the run resumes an earlier one.
    pub(super) fn resume(&mut self) {
        self.0.resume();
    }

    pub(super) fn epoch(&mut self, run: &str, record: &EpochRecord) -> io::Result<()> {
        self.write_line(&Line { kind: "epoch", run: Some(run), content: record })
    }

    /// Writes one line: an object with the fields of `content` and a field `kind`. Fails when the file cannot be
    /// written. The message names the file and its flag.
    pub fn write(&mut self, kind: &str, content: &impl Serialize) -> io::Result<()> {
        self.write_line(&Line { kind, run: None, content })
    }

    fn write_line(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        // One call writes the whole line or nothing.
        self.0.write_all(&line)
    }

    /// Prints the file's path, if anything has been written.
    pub fn announce(&self) -> io::Result<()> {
        self.0.announce()
    }

    /// Creates or empties the file, unless that has been done. Fails like [`write`](Self::write).
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.0.write(&[]).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        rest.resume();
        rest.write("a", &of(2)).unwrap();
        assert_eq!(read(), [second, first, second].concat());
        // Cut by a full disk.
        fs::write(&path, [first, "{\"kind\":\"a"].concat()).unwrap();
        let mut rest = begun();
        rest.resume();
        rest.write("a", &of(2)).unwrap();
        assert_eq!(read(), [first, second].concat());
        begun().begin().unwrap();
        assert_eq!(read(), "");
        let mut nowhere = begun();
        drop(folder);
        let message = nowhere.begin().unwrap_err().to_string();
        assert!(
            message.starts_with("--metrics ") && message.contains("metrics.jsonl: "),
            "{message}"
        );
    }
}

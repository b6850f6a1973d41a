//! A file that is there once something is written to it.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::passed_on;

/// A file that is made, or emptied, when the first of it is written: a run that is refused before that leaves an older one as
/// it is.
#[derive(Debug)]
pub struct Late {
    file: Option<BufWriter<File>>,
    path: PathBuf,
}

impl Late {
    /// A file to come. What passes on what it gets (a pipe, what we print to) is opened at once, as it is.
    ///
    /// # Errors
    ///
    /// When what passes it on cannot be opened.
    pub fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { file: passed_on::open(path)?.map(BufWriter::new), path: path.to_owned() })
    }
}

impl Write for Late {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let file = match self.file.take() {
            Some(file) => file,
            None => BufWriter::new(File::create(&self.path)?),
        };
        self.file.insert(file).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), BufWriter::flush)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_older_file_is_there_until_something_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut late = Late::new(&path).unwrap();
        late.flush().unwrap();
        drop(late);
        assert!(!path.exists());
        fs::write(&path, "of before").unwrap();
        let mut late = Late::new(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "of before");
        late.write_all(b"new").unwrap();
        late.write_all(b", all of it").unwrap();
        late.flush().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new, all of it");
        let mut nowhere = Late::new(&folder.path().join("no/file")).unwrap();
        nowhere.write_all(b"new").unwrap_err();
    }
}

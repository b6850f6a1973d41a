//! Paths that lead to no file of their own: pipes, terminals, devices, and what we print to.
//!
//! They pass on what they get. Putting a file in the place of one would be a surprise.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

/// Whether what is written to a path is passed on.
///
/// It is the path itself that is asked, and not the end of its links: where `/dev/stdout` leads to a pipe, what Linux tells
/// of that end is no path.
pub(super) fn is_passed_on(path: &Path) -> bool {
    leads_to_no_file(path) || own_output(path).is_some()
}

/// Opens such a path for writing; `None` of any other.
pub(super) fn open(path: &Path) -> io::Result<Option<File>> {
    match own_output(path) {
        None if leads_to_no_file(path) => OpenOptions::new().write(true).open(path).map(Some),
        output => Ok(output),
    }
}

fn leads_to_no_file(path: &Path) -> bool {
    path.exists() && !path.is_file() && !path.is_dir()
}

/// What we print to, if that is the file which a path leads to: with another in its place, what is printed would be lost;
/// opened once more, each of the two would write over the other.
#[cfg(unix)]
fn own_output(path: &Path) -> Option<File> {
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::MetadataExt as _;

    let which = |file: &fs::Metadata| (file.dev(), file.ino());
    let named = which(&fs::metadata(path).ok()?);
    let (output, errors) = (io::stdout(), io::stderr());
    let own = [output.as_fd(), errors.as_fd()].map(|own| own.try_clone_to_owned().map(File::from));
    let is_named = |own: &File| own.metadata().is_ok_and(|own| which(&own) == named);
    own.into_iter().flatten().find(is_named)
}

#[cfg(not(unix))]
fn own_output(_path: &Path) -> Option<File> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::report::file;

    #[test]
    fn a_pipe_gets_what_is_written_and_stays_one() {
        use std::os::unix::fs::FileTypeExt as _;

        let folder = tempfile::tempdir().unwrap();
        let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::os::unix::fs::symlink("pipe", &link).unwrap();
        let content = |file: &mut dyn Write| file.write_all(b"passed on");
        for durably in [false, true] {
            for path in [&pipe, &link] {
                file::check(path).unwrap();
                let (reader, (told, read)) = (pipe.clone(), std::sync::mpsc::channel());
                std::thread::spawn(move || told.send(fs::read_to_string(reader)));
                let written = match durably {
                    true => file::write_durably(path, content),
                    false => file::write(path, content),
                };
                written.unwrap();
                assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
                let read = read.recv_timeout(std::time::Duration::from_secs(60));
                assert_eq!(read.expect("a writer").unwrap(), "passed on");
            }
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}

//! Files that a run writes: tried before the work begins, and whole as soon as they have their name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

pub use super::partial::PARTIAL;
use super::partial::Partial;
use super::passed_on;

/// Checks that `path` could be written, and leaves nothing behind.
///
/// # Errors
///
/// What writing it would have said.
pub fn check(path: &Path) -> io::Result<()> {
    if passed_on::is_passed_on(path) {
        // Opening and closing a pipe would send its reader away.
        return Ok(());
    }
    let path = &destination(path);
    if path.exists() {
        OpenOptions::new().append(true).open(path)?;
    } else {
        File::create_new(path)?;
        fs::remove_file(path)?;
    }
    // It may be replaced, which asks for room beside it, and for a longer name.
    let partial = Partial::of(path)?;
    File::create(partial.path())?;
    fs::remove_file(partial.path())
}

/// Where a path leads, through links, that of a link that leads nowhere yet among them.
fn destination(path: &Path) -> PathBuf {
    /// As many as Linux follows.
    const LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let Ok(leads_to) = fs::read_link(&path) else { break };
        // An absolute one replaces all of it.
        path = path.with_file_name("").join(leads_to);
    }
    path
}

/// Whether two paths name one file, there already or not.
pub fn are_one(first: &Path, second: &Path) -> bool {
    let place = |path: &Path| {
        let path = destination(path);
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
        Some(folder.join(path.file_name()?))
    };
    match (place(first), place(second)) {
        (Some(first), Some(second)) => first == second,
        // They cannot be written at all.
        _ => first == second,
    }
}

/// The error of a file that was named by `flag`: it names both.
pub fn of_flag(flag: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{flag} {}: {error}", path.display()))
}

/// Writes a file that appears under its name, in place of an older one, only once it is whole. A link stays, and the file
/// that it leads to is written; a pipe, a terminal or a device gets the content, and so does our own output.
///
/// # Errors
///
/// When `content` fails or the file cannot be written; then an older file is still there.
pub fn write(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    put(path, content, |_| Ok(())).map(drop)
}

/// As [`write()`], and when it returns, the file is on the disk: it outlives a loss of power.
///
/// Content first, then its name: otherwise the name could lead to a file that has not arrived.
///
/// # Errors
///
/// As [`write()`].
pub fn write_durably(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let Some(path) = put(path, content, |file| file.sync_all())? else { return Ok(()) };
    if !cfg!(unix) {
        return Ok(());
    }
    // A name is an entry of its folder: a bare name, of the one that we are in.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Writes `content` to where a path leads, and has it `kept` before it gets its name; where that is, if it is a file.
fn put(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    kept: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<Option<PathBuf>> {
    if let Some(file) = passed_on::open(path)? {
        return fill(file, content).map(|_| None);
    }
    let path = destination(path);
    replace(&path, |file| kept(&fill(file, content)?))?;
    Ok(Some(path))
}

/// Writes a file under another name, and renames it once `write` is done.
fn replace(path: &Path, write: impl FnOnce(File) -> io::Result<()>) -> io::Result<()> {
    let partial = Partial::of(path)?;
    let written = File::create(partial.path()).and_then(write);
    written.and_then(|()| fs::rename(partial.path(), path))
}

fn fill(file: File, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<File> {
    let mut file = BufWriter::new(file);
    content(&mut file)?;
    file.into_inner().map_err(io::IntoInnerError::into_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Content<'a> = &'a dyn Fn(&mut dyn Write) -> io::Result<()>;

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        replaces_whole_or_not_at_all(write_any);
        replaces_whole_or_not_at_all(write_any_durably);
    }

    fn write_any(path: &Path, content: Content<'_>) -> io::Result<()> {
        write(path, content)
    }

    fn write_any_durably(path: &Path, content: Content<'_>) -> io::Result<()> {
        write_durably(path, content)
    }

    fn replaces_whole_or_not_at_all(write: fn(&Path, Content<'_>) -> io::Result<()>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result");
        write(&path, &|file| file.write_all(b"old")).unwrap();
        let failure = write(&path, &|file| {
            file.write_all(b"half of the new")?;
            Err(io::Error::other("no more"))
        });
        assert_eq!(failure.unwrap_err().to_string(), "no more");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        write(&path, &|file| file.write_all(b"new")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn checking_leaves_no_trace() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result");
        check(&path).unwrap();
        assert!(!path.exists());
        fs::write(&path, "kept").unwrap();
        check(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"kept");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        #[cfg(unix)]
        {
            let link = folder.path().join("link");
            std::os::unix::fs::symlink("nowhere", &link).unwrap();
            check(&link).unwrap();
            assert_eq!(
                fs::read_dir(folder.path()).unwrap().count(),
                2,
                "the link, and not its end"
            );
            fs::remove_file(link).unwrap();
        }
        // Room for this name alone, and not for that of the file while it is written.
        let long = folder.path().join("n".repeat(250));
        let longer = folder.path().join("n".repeat(300));
        for nowhere in [folder.path(), &path.join("below a file"), Path::new(""), &long, &longer] {
            assert!(check(nowhere).is_err(), "{}", nowhere.display());
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_one_and_its_end_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name| folder.path().join(name);
        fs::create_dir(place("below")).unwrap();
        for (link, leads_to) in
            [("one", "below/end"), ("two", "one"), ("far", "below/../below/new")]
        {
            std::os::unix::fs::symlink(leads_to, place(link)).unwrap();
        }
        for (link, end) in [("two", "below/end"), ("far", "below/new")] {
            for (number, write) in [write_any, write_any_durably].into_iter().enumerate() {
                let text = format!("{link} {number}");
                check(&place(link)).unwrap();
                write(&place(link), &|file| file.write_all(text.as_bytes())).unwrap();
                assert_eq!(fs::read_to_string(place(end)).unwrap(), text);
                assert!(fs::symlink_metadata(place(link)).unwrap().is_symlink());
            }
        }
        assert!(are_one(&place("one"), &place("below/../two")));
        assert!(are_one(&place("far"), &place("below/new")));
        assert!(!are_one(&place("one"), &place("far")));
        assert!(are_one(&place("not/there"), &place("not/there")));
        // Round and round.
        std::os::unix::fs::symlink("round", place("round")).unwrap();
        assert!(check(&place("round")).is_err());
    }
}

//! Files that a run writes: checked before the work begins, and never half-written under their own name.
//!
//! A file is written under a temporary name and renamed when it is whole. Until then an older file stays; its permissions go to
//! the new file. A symbolic link stays a link. Special files (FIFOs, terminals, devices) and this process's own output
//! (`/dev/stdout`) are not replaced but written to. A [`LazyFile`] grows line by line, so that a user can watch a run.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf, absolute};
use std::sync::Mutex;

use serde::Serialize;
use tempfile::{NamedTempFile, TempDir};

use super::{Blocking, line};
use crate::lock::locked;

/// The end of every temporary name.
pub const PARTIAL: &str = ".partial";

/// Checks that `path` can be written, and leaves nothing behind. Fails as writing would. Writing makes folders that are missing.
pub fn check(path: &Path) -> io::Result<()> {
    if is_special(path) {
        // Opening and closing a FIFO would end its reader.
        return Ok(());
    }
    let path = &follow_links(path);
    if path.symlink_metadata().is_ok() {
        OpenOptions::new().append(true).open(path)?;
    }
    let folder = folder_of(path);
    let missing = folder.strip_prefix(existing(folder)).unwrap_or(folder);
    if missing.components().any(|part| part == Component::ParentDir) {
        // Such a path may lead to the file of another flag once the folder is made. This fails: a part is missing.
        folder.canonicalize()?;
    }
    // A file is written under a longer name, in the same folder.
    let made = if folder.exists() { None } else { Some(temporary_in(folder)?) };
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    create_partial(&made.as_ref().map_or(folder, TempDir::path).join(name)).map(drop)
}

/// Checks that a folder can be made, and leaves nothing behind. Fails as making the folder would.
pub fn check_folder(folder: &Path) -> io::Result<()> {
    temporary_in(folder)?.close()
}

/// The longest part of a path that exists. An empty path is the current folder.
fn existing(path: &Path) -> &Path {
    let exists = |path: &&Path| path.as_os_str().is_empty() || path.symlink_metadata().is_ok();
    path.ancestors().find(exists).unwrap_or(path)
}

/// Makes a folder of a temporary name in the part of a path that exists.
fn temporary_in(folder: &Path) -> io::Result<TempDir> {
    let above = Some(existing(folder)).filter(|above| !above.as_os_str().is_empty());
    tempfile::tempdir_in(above.unwrap_or(Path::new("."))).map_err(without_path)
}

/// The system's error, without the temporary name that `tempfile` adds: the user did not choose that name.
fn without_path(error: io::Error) -> io::Error {
    let text = error.to_string();
    match text.split_once(" at path ") {
        Some((reason, _)) => io::Error::new(error.kind(), reason),
        None => error,
    }
}

/// Whether two paths name one file, which need not exist, and neither need its folder.
pub fn is_same_file(first: &Path, second: &Path) -> bool {
    let [resolved, other] = [first, second].map(|path| {
        let path = follow_links(path);
        let known = path.ancestors().skip(1).find_map(|above| {
            let folder = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            Some((folder.canonicalize().ok()?, path.strip_prefix(above).ok()?))
        });
        known.map(|(folder, rest)| folder.join(rest))
    });
    if resolved.is_some() && other.is_some() { resolved == other } else { first == second }
}

/// Adds the flag and the file that it names to an error.
pub fn flag_error(flag: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{flag} {}: {error}", path.display()))
}

/// Writes a file, and returns when it is on the disk. Fails when `content` fails or the file cannot be written. Then an older
/// file is still there.
pub fn write(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let written_to = |file: &File| {
        let mut file = BufWriter::new(Blocking(file));
        content(&mut file)?;
        file.flush()
    };
    if let Some(file) = open_special(path)? {
        return written_to(&file);
    }
    let path = &follow_links(path);
    fs::create_dir_all(folder_of(path))?;
    let partial = create_partial(path)?;
    written_to(partial.as_file())?;
    // Before the rename: after a loss of power the name must not lead to content that is not on the disk.
    partial.as_file().sync_all()?;
    partial.persist(path)?;
    unless_impossible(File::open(folder_of(path)).and_then(|folder| folder.sync_all()))
}

/// Ignores that a folder cannot be opened or synced at all: its file is whole. A failure of the disk stays a failure.
fn unless_impossible(synced: io::Result<()>) -> io::Result<()> {
    let impossible = [ErrorKind::InvalidInput, ErrorKind::PermissionDenied, ErrorKind::Unsupported];
    synced.or_else(|error| if impossible.contains(&error.kind()) { Ok(()) } else { Err(error) })
}

/// [Writes](write()) the file of a flag, and [announces](announce) the file. An error names the flag and the file.
pub fn write_flag(
    flag: &str,
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    write(path, content).map_err(|error| flag_error(flag, path, &error))?;
    announce(flag, path)
}

/// Prints the path of a file that has been written. Special files are not announced: the line would be in them.
pub fn announce(flag: &str, path: &Path) -> io::Result<()> {
    if is_special(path) { Ok(()) } else { line(format_args!("{flag}: {}", path.display())) }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The end of a chain of symbolic links. It need not exist.
fn follow_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // Linux follows as many.
    for _ in 0..40 {
        let Ok(target) = fs::read_link(&path) else { break };
        // An absolute target replaces the whole path.
        path = path.with_file_name("").join(target);
    }
    path
}

/// The temporary names of this process. A file that has been renamed is still listed until the next file begins.
static PARTIAL_FILES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Creates an empty file under a temporary name, in the folder of the file at `path` and with that file's permissions.
/// Drop removes the file unless it was renamed.
fn create_partial(path: &Path) -> io::Result<NamedTempFile> {
    let mut name = path.file_name().ok_or(ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{}", std::process::id()));
    let folder = absolute(folder_of(path))?;
    let mut all = locked(&PARTIAL_FILES);
    all.retain(|partial| partial.exists());
    // Another thread may be writing the same file.
    let is_taken = all.contains(&folder.join(&name).with_added_extension(&PARTIAL[1..]));
    let mut builder = tempfile::Builder::new();
    builder.prefix(&name).suffix(PARTIAL).rand_bytes(if is_taken { 6 } else { 0 });
    let partial = builder.make_in(folder, |partial| File::create(partial)).map_err(without_path)?;
    if let Ok(older) = fs::metadata(path) {
        // File systems without permissions refuse.
        let _ = partial.as_file().set_permissions(older.permissions());
    }
    all.push(partial.path().to_owned());
    Ok(partial)
}

/// Removes all partial files of this process, which is about to end. A thread that begins another waits for ever.
pub(crate) fn remove_partial_files() {
    let all = locked(&PARTIAL_FILES);
    for path in &*all {
        let _ = fs::remove_file(path);
    }
    std::mem::forget(all);
}

/// Opens a special file for writing. Returns `None` for any other path.
fn open_special(path: &Path) -> io::Result<Option<File>> {
    match own_output(path) {
        None if is_special(path) => OpenOptions::new().write(true).open(path).map(Some),
        output => Ok(output),
    }
}

/// Whether a path leads to a FIFO, a terminal, a device or this process's own output. Links stay: `/dev/stdout` may lead to no path.
fn is_special(path: &Path) -> bool {
    own_output(path).is_some() || path.exists() && !path.is_file() && !path.is_dir()
}

/// This process's standard output or standard error, if `path` leads to that file. A second file would overwrite the lines.
fn own_output(path: &Path) -> Option<File> {
    let identity = |file: fs::Metadata| (file.dev(), file.ino());
    let named = identity(fs::metadata(path).ok()?);
    let own =
        [io::stdout().as_fd().try_clone_to_owned(), io::stderr().as_fd().try_clone_to_owned()];
    let mut own = own.into_iter().flatten().map(File::from);
    own.find(|own| own.metadata().is_ok_and(|own| identity(own) == named))
}

/// The file of a flag, which the first write creates or empties: a run that is refused leaves an older file as it is. Errors
/// name the flag and the file.
#[derive(Debug)]
pub struct LazyFile {
    flag: &'static str,
    file: Option<File>,
    path: PathBuf,
    resumes: bool,
}

/// A line of JSON: an object with the fields of `content` and some more.
#[derive(Serialize)]
pub(super) struct Line<'a, T> {
    pub(super) kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) run: Option<&'a str>,
    #[serde(flatten)]
    pub(super) content: &'a T,
}

impl LazyFile {
    /// Names the file. A special file and this process's own output are opened at once. Fails when they cannot be opened.
    pub fn new(flag: &'static str, path: &Path) -> io::Result<Self> {
        let file = open_special(path).map_err(|error| flag_error(flag, path, &error))?;
        Ok(Self { flag, file, path: path.to_owned(), resumes: false })
    }

    /// Keeps the whole lines of an older file, and appends to them: this process resumes the run of an earlier one.
    pub fn resume(&mut self) {
        self.resumes = true;
    }

    /// Writes a line: a JSON object with the fields of `content` and a field `kind`. Fails when the file cannot be written.
    pub fn write_json(&mut self, kind: &str, content: &impl Serialize) -> io::Result<()> {
        self.write_line(&Line { kind, run: None, content })
    }

    pub(super) fn write_line<T: Serialize>(&mut self, line: &Line<'_, T>) -> io::Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        // One call writes the whole line or nothing.
        self.append(&line)
    }

    /// Writes some bytes. Fails when the file cannot be written.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.open().and_then(|file| Blocking(file).write_all(bytes));
        written.map_err(|error| flag_error(self.flag, &self.path, &error))
    }

    /// Prints the path, if anything has been written.
    pub fn announce(&self) -> io::Result<()> {
        if self.file.is_some() { announce(self.flag, &self.path) } else { Ok(()) }
    }

    /// The file, created or emptied by the first call.
    fn open(&mut self) -> io::Result<&mut File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                fs::create_dir_all(folder_of(&follow_links(&self.path)))?;
                // Append: every line goes to the end, even if another process writes there, too.
                let file = OpenOptions::new().append(true).create(true).open(&self.path)?;
                let older = if self.resumes { fs::read(&self.path)? } else { Vec::new() };
                let end = older.iter().rposition(|byte| *byte == b'\n');
                file.set_len(end.map_or(0, |end| end as u64 + 1))?;
                file
            }
        };
        Ok(self.file.insert(file))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};

    use super::*;

    fn files_in(folder: &TempDir) -> usize {
        fs::read_dir(folder.path()).unwrap().count()
    }

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result");
        write(&path, |file| file.write_all(b"old")).unwrap();
        let failure = write(&path, |file| {
            file.write_all(b"half of the new")?;
            Err(io::Error::other("no more"))
        });
        assert_eq!(failure.unwrap_err().to_string(), "no more");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        write(&path, |file| file.write_all(b"new")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(files_in(&folder), 1);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_folder_that_cannot_be_synced_is_ignored_and_a_disk_that_fails_is_not() {
        let synced = |code| unless_impossible(Err(io::Error::from_raw_os_error(code)));
        let (einval, eopnotsupp, enosys, eacces) = (22, 95, 38, 13);
        for code in [einval, eopnotsupp, enosys, eacces] {
            synced(code).unwrap();
        }
        let (eio, enospc, edquot) = (5, 28, 122);
        for code in [eio, enospc, edquot] {
            assert_eq!(synced(code).unwrap_err().raw_os_error(), Some(code));
        }
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
        assert_eq!(files_in(&folder), 1);
        let link = folder.path().join("link");
        symlink("nowhere", &link).unwrap();
        check(&link).unwrap();
        assert_eq!(files_in(&folder), 2, "the link, and not its end");
        fs::remove_file(link).unwrap();
        // Room for this name alone, and not for that of the file while it is written.
        let long = folder.path().join("n".repeat(250));
        let longer = folder.path().join("n".repeat(300));
        for nowhere in [folder.path(), &path.join("below a file"), Path::new(""), &long, &longer] {
            let error = check(nowhere).expect_err("nothing can be written there").to_string();
            // A user has not chosen a temporary name.
            assert!(!error.contains(PARTIAL) && !error.contains(".tmp"), "{error}");
        }
        if cfg!(target_os = "linux") {
            // No user may write there.
            for nowhere in ["/proc/picture", "/proc/new/picture", "/proc/new/folder/picture"] {
                let error = check(Path::new(nowhere)).expect_err(nowhere).to_string();
                assert!(error.ends_with(")") && !error.contains("/proc"), "{error}");
            }
        }
    }

    #[test]
    fn a_folder_that_is_missing_is_made_with_the_file_and_not_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join("new/below").join(name);
        check(&path("picture")).unwrap();
        assert!(is_same_file(&path("picture"), &folder.path().join("./new/below/picture")));
        assert!(!is_same_file(&path("picture"), &path("metrics")));
        // Once `new` is made, this is another name of a file outside of it.
        let outside = folder.path().join("new/../picture");
        assert_eq!(check(&outside).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(check(&path(&"n".repeat(250))).is_err(), "no room for the longer name");
        let mut metrics = LazyFile::new("--metrics", &path("metrics")).unwrap();
        assert_eq!(files_in(&folder), 0);
        write(&path("picture"), |file| file.write_all(b"drawn")).unwrap();
        assert_eq!(fs::read(path("picture")).unwrap(), b"drawn");
        fs::remove_dir_all(folder.path().join("new")).unwrap();
        metrics.append(b"measured").unwrap();
        assert_eq!(fs::read(path("metrics")).unwrap(), b"measured");
    }

    #[test]
    fn a_link_stays_one_and_its_end_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name| folder.path().join(name);
        fs::create_dir(place("below")).unwrap();
        for (link, leads_to) in
            [("one", "below/end"), ("two", "one"), ("far", "below/../below/new")]
        {
            symlink(leads_to, place(link)).unwrap();
        }
        for (link, end) in [("two", "below/end"), ("far", "below/new")] {
            for text in ["first", "second"] {
                check(&place(link)).unwrap();
                write(&place(link), |file| file.write_all(text.as_bytes())).unwrap();
                assert_eq!(fs::read_to_string(place(end)).unwrap(), text);
                assert!(fs::symlink_metadata(place(link)).unwrap().is_symlink());
            }
        }
        assert!(is_same_file(&place("one"), &place("below/../two")));
        assert!(is_same_file(&place("far"), &place("below/new")));
        assert!(!is_same_file(&place("one"), &place("far")));
        assert!(is_same_file(&place("not/there"), &place("not/there")));
        // Round and round.
        symlink("round", place("round")).unwrap();
        assert!(check(&place("round")).is_err());
    }

    #[test]
    fn a_pipe_gets_what_is_written_and_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        symlink("pipe", &link).unwrap();
        for path in [&pipe, &link] {
            check(path).unwrap();
            let (reader, (sender, read)) = (pipe.clone(), std::sync::mpsc::channel());
            std::thread::spawn(move || sender.send(fs::read_to_string(reader)));
            write(path, |file| file.write_all(b"content")).unwrap();
            assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
            let read = read.recv_timeout(std::time::Duration::from_secs(60));
            assert_eq!(read.expect("a writer").unwrap(), "content");
        }
        assert_eq!(files_in(&folder), 2);
    }

    #[test]
    fn the_permissions_of_an_older_file_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        for permissions in [0o600, 0o640, 0o444, 0o755] {
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(permissions)).unwrap();
            write(&path, |file| file.write_all(b"new")).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
            assert_eq!(mode(), permissions);
            fs::remove_file(&path).unwrap();
        }
        fs::write(&path, "").unwrap();
        let usual = mode();
        fs::remove_file(&path).unwrap();
        write(&path, |file| file.write_all(b"new")).unwrap();
        assert_eq!(mode(), usual);
    }

    #[test]
    fn threads_that_write_one_file_do_not_disturb_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result");
        let barrier = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for letter in [b'a', b'b', b'c'] {
                let (path, barrier) = (&path, &barrier);
                scope.spawn(move || {
                    let written = write(path, |file| {
                        barrier.wait();
                        (0..1000).try_for_each(|_| file.write_all(&[letter; 100]))
                    });
                    written.unwrap();
                });
            }
        });
        let content = fs::read(&path).unwrap();
        assert_eq!(content.len(), 100_000);
        assert!(content.iter().all(|byte| *byte == content[0]));
        assert_eq!(files_in(&folder), 1);
    }

    #[test]
    fn an_older_file_is_there_until_the_first_epoch_begins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let begun = || LazyFile::new("--metrics", &path).unwrap();
        let read = || fs::read_to_string(&path).unwrap();
        begun();
        assert!(!path.exists());
        let (first, second) =
            ("{\"kind\":\"a\",\"number\":1}\n", "{\"kind\":\"a\",\"number\":2}\n");
        let written = |resumes: bool, numbers: &[u32]| {
            let mut file = begun();
            if resumes {
                file.resume();
            }
            for number in numbers {
                file.write_json("a", &serde_json::json!({ "number": number })).unwrap();
            }
            read()
        };
        assert_eq!(written(false, &[1]), first);
        assert_eq!(written(false, &[]), first);
        assert_eq!(written(false, &[2, 1]), [second, first].concat());
        assert_eq!(written(true, &[2]), [second, first, second].concat());
        // Cut by a full disk.
        fs::write(&path, [first, "{\"kind\":\"a"].concat()).unwrap();
        assert_eq!(written(true, &[2]), [first, second].concat());
        begun().append(b"").unwrap();
        assert_eq!(read(), "");
        let mut nowhere = begun();
        fs::remove_dir_all(&folder).unwrap();
        fs::write(&folder, "a file").unwrap();
        let message = nowhere.append(b"").unwrap_err().to_string();
        fs::remove_file(&folder).unwrap();
        let names = message.starts_with("--metrics ") && message.contains("metrics.jsonl: ");
        assert!(names, "{message}");
    }
}

//! The folder that Fashion-MNIST is kept in, and how it gets there.
//!
//! What lies in the folder is used as it is, plain or compressed, and never replaced: it may be somebody's
//! own. What is missing is downloaded.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcetera::BaseStrategy as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::download::{self, Failure, TimeLimits};
use super::mirrors::{Mirrors, RemoteFile};
use harness::cli::DATA_FOLDER;

/// The folder's name, below the one that the platform has for such things.
const FOLDER: [&str; 2] = ["multi-gpu-course", "fashion-mnist"];

/// Nobody has been writing to a partial download that has not changed for this long.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Why the data set is not there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The platform names no folder.
    #[error("this machine names no folder for downloads; --data-dir can")]
    NoFolder,
    /// The folder cannot be read or written.
    #[error("{}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The folder holds something else under the name of a file.
    #[error(
        "{}: has {found} bytes, and Fashion-MNIST's has {expected}; remove it to have it downloaded, \
         or name the folder with --data to use what is there",
        path.display()
    )]
    OtherFile {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// The size it should have.
        expected: u64,
    },
    /// No mirror gave the file.
    #[error("cannot download {file}{}", reasons(failures))]
    Unavailable {
        /// The file's name.
        file: &'static str,
        /// The mirrors' addresses, each with what went wrong there.
        failures: Vec<(String, Failure)>,
    },
}

fn reasons(failures: &[(String, Failure)]) -> String {
    let mut text = String::new();
    for (mirror, failure) in failures {
        // Writing to a string cannot fail.
        let _ = write!(text, "; from {mirror}: {failure}");
    }
    text
}

/// The folder in which downloads are kept if nothing else is said: `~/.cache/multi-gpu-course/fashion-mnist`
/// on Linux, its like elsewhere. `None` where the platform knows of none.
pub fn default_folder() -> Option<PathBuf> {
    let platform = etcetera::base_strategy::choose_native_strategy().ok()?;
    Some(FOLDER.iter().fold(platform.cache_dir(), |path, name| path.join(name)))
}

/// The folder in which a run without `--data-dir` looks, and keeps its downloads: the one that [`DATA_FOLDER`] names, or the
/// [default](default_folder).
pub fn folder() -> Option<PathBuf> {
    std::env::var_os(DATA_FOLDER).map(PathBuf::from).or_else(default_folder)
}

/// Makes sure that `folder` has all `files`: downloads those that are missing, each from the first mirror
/// that gives it whole.
///
/// # Errors
///
/// When a file is neither there nor to be had; no partial file stays behind.
pub fn obtain(
    folder: &Path,
    files: &[RemoteFile],
    mirrors: &Mirrors,
    limits: TimeLimits,
) -> Result<(), Error> {
    let missing = missing(folder, files)?;
    let Some(first) = missing.first() else { return Ok(()) };
    let mirror = download::first_to_answer(mirrors, first, limits.first_answer)
        .map_err(|failures| unavailable(first, mirrors.addresses().iter().zip(failures)))?;
    // From here on there is a network, and a slow one is waited for.
    fs::create_dir_all(folder).map_err(|source| Error::Folder { path: folder.into(), source })?;
    remove_abandoned(folder, files);
    let megabytes = missing.iter().map(|file| file.size).sum::<u64>() as f64 / 1e6;
    tell(format_args!("downloading {megabytes:.1} MB into {}", folder.display()));
    let agent = download::agent(limits);
    let mut order: Vec<&String> = mirrors.addresses().iter().collect();
    order[..=mirror].rotate_right(1);
    for file in missing {
        let bar = bar(file);
        let mut failures = Vec::new();
        let partial = loop {
            // A mirror that fails goes to the end of the line, for the next file as well.
            let mirror = order[0];
            match download::fetch(&agent, mirror, file, folder, limits.silence, &bar) {
                Ok(partial) => break partial,
                Err(Failure::Store(source)) => {
                    return Err(Error::Folder { path: folder.into(), source });
                }
                Err(failure) => failures.push((mirror, failure)),
            }
            if failures.len() == order.len() {
                return Err(unavailable(file, failures));
            }
            order.rotate_left(1);
        };
        match partial.persist_noclobber(folder.join(file.name)) {
            Ok(_) => bar.finish(),
            // Another process was faster, and has verified the same bytes.
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => bar.finish(),
            Err(error) => {
                return Err(Error::Folder { path: folder.into(), source: error.error });
            }
        }
    }
    Ok(())
}

fn unavailable<'a>(
    file: &RemoteFile,
    failures: impl IntoIterator<Item = (&'a String, Failure)>,
) -> Error {
    let failures = failures.into_iter().map(|(mirror, failure)| (mirror.clone(), failure));
    Error::Unavailable { file: file.name, failures: failures.collect() }
}

/// The files that `folder` has neither as they are nor unpacked.
fn missing<'a>(folder: &Path, files: &'a [RemoteFile]) -> Result<Vec<&'a RemoteFile>, Error> {
    let mut missing = Vec::new();
    for file in files {
        let path = folder.join(file.name);
        let unpacked = path.with_extension("");
        if unpacked.is_file() {
            continue;
        }
        match fs::metadata(&path) {
            Ok(metadata) if metadata.len() == file.size => {}
            Ok(metadata) => {
                let (found, expected) = (metadata.len(), file.size);
                return Err(Error::OtherFile { path, found, expected });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(file),
            Err(source) => return Err(Error::Folder { path, source }),
        }
    }
    Ok(missing)
}

/// Removes what runs that were killed have left of these files. It is a courtesy: what cannot be removed stays.
fn remove_abandoned(folder: &Path, files: &[RemoteFile]) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let ours = files.iter().any(|file| download::is_partial(&name, file));
        let abandoned = entry
            .metadata()
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|time| time.elapsed().is_ok_and(|age| age > ABANDONED));
        if ours && abandoned {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// One line on standard error; that nobody reads it is no reason to stop.
fn tell(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// A file's progress, on a terminal; nothing where there is none.
fn bar(file: &RemoteFile) -> ProgressBar {
    let target = ProgressDrawTarget::stderr_with_hz(10);
    let bar = ProgressBar::with_draw_target(Some(file.size), target).with_prefix(file.name);
    let template = "  {prefix:26} {bar:30} {bytes}/{total_bytes}  {bytes_per_sec}";
    bar.set_style(
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar
}

//! Downloads the missing files of a folder: from mirrors in turn, within a time limit, and verified.
//!
//! A file that is in the folder, compressed or unpacked, is used and never replaced: it may be the user's own. A download
//! stays in memory until its size and its checksum are right. So a download that fails or is interrupted leaves no file,
//! and two processes that download at once do not disturb each other.

use std::cmp::Ordering;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use etcetera::BaseStrategy as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use md5::{Digest as _, Md5};
use ureq::Agent;

use super::mirrors::{Mirrors, RemoteFile};
use harness::cli::DATA_FOLDER;
use harness::report::file::{self, PARTIAL};
use harness::report::seconds;

/// The folder of Fashion-MNIST, below the platform's folder for caches.
const FOLDER: [&str; 2] = ["multi-gpu-course", "fashion-mnist"];

/// No process is still writing a partial file that has not changed for this long.
const ABANDONED: Duration = Duration::from_secs(3600);

/// How long the mirrors may take. A download that makes progress, however slowly, has no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// The time until the first mirror answers, all mirrors together. After that the machine is offline.
    pub answer: Duration,
    /// The time to connect, to answer a request, and between two pieces of a file: each.
    pub silence: Duration,
}

impl TimeLimits {
    /// The limits where drawn images can replace the data: an offline machine loses less than five seconds.
    pub const OPTIONAL: Self =
        Self { answer: Duration::from_secs(4), silence: Duration::from_secs(15) };

    /// The limits where nothing can replace the data.
    pub const REQUIRED: Self =
        Self { answer: Duration::from_secs(20), silence: Duration::from_secs(30) };
}

/// Why a file is not in the folder.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The platform has no folder for caches.
    #[error("this machine names no folder for downloads; --data-dir can")]
    NoFolder,
    /// The folder cannot be read or written.
    #[error("{}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The folder has another file under the same name.
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
        /// The size of Fashion-MNIST's file.
        expected: u64,
    },
    /// All mirrors failed.
    #[error("cannot download {file}; {failures}")]
    Download {
        /// The file's name.
        file: &'static str,
        /// Each mirror, with the reason why it failed.
        failures: String,
    },
}

/// The folder for downloads if the user names none: `~/.cache/multi-gpu-course/fashion-mnist` on Linux. `None` where
/// the platform has no folder for caches.
pub fn default_folder() -> Option<PathBuf> {
    let platform = etcetera::base_strategy::choose_native_strategy().ok()?;
    Some(FOLDER.iter().fold(platform.cache_dir(), |path, name| path.join(name)))
}

/// The folder of a run without `--data-dir`: the one that the variable [`DATA_FOLDER`] names, or the
/// [default](default_folder).
pub fn folder() -> Option<PathBuf> {
    std::env::var_os(DATA_FOLDER).map(PathBuf::from).or_else(default_folder)
}

/// Downloads the `files` that are missing in `folder`.
///
/// # Errors
///
/// When a file cannot be downloaded or stored.
pub fn obtain(
    folder: &Path,
    files: &[RemoteFile],
    mirrors: &Mirrors,
    limits: TimeLimits,
) -> Result<(), Error> {
    let folder_error = |source| Error::Folder { path: folder.into(), source };
    let missing = missing(folder, files)?;
    let Some(first) = missing.first() else { return Ok(()) };
    let mut mirrors: Vec<&str> = mirrors.0.iter().map(String::as_str).collect();
    find_answering_mirror(&mut mirrors, first, limits.answer)?;
    // An offline machine gets no folder.
    fs::create_dir_all(folder).map_err(folder_error)?;
    remove_abandoned(folder, files);
    let megabytes = missing.iter().map(|file| file.size).sum::<u64>() as f64 / 1e6;
    // The download goes on when standard error has no reader.
    let _ = writeln!(io::stderr(), "downloading {megabytes:.1} MB into {}", folder.display());
    let silence = Some(limits.silence);
    let agent = Agent::config_builder()
        .timeout_resolve(silence)
        .timeout_connect(silence)
        .timeout_recv_response(silence)
        .timeout_per_read(silence)
        .build()
        .new_agent();
    for file in missing {
        let bar = progress_bar(file);
        let bytes =
            try_in_turn(&mut mirrors, file, |url| fetch(&agent, url, file, limits.silence, &bar))?;
        file::write(&folder.join(file.name), |to| to.write_all(&bytes)).map_err(folder_error)?;
        bar.finish();
    }
    Ok(())
}

/// Calls `attempt` with the file's address at each mirror, until one succeeds. Moves this mirror to the front, and the
/// mirrors that failed to the end.
fn try_in_turn<R>(
    mirrors: &mut [&str],
    file: &RemoteFile,
    mut attempt: impl FnMut(&str) -> Result<R, String>,
) -> Result<R, Error> {
    let mut failures = Vec::new();
    for _ in 0..mirrors.len() {
        match attempt(&format!("{}/{}", mirrors[0], file.name)) {
            Ok(outcome) => return Ok(outcome),
            Err(reason) => failures.push(format!("from {}: {reason}", mirrors[0])),
        }
        mirrors.rotate_left(1);
    }
    Err(Error::Download { file: file.name, failures: failures.join("; ") })
}

/// Moves the first mirror that offers `file` to the front. All mirrors together have the time `limit`: each mirror gets an
/// equal share of the remaining time.
fn find_answering_mirror(
    mirrors: &mut [&str],
    file: &RemoteFile,
    limit: Duration,
) -> Result<(), Error> {
    let deadline = Instant::now() + limit;
    let mut untried = mirrors.len() as u32;
    try_in_turn(mirrors, file, |url| {
        let limit = deadline.saturating_duration_since(Instant::now()) / untried;
        untried -= 1;
        let agent = Agent::config_builder().timeout_global(Some(limit)).build().new_agent();
        agent.get(url).call().map(drop).map_err(|error| reason(error, limit))
    })
}

/// Downloads a file into memory and verifies its size and checksum. Returns the reason if the mirror fails.
fn fetch(
    agent: &Agent,
    url: &str,
    file: &RemoteFile,
    silence: Duration,
    bar: &ProgressBar,
) -> Result<Vec<u8>, String> {
    let size = file.size;
    let mut body = agent.get(url).call().map_err(|error| reason(error, silence))?.into_body();
    bar.set_position(0);
    let mut bytes = Vec::new();
    // The limit is one byte above the size, so a body that is too long shows.
    let read = bar.wrap_read(body.as_reader().take(size + 1)).read_to_end(&mut bytes);
    let received = bytes.len() as u64;
    if let Err(error) = read {
        let reason = reason(error.into(), silence);
        return Err(format!("it broke off after {received} of {size} bytes: {reason}"));
    }
    match received.cmp(&size) {
        Ordering::Less => return Err(format!("it sent {received} of {size} bytes")),
        Ordering::Greater => return Err(format!("it sent more than {size} bytes")),
        Ordering::Equal => {}
    }
    let found = u128::from_be_bytes(Md5::digest(&bytes).into());
    if found != file.md5 {
        return Err(format!(
            "it sent other bytes: their MD5 is {found:032x}, not {:032x}",
            file.md5
        ));
    }
    Ok(bytes)
}

/// The reason why a request failed, in the time `limit` or before.
fn reason(error: ureq::Error, limit: Duration) -> String {
    match error {
        ureq::Error::Timeout(_) => format!("nothing came for {} s", seconds(limit.as_secs_f64())),
        ureq::Error::StatusCode(status) => format!("it answers with HTTP status {status}"),
        error => error.to_string(),
    }
}

/// The files that the folder has neither compressed nor unpacked.
fn missing<'a>(folder: &Path, files: &'a [RemoteFile]) -> Result<Vec<&'a RemoteFile>, Error> {
    let mut missing = Vec::new();
    for file in files {
        let path = folder.join(file.name);
        if path.with_extension("").is_file() {
            continue;
        }
        match fs::metadata(&path).map(|metadata| metadata.len()) {
            Ok(found) if found == file.size => {}
            Ok(found) => return Err(Error::OtherFile { path, found, expected: file.size }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(file),
            Err(source) => return Err(Error::Folder { path, source }),
        }
    }
    Ok(missing)
}

/// Removes partial files that killed processes have left. A partial file that cannot be removed stays.
fn remove_abandoned(folder: &Path, files: &[RemoteFile]) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_of = |file: &RemoteFile| {
            name.strip_prefix(file.name).is_some_and(|rest| rest.starts_with('.'))
        };
        let is_partial = name.ends_with(PARTIAL) && files.iter().any(is_of);
        let age = entry.metadata().and_then(|metadata| metadata.modified()).map(|it| it.elapsed());
        if is_partial && matches!(age, Ok(Ok(age)) if age > ABANDONED) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The progress of one file, if standard error is a terminal.
fn progress_bar(file: &RemoteFile) -> ProgressBar {
    let target = ProgressDrawTarget::stderr_with_hz(10);
    let bar = ProgressBar::with_draw_target(Some(file.size), target).with_prefix(file.name);
    let template = "  {prefix:26} {bar:30} {bytes}/{total_bytes}  {bytes_per_sec}";
    bar.with_style(
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
    )
}

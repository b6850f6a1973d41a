//! One file from one mirror: in bounded time and space, verified, and never half there.
//!
//! A download goes to a file with a name of its own, which no other process writes to, and gets its real
//! name when all of it has arrived and the checksum is right. So two runs that start at once can both
//! download, and one that is interrupted leaves nothing that looks like data.

use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use md5::{Digest as _, Md5};
use tempfile::NamedTempFile;
use ureq::Agent;

use super::mirrors::{Mirrors, RemoteFile};
use harness::report::file::PARTIAL;

/// How long a mirror may take. A download that goes on, however slowly, is never given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// Until the first mirror answers. After this long without an answer the machine is offline.
    pub first_answer: Duration,
    /// Until a name is resolved, a connection made, a request answered, the next bytes are here: each.
    pub silence: Duration,
}

impl TimeLimits {
    /// Where the data would be nice to have: who is offline waits less than five seconds.
    pub const NICE_TO_HAVE: Self =
        Self { first_answer: Duration::from_secs(4), silence: Duration::from_secs(15) };

    /// Where nothing else will do.
    pub const NEEDED: Self =
        Self { first_answer: Duration::from_secs(20), silence: Duration::from_secs(30) };
}

/// Why a mirror did not give a file.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It was silent for too long.
    #[error("nothing came for {0:?}")]
    Silence(Duration),
    /// It has no such file, or trouble of its own.
    #[error("it answers with HTTP status {0}")]
    Status(u16),
    /// It cannot be reached, or does not speak HTTP.
    #[error("{0}")]
    Request(Box<ureq::Error>),
    /// It announces a file of another size.
    #[error("it announces {found} bytes, not {expected}")]
    Length {
        /// The announced size.
        found: u64,
        /// The file's size.
        expected: u64,
    },
    /// It began and did not go on.
    #[error("it broke off after {received} of {expected} bytes: {cause}")]
    BrokenOff {
        /// Bytes that arrived.
        received: u64,
        /// The file's size.
        expected: u64,
        /// What happened then.
        cause: Box<Self>,
    },
    /// It ended too early.
    #[error("it sent {received} of {expected} bytes")]
    TooShort {
        /// Bytes that arrived.
        received: u64,
        /// The file's size.
        expected: u64,
    },
    /// It did not end where the file ends.
    #[error("it sent more than {0} bytes")]
    TooLong(u64),
    /// It sent as many bytes as the file has, but others.
    #[error("it sent other bytes: their MD5 is {found:032x}, not {expected:032x}")]
    Checksum {
        /// The checksum of what arrived.
        found: u128,
        /// The file's.
        expected: u128,
    },
    /// What it sent cannot be stored.
    #[error("cannot be stored: {0}")]
    Store(io::Error),
}

impl Failure {
    fn new(error: ureq::Error, patience: Duration) -> Self {
        match error {
            ureq::Error::Timeout(_) => Self::Silence(patience),
            ureq::Error::StatusCode(status) => Self::Status(status),
            error => Self::Request(Box::new(error)),
        }
    }
}

fn address(mirror: &str, file: &RemoteFile) -> String {
    format!("{mirror}/{}", file.name)
}

/// Asks all mirrors for `file` at once, and returns the index of the first that has it.
///
/// It takes at most `patience`, however many mirrors there are and whatever keeps them silent. Those that
/// are slower are left to themselves; they give up at the same time.
///
/// # Errors
///
/// Why each of them does not have it, in their order.
pub fn first_to_answer(
    mirrors: &Mirrors,
    file: &RemoteFile,
    patience: Duration,
) -> Result<usize, Vec<Failure>> {
    let deadline = Instant::now() + patience;
    let addresses = mirrors.addresses();
    let mut failures: Vec<Option<Failure>> = addresses.iter().map(|_| None).collect();
    let (sender, answers) = mpsc::channel();
    for (index, mirror) in addresses.iter().enumerate() {
        let address = address(mirror, file);
        let answer = sender.clone();
        let asked = thread::Builder::new().spawn(move || {
            let agent = Agent::config_builder().timeout_global(Some(patience)).build().new_agent();
            let outcome = agent.get(address).call().map(drop);
            // Nobody listens once another mirror has answered.
            let _ = answer.send((index, outcome));
        });
        failures[index] = asked.err().map(|error| Failure::Request(Box::new(error.into())));
    }
    drop(sender);
    while let Ok((index, outcome)) =
        answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        match outcome {
            Ok(()) => return Ok(index),
            Err(error) => failures[index] = Some(Failure::new(error, patience)),
        }
    }
    Err(failures.into_iter().map(|known| known.unwrap_or(Failure::Silence(patience))).collect())
}

/// The agent that downloads files, one after the other, over as few connections as possible.
pub(super) fn agent(limits: TimeLimits) -> Agent {
    let silence = Some(limits.silence);
    Agent::config_builder()
        .timeout_resolve(silence)
        .timeout_connect(silence)
        .timeout_recv_response(silence)
        .timeout_per_read(silence)
        .build()
        .new_agent()
}

/// Downloads `file` from `mirror` into a temporary file in `folder`, and verifies it.
///
/// # Errors
///
/// What is wrong with the mirror or with what it sends; then nothing is left in the folder.
pub(super) fn fetch(
    agent: &Agent,
    mirror: &str,
    file: &RemoteFile,
    folder: &Path,
    silence: Duration,
    bar: &ProgressBar,
) -> Result<NamedTempFile, Failure> {
    let expected = file.size;
    let response =
        agent.get(address(mirror, file)).call().map_err(|error| Failure::new(error, silence))?;
    let mut body = response.into_body();
    if let Some(found) = body.content_length()
        && found != expected
    {
        return Err(Failure::Length { found, expected });
    }
    let mut partial = temporary_file(folder, file.name).map_err(Failure::Store)?;
    // One byte more than the file has tells that there is more; the rest is never read.
    let mut bytes = body.as_reader().take(expected + 1);
    let mut buffer = vec![0; 64 << 10];
    let mut received = 0;
    let mut md5 = Md5::new();
    loop {
        let chunk = match bytes.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => &buffer[..count],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                let cause = Box::new(Failure::new(error.into(), silence));
                return Err(Failure::BrokenOff { received, expected, cause });
            }
        };
        md5.update(chunk);
        partial.write_all(chunk).map_err(Failure::Store)?;
        received += chunk.len() as u64;
        bar.set_position(received);
    }
    if received > expected {
        return Err(Failure::TooLong(expected));
    }
    if received < expected {
        return Err(Failure::TooShort { received, expected });
    }
    let found = u128::from_be_bytes(md5.finalize().into());
    if found != file.md5 {
        return Err(Failure::Checksum { found, expected: file.md5 });
    }
    // The bytes must be on the disk before the name is, or a power cut could leave an empty file.
    partial.as_file().sync_all().map_err(Failure::Store)?;
    Ok(partial)
}

/// What the names of a file's partial downloads begin with.
fn prefix(name: &str) -> String {
    format!("{name}.")
}

/// Whether a name is that of a download of this file that is not whole.
pub(super) fn is_partial(name: &str, file: &RemoteFile) -> bool {
    name.starts_with(&prefix(file.name)) && name.ends_with(PARTIAL)
}

/// A new file that disappears unless it is given a name.
fn temporary_file(folder: &Path, name: &str) -> io::Result<NamedTempFile> {
    let prefix = prefix(name);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(PARTIAL);
    // As readable as any other new file, for a folder that several people share.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}

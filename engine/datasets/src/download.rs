//! Downloads the missing files of Fashion-MNIST: from mirrors in turn, within a time limit, and verified.
//!
//! A file that is in the folder, compressed or unpacked, is used and never replaced: it may be the user's own. A
//! download stays in memory until its size and its checksum are right, so a download that fails leaves no file.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use md5::{Digest as _, Md5};
use ureq::{Agent, Body};

use harness::images::{self, missing};
pub use harness::images::{FASHION_MNIST, RemoteFile};
use harness::report::{error_line, file, progress_bar, seconds};

/// How long the mirrors may take. A download that makes progress, however slowly, has no limit.
#[derive(Clone, Copy, Debug)]
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

/// The data set's own site, and its repository.
const PUBLIC: [&str; 2] = [
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
];

/// The web addresses of folders with the files, in the order in which they are tried. By default the public ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrors(pub(crate) Vec<String>);

impl Default for Mirrors {
    fn default() -> Self {
        Self(PUBLIC.map(str::to_owned).to_vec())
    }
}

impl FromStr for Mirrors {
    type Err = String;

    /// Parses web addresses that are separated by spaces.
    fn from_str(text: &str) -> Result<Self, String> {
        let parse = |address: &str| {
            let uri = address.parse::<ureq::http::Uri>().unwrap_or_default();
            let example = "https://mirror.example/fashion-mnist";
            match (uri.scheme_str(), uri.host()) {
                (Some("http" | "https"), Some(host)) if !host.is_empty() => {
                    Ok(address.trim_end_matches('/').to_owned())
                }
                _ => Err(format!("{address:?} is no web address such as {example}")),
            }
        };
        // The error names the empty text.
        let empty = text.trim().is_empty().then_some(text).into_iter();
        empty.chain(text.split_whitespace()).map(parse).collect::<Result<_, _>>().map(Self)
    }
}

/// The reason why a file is not in the folder.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub enum Error {
    /// The folder has another file under the name of one of Fashion-MNIST's, which the user may want.
    OtherFile(String),
    /// No mirror answered.
    NoAnswer(String),
    /// No mirror sent the file, or it cannot be stored.
    Unavailable(String),
}

/// Downloads the `files` that are missing in `folder`. Fails when a file cannot be downloaded or stored.
pub fn obtain(
    folder: &Path,
    files: &[RemoteFile],
    mirrors: &Mirrors,
    limits: TimeLimits,
) -> Result<(), Error> {
    let missing = missing(folder, files).map_err(|error| match error {
        images::Error::Other(message) => Error::OtherFile(message),
        error => Error::Unavailable(format!("{error:#}")),
    })?;
    let megabytes = missing.iter().map(|file| file.size).sum::<u64>() as f64 / 1e6;
    let mut mirrors: Vec<&str> = mirrors.0.iter().map(String::as_str).collect();
    let (deadline, mut untried) = (Instant::now() + limits.answer, mirrors.len() as u32);
    let (mut answered, mut announced) = (false, false);
    for file in missing {
        let mut failures = Vec::new();
        // The mirror that sends a file stays in front, and those that fail go to the end.
        let bytes = loop {
            if failures.len() == mirrors.len() {
                let error = if answered { Error::Unavailable } else { Error::NoAnswer };
                let (name, failures) = (file.name, failures.join("; "));
                return Err(error(format!("cannot download {name}; {failures}")));
            }
            // Until a mirror answers, each gets an equal share of the time that is left.
            let limit = match answered {
                true => limits.silence,
                false => deadline.saturating_duration_since(Instant::now()) / untried.max(1),
            };
            untried = untried.saturating_sub(1);
            let agent = Agent::config_builder()
                .timeout_resolve(Some(limit))
                .timeout_connect(Some(limit))
                .timeout_recv_response(Some(limit))
                .timeout_per_read(Some(limits.silence))
                .build()
                .new_agent();
            let response = agent.get(format!("{}/{}", mirrors[0], file.name)).call();
            answered |= matches!(response, Ok(_) | Err(ureq::Error::StatusCode(_)));
            if response.is_ok() && !std::mem::replace(&mut announced, true) {
                let into = folder.display();
                error_line(format_args!("downloading {megabytes:.1} MB into {into}"));
            }
            let response = response.map_err(|error| reason(error, limit));
            match response.and_then(|it| read(it.into_body(), file, limits.silence)) {
                Ok(bytes) => break bytes,
                Err(reason) => failures.push(format!("from {}: {reason}", mirrors[0])),
            }
            mirrors.rotate_left(1);
        };
        // An offline machine gets no folder.
        fs::create_dir_all(folder)
            .and_then(|()| file::write(&folder.join(file.name), |to| to.write_all(&bytes)))
            .map_err(|error| Error::Unavailable(format!("{}: {error}", folder.display())))?;
    }
    Ok(())
}

/// Reads a file into memory and verifies its size and checksum. Returns the reason if the mirror fails.
fn read(mut body: Body, file: &RemoteFile, silence: Duration) -> Result<Vec<u8>, String> {
    let bar = progress_bar("  {prefix:26} {bar:30} {bytes}/{total_bytes}  {bytes_per_sec}");
    bar.set_prefix(file.name);
    bar.set_length(file.size);
    let (size, mut bytes) = (file.size, Vec::new());
    // The limit is one byte above the size, so a body that is too long shows.
    let read = bar.wrap_read(body.as_reader().take(size + 1)).read_to_end(&mut bytes);
    let (received, expected) = (bytes.len() as u64, file.md5);
    let found = u128::from_be_bytes(Md5::digest(&bytes).into());
    Err(match read {
        Err(error) => {
            let reason = reason(error.into(), silence);
            format!("it broke off after {received} of {size} bytes: {reason}")
        }
        Ok(_) if received > size => format!("it sent more than {size} bytes"),
        Ok(_) if received < size => format!("it sent {received} of {size} bytes"),
        Ok(_) if found == expected => {
            bar.finish();
            return Ok(bytes);
        }
        Ok(_) => format!("it sent other bytes: their MD5 is {found:032x}, not {expected:032x}"),
    })
}

/// The reason why a request failed, in the time `limit` or before.
fn reason(error: ureq::Error, limit: Duration) -> String {
    match error {
        ureq::Error::Timeout(_) => format!("nothing came for {} s", seconds(limit.as_secs_f64())),
        ureq::Error::StatusCode(status) => format!("it answers with HTTP status {status}"),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_and_a_final_slash_does_not_matter() {
        let mirrors: Mirrors = " http://a.example/x/  https://[::1]:80 ".parse().unwrap();
        assert_eq!(mirrors.0, ["http://a.example/x", "https://[::1]:80"]);
        for wrong in ["", "  ", "a.example", "ftp://a.example", "http://", "http:///x", "file:///x"]
        {
            assert!(wrong.parse::<Mirrors>().is_err(), "{wrong:?}");
        }
        assert!(PUBLIC.join(" ").parse::<Mirrors>().unwrap() == Mirrors::default());
    }
}

//! What Fashion-MNIST's files are, and who has them.
//!
//! A mirror is believed in nothing: a file's size and checksum are written down here, so it does not
//! matter who sends it, or over what kind of connection.

use std::fmt;
use std::str::FromStr;

/// A file that can be downloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Its name, in a mirror's address and in a folder.
    pub name: &'static str,
    /// Its size in bytes.
    pub size: u64,
    /// The MD5 of its bytes, as the data set's authors publish it, read as one number.
    pub md5: u128,
}

/// The four files of Fashion-MNIST, the smallest first: by it a mirror is tried out.
pub const FASHION_MNIST: [RemoteFile; 4] = [
    RemoteFile {
        name: "t10k-labels-idx1-ubyte.gz",
        size: 5_148,
        md5: 0xbb300cfdad3c16e7a12a480ee83cd310,
    },
    RemoteFile {
        name: "train-labels-idx1-ubyte.gz",
        size: 29_515,
        md5: 0x25c81989df183df01b3e8a0aad5dffbe,
    },
    RemoteFile {
        name: "t10k-images-idx3-ubyte.gz",
        size: 4_422_102,
        md5: 0xbef4ecab320f06d8554ea6380940ec79,
    },
    RemoteFile {
        name: "train-images-idx3-ubyte.gz",
        size: 26_421_880,
        md5: 0x8d4fb7e6c68d591d4c3dfef9ec88bf0d,
    },
];

/// The data set's own site, and its repository.
const PUBLIC: [&str; 2] = [
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
];

/// Web addresses under which the files can be had, in the order in which they are tried.
///
/// ```
/// # use datasets::mirrors::Mirrors;
/// let mirrors: Mirrors = "http://mirror.example/fashion https://other.example".parse()?;
/// assert_eq!(mirrors.addresses(), ["http://mirror.example/fashion", "https://other.example"]);
/// # Ok::<_, crate::mirrors::NoMirror>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrors(Vec<String>);

impl Mirrors {
    /// The addresses.
    pub fn addresses(&self) -> &[String] {
        &self.0
    }
}

impl Default for Mirrors {
    /// The public ones.
    fn default() -> Self {
        Self(PUBLIC.map(str::to_owned).to_vec())
    }
}

/// A text that is no list of mirrors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no web address such as https://mirror.example/fashion-mnist")]
pub struct NoMirror(String);

impl FromStr for Mirrors {
    type Err = NoMirror;

    /// Reads web addresses that are separated by spaces.
    fn from_str(text: &str) -> Result<Self, NoMirror> {
        let addresses: Vec<String> =
            text.split_whitespace().map(|word| word.trim_end_matches('/').to_owned()).collect();
        match addresses.iter().find(|address| !is_web_address(address)) {
            Some(wrong) => Err(NoMirror(wrong.clone())),
            None if addresses.is_empty() => Err(NoMirror(text.to_owned())),
            None => Ok(Self(addresses)),
        }
    }
}

impl fmt::Display for Mirrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

fn is_web_address(text: &str) -> bool {
    let Ok(uri) = text.parse::<ureq::http::Uri>() else { return false };
    matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.host().is_some_and(|host| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_and_a_final_slash_does_not_matter() {
        let mirrors: Mirrors = " http://a.example/x/  https://[::1]:80 ".parse().unwrap();
        assert_eq!(mirrors.to_string(), "http://a.example/x https://[::1]:80");
        for wrong in ["", "  ", "a.example", "ftp://a.example", "http://", "http:///x", "file:///x"]
        {
            assert!(wrong.parse::<Mirrors>().is_err(), "{wrong:?}");
        }
        assert!(Mirrors::default().to_string().parse::<Mirrors>().is_ok());
    }
}

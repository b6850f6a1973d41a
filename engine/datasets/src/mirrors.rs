//! The files of Fashion-MNIST, and the web addresses that they can be downloaded from.

use std::str::FromStr;

/// A file that can be downloaded. Its size and checksum are known, so a mirror need not be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// The name of the file at a mirror and in a folder.
    pub name: &'static str,
    /// The size in bytes.
    pub size: u64,
    /// The MD5 checksum that the data set's authors publish, as a number.
    pub md5: u128,
}

/// The four files of Fashion-MNIST, the smallest first.
pub const FASHION_MNIST: [RemoteFile; 4] = [
    file("t10k-labels-idx1-ubyte.gz", 5_148, 0xbb300cfdad3c16e7a12a480ee83cd310),
    file("train-labels-idx1-ubyte.gz", 29_515, 0x25c81989df183df01b3e8a0aad5dffbe),
    file("t10k-images-idx3-ubyte.gz", 4_422_102, 0xbef4ecab320f06d8554ea6380940ec79),
    file("train-images-idx3-ubyte.gz", 26_421_880, 0x8d4fb7e6c68d591d4c3dfef9ec88bf0d),
];

const fn file(name: &'static str, size: u64, md5: u128) -> RemoteFile {
    RemoteFile { name, size, md5 }
}

/// The data set's own site, and its repository.
const PUBLIC: [&str; 2] = [
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
];

/// The web addresses of folders with the files, in the order in which they are tried. By default the public ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrors(pub(super) Vec<String>);

impl Default for Mirrors {
    fn default() -> Self {
        Self(PUBLIC.map(str::to_owned).to_vec())
    }
}

impl FromStr for Mirrors {
    type Err = String;

    /// Parses web addresses that are separated by spaces.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut addresses: Vec<&str> = text.split_whitespace().collect();
        if addresses.is_empty() {
            addresses.push(text);
        }
        match addresses.iter().find(|address| !is_web_address(address)) {
            Some(wrong) => Err(format!(
                "{wrong:?} is no web address such as https://mirror.example/fashion-mnist"
            )),
            None => {
                Ok(Self(addresses.iter().map(|it| it.trim_end_matches('/').to_owned()).collect()))
            }
        }
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
        assert_eq!(mirrors.0, ["http://a.example/x", "https://[::1]:80"]);
        for wrong in ["", "  ", "a.example", "ftp://a.example", "http://", "http:///x", "file:///x"]
        {
            assert!(wrong.parse::<Mirrors>().is_err(), "{wrong:?}");
        }
        assert!(PUBLIC.join(" ").parse::<Mirrors>().unwrap() == Mirrors::default());
    }
}

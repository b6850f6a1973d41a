//! The files of Fashion-MNIST as its authors publish them, and those that a folder lacks.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::Path;

use super::idx::{self, Form};
use super::{Error, path_of};

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

impl RemoteFile {
    /// The name of the file when it is unpacked.
    pub fn plain_name(&self) -> &'static str {
        self.name.trim_end_matches(".gz")
    }
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

/// The files that the folder has neither compressed nor unpacked. Fails when a compressed file is not the published one: it may be
/// the user's own, or the part of a download.
pub fn missing<'a>(folder: &Path, files: &'a [RemoteFile]) -> Result<Vec<&'a RemoteFile>, Error> {
    let mut missing = Vec::new();
    for file in files {
        let path = path_of(folder, file.plain_name()).unwrap_or_else(|| folder.join(file.name));
        match bytes_of_another(&path, file.size) {
            Ok(None) => {}
            Ok(Some(found)) => {
                let advice = "remove it to have it downloaded, or name the folder with --data to use what is there";
                let (path, size) = (path.display(), file.size);
                return Err(Error::Other(format!(
                    "{path}: has {found} bytes, and Fashion-MNIST's has {size}; {advice}"
                )));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(file),
            Err(error) => {
                return Err(anyhow::Error::from(error).context(path.display().to_string()).into());
            }
        }
    }
    Ok(missing)
}

/// The number of bytes of a file in the place of a compressed one with `size` bytes. `None` for a file of this size, and for an
/// unpacked one under any name.
fn bytes_of_another(path: &Path, size: u64) -> io::Result<Option<u64>> {
    let found = fs::metadata(path)?;
    let is_unpacked = || match path.extension().is_some_and(|extension| extension == "gz") {
        true => Ok(idx::form(&mut BufReader::new(File::open(path)?))? == Form::Plain),
        false => io::Result::Ok(true),
    };
    let is_right = found.len() == size || found.is_file() && is_unpacked()?;
    Ok((!is_right).then_some(found.len()))
}

//! Reads a folder with the four files of Fashion-MNIST, or of any data set in its format.
//!
//! | file | content |
//! | --- | --- |
//! | `train-images-idx3-ubyte` | training images, 28×28 grey |
//! | `train-labels-idx1-ubyte` | their labels, 0 to 9 |
//! | `t10k-images-idx3-ubyte` | test images |
//! | `t10k-labels-idx1-ubyte` | their labels |
//!
//! Each file may be compressed and have `.gz` at the end of its name. If both files exist, the plain one is read.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use super::{Dataset, DatasetError, Split, idx};

/// Why a folder could not be read. The message names the file, and the error's source has the reason.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One of the four files is missing.
    #[error("{}: no {file}, nor {file}.gz", folder.display())]
    Missing {
        /// The folder.
        folder: PathBuf,
        /// The name of the missing file.
        file: &'static str,
    },
    /// A file cannot be read, or is malformed.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: idx::Error,
    },
    /// Images and labels do not fit together.
    #[error("{}: {images} and {labels}", folder.display())]
    Mismatch {
        /// The folder.
        folder: PathBuf,
        /// The name of the file of images.
        images: &'static str,
        /// The name of the file of labels.
        labels: &'static str,
        /// The reason.
        source: DatasetError,
    },
}

/// Reads one part of the data set in `folder`.
///
/// # Errors
///
/// When a file is missing, unreadable or malformed. The message names it.
pub fn read(folder: &Path, split: Split) -> Result<Dataset, Error> {
    let (images, labels) = match split {
        Split::Train => ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        Split::Test => ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
    };
    Dataset::new(
        read_file(folder, images, idx::read_images)?,
        read_file(folder, labels, idx::read_labels)?,
    )
    .map_err(|source| Error::Mismatch { folder: folder.to_owned(), images, labels, source })
}

fn read_file<R>(
    folder: &Path,
    file: &'static str,
    parse: impl FnOnce(BufReader<File>) -> Result<R, idx::Error>,
) -> Result<R, Error> {
    let candidates = [folder.join(file), folder.join(format!("{file}.gz"))];
    let Some(path) = candidates.into_iter().find(|path| path.is_file()) else {
        return Err(Error::Missing { folder: folder.to_owned(), file });
    };
    let opened = File::open(&path).map_err(idx::Error::from);
    let parsed = opened.and_then(|file| parse(BufReader::new(file)));
    parsed.map_err(|source| Error::File { path, source })
}

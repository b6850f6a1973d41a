//! A folder with the four files of Fashion-MNIST, or of any data set in its format.
//!
//! | file | holds |
//! | --- | --- |
//! | `train-images-idx3-ubyte` | training images, 28×28 grey |
//! | `train-labels-idx1-ubyte` | their labels, 0 to 9 |
//! | `t10k-images-idx3-ubyte` | test images |
//! | `t10k-labels-idx1-ubyte` | their labels |
//!
//! Each may be there plain, or compressed with `.gz` behind its name; a plain one is preferred.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use super::{Dataset, DatasetError, Split, idx};

/// Why a folder could not be read. The message names the file; the error's source says what is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One of the four files is not there.
    #[error("{}: no {file}, nor {file}.gz", folder.display())]
    Missing {
        /// The folder that was looked in.
        folder: PathBuf,
        /// The file's name.
        file: &'static str,
    },
    /// A file cannot be opened.
    #[error("{}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file is malformed.
    #[error("{}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: idx::Error,
    },
    /// Images and labels do not fit together.
    #[error("{} and {}", images.display(), labels.display())]
    Mismatch {
        /// The file of images.
        images: PathBuf,
        /// The file of labels.
        labels: PathBuf,
        /// What does not fit.
        source: DatasetError,
    },
}

fn file_names(split: Split) -> (&'static str, &'static str) {
    match split {
        Split::Train => ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        Split::Test => ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
    }
}

/// Reads one part of the data set in `folder`.
///
/// # Errors
///
/// When a file is missing, unreadable or malformed; the message names it.
pub fn read(folder: &Path, split: Split) -> Result<Dataset, Error> {
    let (images_file, labels_file) = file_names(split);
    let (images_path, images) = read_file(folder, images_file, idx::read_images)?;
    let (labels_path, labels) = read_file(folder, labels_file, idx::read_labels)?;
    Dataset::new(images, labels).map_err(|source| Error::Mismatch {
        images: images_path,
        labels: labels_path,
        source,
    })
}

fn read_file<R>(
    folder: &Path,
    file: &'static str,
    parse: impl FnOnce(BufReader<File>) -> Result<R, idx::Error>,
) -> Result<(PathBuf, R), Error> {
    let plain = folder.join(file);
    let path = if plain.is_file() { plain } else { folder.join(format!("{file}.gz")) };
    if !path.is_file() {
        return Err(Error::Missing { folder: folder.to_owned(), file });
    }
    let opened = File::open(&path).map_err(|source| Error::Open { path: path.clone(), source })?;
    match parse(BufReader::new(opened)) {
        Ok(parsed) => Ok((path, parsed)),
        Err(source) => Err(Error::Malformed { path, source }),
    }
}

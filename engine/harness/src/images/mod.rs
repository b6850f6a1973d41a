//! Reads a folder with the four files of Fashion-MNIST, or of any data set in its format.
//!
//! `train-images-idx3-ubyte` and `t10k-images-idx3-ubyte` hold grey images of 28×28 pixels, and `train-labels-idx1-ubyte` and
//! `t10k-labels-idx1-ubyte` their labels, 0 to 9. A name may end with `.gz`. The content decides whether a file is compressed.
//! Mirrors of MNIST write a dot: `train-images.idx3-ubyte`.

pub mod idx;
mod published;

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use itertools::Itertools as _;

use idx::Items::{self, Images, Labels};
pub use published::{FASHION_MNIST, RemoteFile, missing};

/// The height and the width of an image in pixels.
pub const SIDE: usize = 28;

/// The number of pixels of an image.
pub const PIXELS: usize = SIDE * SIDE;

/// The number of classes.
pub const CLASSES: usize = 10;

/// The two parts of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The images to train on.
    Train,
    /// The images to measure accuracy on. No run trains on them.
    Test,
}

/// The reason why a folder was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One of the four files is missing: a message with the folder, the file and the files that are there.
    #[error("{0}")]
    Missing(String),
    /// The folder has another file under the name of a published one: a message with the file and its size.
    #[error("{0}")]
    Other(String),
    /// A file, which the message names, cannot be read or is malformed, or images and labels do not fit together.
    #[error(transparent)]
    Unusable(#[from] anyhow::Error),
}

impl Split {
    /// The files of this part with their kinds, images first.
    fn files(self) -> [(&'static str, Items); 2] {
        match self {
            Self::Train => {
                [("train-images-idx3-ubyte", Images), ("train-labels-idx1-ubyte", Labels)]
            }
            Self::Test => [("t10k-images-idx3-ubyte", Images), ("t10k-labels-idx1-ubyte", Labels)],
        }
    }
}

/// The number of images in one part of the data set in `folder`, by the headers of its files.
pub fn count(folder: &Path, split: Split) -> Result<usize, Error> {
    let [images, labels] = split.files();
    let count = |(file, items)| with_file(folder, file, |bytes| idx::count(bytes, items));
    let counts = (count(images)?, count(labels)?);
    if counts.0 == counts.1 {
        return Ok(counts.0);
    }
    let error = anyhow!("{} images, but {} labels", counts.0, counts.1);
    Err(error.context(format!("{}: {} and {}", folder.display(), images.0, labels.0)).into())
}

/// Reads the first images of one part of the data set in `folder`, at most `most`: the pixels of all images, and the labels.
pub fn read(folder: &Path, split: Split, most: usize) -> Result<(Vec<u8>, Vec<u8>), Error> {
    count(folder, split)?;
    let [images, labels] = split
        .files()
        .map(|(file, items)| with_file(folder, file, |bytes| idx::read(bytes, items, most)));
    Ok((images?, labels?))
}

fn with_file<R>(
    folder: &Path,
    file: &str,
    parse: impl FnOnce(BufReader<File>) -> anyhow::Result<R>,
) -> Result<R, Error> {
    let Some(path) = path_of(folder, file) else {
        let (place, found) = (folder.display(), found(folder, file));
        return Err(Error::Missing(format!("{place}: no {file}, nor {file}.gz; {found}")));
    };
    let opened = File::open(&path).context(idx::UNREADABLE);
    let parsed = opened.and_then(|file| parse(BufReader::new(file)));
    Ok(parsed.with_context(|| path.display().to_string())?)
}

/// The path of a file in a folder, under the first of its names that is there.
fn path_of(folder: &Path, file: &str) -> Option<PathBuf> {
    paths(folder, file).into_iter().find(|path| path.is_file())
}

/// The paths under which a file may be in a folder: with a hyphen or a dot, plain or compressed. Plain files come first.
fn paths(folder: &Path, file: &str) -> [PathBuf; 4] {
    let dotted = file.replace("-idx", ".idx");
    [file, &dotted, &format!("{file}.gz"), &format!("{dotted}.gz")].map(|name| folder.join(name))
}

/// Describes a folder without this file.
fn found(folder: &Path, file: &str) -> String {
    match paths(folder, file).into_iter().find(|path| path.exists()) {
        Some(path) if path.is_dir() => format!("{} is a folder", path.display()),
        Some(path) => format!("{} is not a regular file", path.display()),
        None => match others(folder, &[]) {
            names if names.is_empty() => "the folder is empty".to_owned(),
            names => format!("there are {names}"),
        },
    }
}

/// The names in a folder that are not names of these files, in one text: the first few.
pub fn others(folder: &Path, files: &[&str]) -> String {
    const SHOWN: usize = 5;
    let known: Vec<PathBuf> = files.iter().flat_map(|file| paths(folder, file)).collect();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let others = entries.filter(|entry| !known.contains(&entry.path()));
    let names: Vec<_> = others.map(|it| it.file_name().display().to_string()).sorted().collect();
    match names.split_at_checked(SHOWN) {
        Some((shown, more @ [_, ..])) => format!("{} and {} more", shown.join(", "), more.len()),
        _ => names.join(", "),
    }
}

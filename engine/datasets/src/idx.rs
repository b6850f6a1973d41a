//! The IDX file format of MNIST and its successors, plain or compressed with gzip.
//!
//! A file of images has a magic number (0x0803), the number of images, rows and columns, and one byte per pixel. A file of
//! labels has a magic number (0x0801), the number of labels, and one byte per label. Each number has four bytes, the
//! highest first.
//!
//! The reader does not trust a file. It checks every number, and allocates memory only for bytes that it has read. So a
//! header that announces four billion images costs nothing. The reader reads at most one byte more than the header
//! announces. So an endless file costs nothing, and neither does a small file that unpacks to a huge one.

use std::io::{BufRead, Read};

use flate2::bufread::GzDecoder;

use super::{CLASSES, PIXELS, SIDE};

const IMAGES_MAGIC: u32 = 0x0000_0803;
const LABELS_MAGIC: u32 = 0x0000_0801;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The most images or labels of one file: a limit on memory. This number of images has 784 MB, and reading them takes up
/// to three times as much.
pub const MAX_COUNT: u32 = 1_000_000;

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes cannot be read or uncompressed.
    #[error("cannot be read")]
    Read(#[from] std::io::Error),
    /// The file is shorter than a header.
    #[error("ends within its header")]
    Header,
    /// The first four bytes belong to another kind of file.
    #[error("starts with {found:#010x}; a file of {expected} starts with {magic:#010x}")]
    Magic {
        /// The number at the beginning of the file.
        found: u32,
        /// `images` or `labels`.
        expected: &'static str,
        /// The number of this kind of file.
        magic: u32,
    },
    /// The header announces no items, or more than [`MAX_COUNT`].
    #[error("announces {0} items; 1 to {MAX_COUNT} are possible")]
    Count(u32),
    /// The images are not 28×28.
    #[error("holds images of {rows}×{cols} pixels; {SIDE}×{SIDE} are needed")]
    ImageSize {
        /// Rows of an image.
        rows: u32,
        /// Columns of an image.
        cols: u32,
    },
    /// The file is shorter than its header says.
    #[error("ends after {found} of the {expected} bytes that its header announces")]
    Truncated {
        /// The number of bytes after the header.
        found: usize,
        /// The number of bytes that the header announces.
        expected: usize,
    },
    /// The file is longer than its header says.
    #[error("goes on after the {0} bytes that its header announces")]
    Trailing(usize),
    /// There are bytes after the compressed data.
    #[error("goes on after its compressed data")]
    TrailingCompressed,
    /// A label is not one of the classes.
    #[error("label {position} is {label}; labels are 0 to {}", CLASSES - 1)]
    Label {
        /// The position of the label in the file, from 0.
        position: usize,
        /// The value of the label.
        label: u8,
    },
}

/// Reads a file of 28×28 images.
///
/// # Errors
///
/// When something is wrong with the file: see [`Error`].
pub fn read_images(file: impl BufRead) -> Result<Vec<[u8; PIXELS]>, Error> {
    with_plain(file, |plain| {
        let count = read_header(plain, "images", IMAGES_MAGIC)?;
        let (rows, cols) = (read_u32(plain)?, read_u32(plain)?);
        if (rows as usize, cols as usize) != (SIDE, SIDE) {
            return Err(Error::ImageSize { rows, cols });
        }
        let pixels = read_body(plain, count as usize * PIXELS)?;
        Ok(pixels.as_chunks::<PIXELS>().0.to_vec())
    })
}

/// Reads a file of labels.
///
/// # Errors
///
/// When something is wrong with the file: see [`Error`].
pub fn read_labels(file: impl BufRead) -> Result<Vec<u8>, Error> {
    with_plain(file, |plain| {
        let count = read_header(plain, "labels", LABELS_MAGIC)?;
        let labels = read_body(plain, count as usize)?;
        match labels.iter().position(|&label| usize::from(label) >= CLASSES) {
            Some(position) => Err(Error::Label { position, label: labels[position] }),
            None => Ok(labels),
        }
    })
}

/// Calls `parse` with the uncompressed bytes of a file.
fn with_plain<R>(
    mut file: impl BufRead,
    parse: impl FnOnce(&mut dyn Read) -> Result<R, Error>,
) -> Result<R, Error> {
    if !file.fill_buf()?.starts_with(&GZIP_MAGIC) {
        return parse(&mut file);
    }
    let mut decoder = GzDecoder::new(file);
    let parsed = parse(&mut decoder)?;
    if decoder.into_inner().fill_buf()?.is_empty() {
        Ok(parsed)
    } else {
        Err(Error::TrailingCompressed)
    }
}

fn read_u32(bytes: &mut dyn Read) -> Result<u32, Error> {
    let mut word = [0; 4];
    bytes.read_exact(&mut word).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => Error::Header,
        _ => Error::Read(error),
    })?;
    Ok(u32::from_be_bytes(word))
}

fn read_header(bytes: &mut dyn Read, expected: &'static str, magic: u32) -> Result<u32, Error> {
    let found = read_u32(bytes)?;
    if found != magic {
        return Err(Error::Magic { found, expected, magic });
    }
    let count = read_u32(bytes)?;
    if !(1..=MAX_COUNT).contains(&count) {
        return Err(Error::Count(count));
    }
    Ok(count)
}

/// Reads exactly `expected` bytes, and checks that no byte follows.
fn read_body(bytes: &mut dyn Read, expected: usize) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    // The body grows with the bytes that arrive. The limit is one byte above the expected size, so a longer file shows.
    bytes.take(expected as u64 + 1).read_to_end(&mut body)?;
    match body.len() {
        found if found < expected => Err(Error::Truncated { found, expected }),
        found if found > expected => Err(Error::Trailing(expected)),
        _ => Ok(body),
    }
}

//! The IDX file format of MNIST and its successors, plain or compressed with gzip.
//!
//! A file of images is a magic number (0x0803), the number of images, rows and columns, each four bytes
//! with the highest first, then one byte a pixel. A file of labels is a magic number (0x0801), the number
//! of labels, then one byte a label.
//!
//! A file is an outsider. Nothing it says is believed before it is checked, and memory is taken only for
//! bytes that are really there: a header that promises four billion images costs nothing. Nor does a file
//! that goes on for ever, or a small one that unpacks to a huge one: one byte more than was announced is
//! read, and no other.

use std::io::{BufRead, Read};

use flate2::bufread::GzDecoder;

use super::{CLASSES, PIXELS, SIDE};

const IMAGES_MAGIC: u32 = 0x0000_0803;
const LABELS_MAGIC: u32 = 0x0000_0801;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The most images (or labels) one file may hold: a limit on memory. That many
/// images have 784 MB, and reading them takes up to three times as much for a moment.
pub const MAX_COUNT: u32 = 1_000_000;

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes could not be read or uncompressed.
    #[error("cannot be read")]
    Read(#[from] std::io::Error),
    /// The file is shorter than a header.
    #[error("ends within its header")]
    Header,
    /// The first four bytes name another kind of file.
    #[error("starts with {found:#010x}; a file of {expected} starts with {magic:#010x}")]
    Magic {
        /// The number the file starts with.
        found: u32,
        /// `images` or `labels`.
        expected: &'static str,
        /// The number it should start with.
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
        /// Bytes after the header.
        found: usize,
        /// Bytes that should be there.
        expected: usize,
    },
    /// The file is longer than its header says.
    #[error("goes on after the {0} bytes that its header announces")]
    Trailing(usize),
    /// Something follows the compressed data.
    #[error("goes on after its compressed data")]
    TrailingCompressed,
    /// A label is not one of the classes.
    #[error("label {position} is {label}; labels are 0 to {}", CLASSES - 1)]
    Label {
        /// Its place in the file, from 0.
        position: usize,
        /// Its value.
        label: u8,
    },
}

/// Reads a file of 28×28 images.
///
/// # Errors
///
/// Whatever is wrong with the file: see [`Error`].
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
/// Whatever is wrong with the file: see [`Error`].
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

/// Hands `parse` the uncompressed bytes, whichever way the file is stored.
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

/// Reads exactly `expected` bytes and makes sure that nothing follows.
fn read_body(bytes: &mut dyn Read, expected: usize) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    // Grows with what arrives, not with what was announced; one byte more tells whether there is more.
    bytes.take(expected as u64 + 1).read_to_end(&mut body)?;
    match body.len() {
        found if found < expected => Err(Error::Truncated { found, expected }),
        found if found > expected => Err(Error::Trailing(expected)),
        _ => Ok(body),
    }
}

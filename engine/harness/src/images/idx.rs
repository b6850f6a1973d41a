//! The IDX file format of MNIST and its successors, plain or compressed with gzip.
//!
//! A file of images has a magic number (0x0803), the number of images, rows and columns, and one byte per pixel. A file of labels
//! has a magic number (0x0801), the number of labels, and one byte per label. A number has four bytes, the highest first.
//!
//! The reader does not trust a file. It checks every number, and reads at most one byte more than the header announces: neither a
//! huge count nor a small file that unpacks to a huge one costs much.

use std::cmp::Ordering;
use std::io::{self, BufRead, Read};

use anyhow::{Context as _, Result, bail, ensure};
use flate2::bufread::MultiGzDecoder;

use super::{CLASSES, PIXELS, SIDE};

const IMAGES_MAGIC: u32 = 0x0000_0803;
const LABELS_MAGIC: u32 = 0x0000_0801;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The message about bytes that cannot be read or uncompressed. The error's source has the reason.
pub(super) const UNREADABLE: &str = "cannot be read";

/// The most images or labels of one file: a limit on memory. This number of images has 784 MB.
pub const MAX_COUNT: u32 = 1_000_000;

/// Reads a file of 28×28 images. Fails when the file is malformed.
pub fn read_images(file: impl BufRead) -> Result<Vec<[u8; PIXELS]>> {
    with_plain(file, |plain| {
        let count = read_header(plain, "images", IMAGES_MAGIC)?;
        let (rows, cols) = (read_u32(plain)?, read_u32(plain)?);
        ensure!(
            (rows as usize, cols as usize) == (SIDE, SIDE),
            "holds images of {rows}×{cols} pixels; {SIDE}×{SIDE} are needed"
        );
        let pixels = read_body(plain, count as usize * PIXELS)?;
        Ok(pixels.as_chunks::<PIXELS>().0.to_vec())
    })
}

/// Reads a file of labels. Fails when the file is malformed.
pub fn read_labels(file: impl BufRead) -> Result<Vec<u8>> {
    with_plain(file, |plain| {
        let count = read_header(plain, "labels", LABELS_MAGIC)?;
        let labels = read_body(plain, count as usize)?;
        match (0..).zip(&labels).find(|&(_, &label)| usize::from(label) >= CLASSES) {
            Some((at, label)) => bail!("label {at} is {label}; labels are 0 to {}", CLASSES - 1),
            None => Ok(labels),
        }
    })
}

/// Whether a file is compressed with gzip: its content decides, and not its name.
pub fn is_packed(file: &mut impl BufRead) -> io::Result<bool> {
    Ok(file.fill_buf()?.starts_with(&GZIP_MAGIC))
}

/// Calls `parse` with the uncompressed bytes of a file. A file may have several gzip members.
fn with_plain<R>(
    mut file: impl BufRead,
    parse: impl FnOnce(&mut dyn Read) -> Result<R>,
) -> Result<R> {
    match is_packed(&mut file).context(UNREADABLE)? {
        true => parse(&mut MultiGzDecoder::new(file)),
        false => parse(&mut file),
    }
}

fn read_u32(bytes: &mut dyn Read) -> Result<u32> {
    let mut word = [0; 4];
    let read = bytes.read_exact(&mut word);
    let is_short = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
    ensure!(!read.as_ref().is_err_and(is_short), "ends within its header");
    read.context(UNREADABLE).map(|()| u32::from_be_bytes(word))
}

fn read_header(bytes: &mut dyn Read, expected: &'static str, magic: u32) -> Result<u32> {
    let found = read_u32(bytes)?;
    if found != magic {
        bail!("starts with {found:#010x}; a file of {expected} starts with {magic:#010x}");
    }
    match read_u32(bytes)? {
        count @ 1..=MAX_COUNT => Ok(count),
        count => bail!("announces {count} items; 1 to {MAX_COUNT} are possible"),
    }
}

/// Reads exactly `expected` bytes, and checks that no byte follows.
fn read_body(bytes: &mut dyn Read, expected: usize) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    // The body grows with the bytes that arrive. The limit is one byte above the expected size, so a longer file shows.
    bytes.take(expected as u64 + 1).read_to_end(&mut body).context(UNREADABLE)?;
    let announced = format!("{expected} bytes that its header announces");
    match body.len().cmp(&expected) {
        Ordering::Less => bail!("ends after {} of the {announced}", body.len()),
        Ordering::Greater => bail!("goes on after the {announced}"),
        Ordering::Equal => Ok(body),
    }
}

//! The IDX file format of MNIST and its successors, plain or compressed with gzip.
//!
//! A file of images has a magic number (0x0803), the number of images, rows and columns, and one byte per pixel. A file of labels
//! has a magic number (0x0801), the number of labels, and one byte per label. A number has four bytes, the highest first.
//!
//! The reader does not trust a file. It checks every number, and reads at most one byte more than the header announces: neither a
//! huge count nor a small file that unpacks to a huge one costs much. It reads the items that are asked for, and nothing behind them.

use std::cmp::Ordering;
use std::io::{self, BufRead, Read};

use anyhow::{Context as _, Result, bail, ensure};
use flate2::bufread::MultiGzDecoder;

use super::{CLASSES, PIXELS, SIDE};

/// The message about bytes that cannot be read or uncompressed. The error's source has the reason.
pub(super) const UNREADABLE: &str = "cannot be read";

/// The most images or labels of one file: a limit on memory. This number of images has 784 MB.
pub const MAX_COUNT: u32 = 1_000_000;

/// The kind of the items in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Items {
    /// Images of 28×28 pixels.
    Images,
    /// The classes of images.
    Labels,
}

impl Items {
    /// The magic number, the name, and the bytes of one item.
    fn facts(self) -> (u32, &'static str, usize) {
        match self {
            Self::Images => (0x0000_0803, "images", PIXELS),
            Self::Labels => (0x0000_0801, "labels", 1),
        }
    }
}

/// The number of items that the header of a file announces. Fails when the header is malformed.
pub fn count(file: impl BufRead, items: Items) -> Result<usize> {
    with_plain(file, |plain| read_header(plain, items))
}

/// Reads the first items of a file, at most `most`: the pixels of all images, or the labels. Fails when the file is malformed. If
/// all items are read, nothing may follow them.
pub fn read(file: impl BufRead, items: Items, most: usize) -> Result<Vec<u8>> {
    let (_, _, size) = items.facts();
    with_plain(file, |plain| {
        let count = read_header(plain, items)?;
        let body = read_body(plain, size * count, size * count.min(most))?;
        let is_outside = |byte: &u8| usize::from(*byte) >= CLASSES;
        if items == Items::Labels
            && let Some(at) = body.iter().position(is_outside)
        {
            bail!("label {at} is {}; labels are 0 to {}", body[at], CLASSES - 1);
        }
        Ok(body)
    })
}

/// The form of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Compressed with gzip.
    Packed,
    /// With a magic number of IDX.
    Plain,
    /// Neither.
    Other,
}

/// The form of a file. Its first two bytes decide, and not its name.
pub fn form(file: &mut impl BufRead) -> io::Result<Form> {
    Ok(match file.fill_buf()? {
        [0x1f, 0x8b, ..] => Form::Packed,
        [0, 0, ..] => Form::Plain,
        _ => Form::Other,
    })
}

/// Calls `parse` with the uncompressed bytes of a file. A file may have several gzip members.
fn with_plain<R>(
    mut file: impl BufRead,
    parse: impl FnOnce(&mut dyn Read) -> Result<R>,
) -> Result<R> {
    match form(&mut file).context(UNREADABLE)? {
        Form::Packed => parse(&mut MultiGzDecoder::new(file)),
        Form::Plain | Form::Other => parse(&mut file),
    }
}

fn read_u32(bytes: &mut dyn Read) -> Result<u32> {
    let mut word = [0; 4];
    let read = bytes.read_exact(&mut word);
    let is_short = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
    ensure!(!read.as_ref().is_err_and(is_short), "ends within its header");
    read.context(UNREADABLE).map(|()| u32::from_be_bytes(word))
}

fn read_header(bytes: &mut dyn Read, items: Items) -> Result<usize> {
    let (magic, name, _) = items.facts();
    let found = read_u32(bytes)?;
    if found != magic {
        bail!("starts with {found:#010x}; a file of {name} starts with {magic:#010x}");
    }
    let count = match read_u32(bytes)? {
        count @ 1..=MAX_COUNT => count as usize,
        count => bail!("announces {count} items; 1 to {MAX_COUNT} are possible"),
    };
    if items == Items::Images {
        let (rows, cols) = (read_u32(bytes)?, read_u32(bytes)?);
        ensure!(
            (rows as usize, cols as usize) == (SIDE, SIDE),
            "holds images of {rows}×{cols} pixels; {SIDE}×{SIDE} are needed"
        );
    }
    Ok(count)
}

/// Reads the first `wanted` bytes of a body of `announced` bytes. Behind a body that is read whole, no byte follows.
fn read_body(bytes: &mut dyn Read, announced: usize, wanted: usize) -> Result<Vec<u8>> {
    // The limit is one byte above the announced size, so a longer file shows.
    let limit = wanted + usize::from(wanted == announced);
    // Memory in which a short file writes nothing costs nothing. A body that grew would take twice its size.
    let mut body = Vec::with_capacity(limit);
    bytes.take(limit as u64).read_to_end(&mut body).context(UNREADABLE)?;
    let announced = format!("{announced} bytes that its header announces");
    match body.len().cmp(&wanted) {
        Ordering::Less => bail!("ends after {} of the {announced}", body.len()),
        Ordering::Greater => bail!("goes on after the {announced}"),
        Ordering::Equal => Ok(body),
    }
}

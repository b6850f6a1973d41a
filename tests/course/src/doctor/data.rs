//! The images of Fashion-MNIST in the folder of a run without `--data-dir`, counted. The crate `datasets` reads the same files for
//! training, but needs candle.

use std::env;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy as _;
use flate2::read::MultiGzDecoder;
use harness::cli::DATA_FOLDER;
use harness::report::thousands;

use super::Finding;

/// Bytes of an image.
const PIXELS: usize = 28 * 28;

/// A larger number of images is a mistake in a header.
const MOST: usize = 1_000_000;

pub(super) fn data() -> Finding {
    let seen = match folder() {
        None => Err(format!("this machine names no folder for downloads; {DATA_FOLDER} can")),
        Some(folder) => images_in(&folder),
    };
    Finding { what: "Fashion-MNIST", seen }
}

/// The folder of a run without `--data-dir`.
fn folder() -> Option<PathBuf> {
    let named = env::var_os(DATA_FOLDER).map(PathBuf::from);
    named.or_else(|| {
        let platform = etcetera::choose_base_strategy().ok()?;
        Some(platform.cache_dir().join("multi-gpu-course").join("fashion-mnist"))
    })
}

fn images_in(folder: &Path) -> Result<String, String> {
    let count = |split: &str| -> Result<usize, String> {
        let [images, labels] =
            [("images-idx3-ubyte", 3), ("labels-idx1-ubyte", 1)].map(|(name, dimensions)| {
                let path = find(folder, &format!("{split}-{name}")).ok_or_else(|| {
                    format!(
                        "not in {}: a run tries to download it, and else uses synthetic garments",
                        folder.display()
                    )
                })?;
                items(&path, dimensions).map_err(|error| format!("{}: {error}", path.display()))
            });
        match (images?, labels?) {
            (images, labels) if images == labels => Ok(images),
            (images, labels) => {
                Err(format!("{}, {split}: {images} images, but {labels} labels", folder.display()))
            }
        }
    };
    let [train, test] = ["train", "t10k"].map(|split| count(split).map(thousands));
    Ok(format!("{}: {} training and {} test images", folder.display(), train?, test?))
}

/// A file under one of the names that mirrors give it: with a hyphen or a dot, plain or compressed.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let dotted = name.replace("-idx", ".idx");
    let names = [name.to_owned(), dotted.clone(), format!("{name}.gz"), format!("{dotted}.gz")];
    names.map(|name| folder.join(name)).into_iter().find(|path| path.is_file())
}

/// The number of images or labels in an IDX file, which has so many dimensions. Fails when the header and the bytes do not
/// fit together.
fn items(path: &Path, dimensions: u8) -> io::Result<usize> {
    let file = BufReader::new(File::open(path)?);
    let is_compressed = path.extension().is_some_and(|extension| extension == "gz");
    let mut bytes: Box<dyn Read> =
        if is_compressed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    let mut word = || {
        let mut word = [0; 4];
        bytes.read_exact(&mut word).map(|()| u32::from_be_bytes(word))
    };
    let (magic, count) = (word()?, word()? as usize);
    let sides: Vec<u32> = (1..dimensions).map(|_| word()).collect::<io::Result<_>>()?;
    let is_right = magic == 0x0800 + u32::from(dimensions) && sides.iter().all(|side| *side == 28);
    if !is_right || !(1..=MOST).contains(&count) {
        return Err(io::Error::other("its header is not that of 28×28 images or their labels"));
    }
    let expected = if dimensions == 1 { count } else { count * PIXELS };
    let found = io::copy(&mut bytes.take(expected as u64 + 1), &mut io::sink())? as usize;
    match found {
        found if found == expected => Ok(count),
        found if found < expected => Err(io::Error::other(format!(
            "ends after {found} of the {expected} bytes that its header announces"
        ))),
        _ => Err(io::Error::other(format!(
            "goes on after the {expected} bytes that its header announces"
        ))),
    }
}

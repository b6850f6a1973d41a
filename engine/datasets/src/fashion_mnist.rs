//! A data set from a folder with the four files of Fashion-MNIST, or with files of the same format.

use std::path::Path;

use harness::images::{self, Error};

use super::{Dataset, Split};

/// Reads one part of the data set in `folder`. Fails when a file, which the message names, is missing or malformed.
pub fn read(folder: &Path, split: Split) -> Result<Dataset, Error> {
    let (images, labels) = images::read(folder, split)?;
    Ok(Dataset::new(images, labels).map_err(anyhow::Error::from)?)
}

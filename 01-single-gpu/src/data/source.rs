//! Where the images come from: what `--data` means.

use std::fmt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::{Dataset, Split, fashion_mnist, synthetic};

/// The seed of the synthetic garments. It is not the run's seed: like any data set, they stay the same
/// whatever is trained on them.
const GARMENTS_SEED: u64 = 1;

/// Images in each part of Fashion-MNIST, and so in the synthetic stand-in.
const FULL_SIZE: (usize, usize) = (60_000, 10_000);

/// Which data set a run asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataSource {
    /// Garments drawn by this program.
    Synthetic,
    /// A folder in Fashion-MNIST's format.
    Folder(PathBuf),
}

impl DataSource {
    /// Reads a `--data` argument: `auto`, `synthetic`, or the name of a folder.
    pub fn parse(argument: &str) -> Self {
        match argument {
            "auto" | "synthetic" => Self::Synthetic,
            folder => Self::Folder(PathBuf::from(folder)),
        }
    }

    /// Loads both parts, the first `limits.0` training images and the first `limits.1` test images.
    ///
    /// # Errors
    ///
    /// When a folder's files are missing or malformed.
    pub fn load(
        &self,
        limits: (Option<usize>, Option<usize>),
    ) -> Result<LoadedData, fashion_mnist::Error> {
        let part = |split, limit: Option<usize>, full| match self {
            Self::Synthetic => Ok(draw(split, limit.unwrap_or(full))),
            Self::Folder(folder) => {
                let mut dataset = fashion_mnist::read(folder, split)?;
                dataset.truncate(limit.unwrap_or(usize::MAX));
                Ok(dataset)
            }
        };
        Ok(LoadedData {
            name: self.to_string(),
            train: part(Split::Train, limits.0, FULL_SIZE.0)?,
            test: part(Split::Test, limits.1, FULL_SIZE.1)?,
        })
    }
}

impl fmt::Display for DataSource {
    /// The name that result lines give the data: `synthetic garments`, or the folder's own name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Synthetic => f.write_str("synthetic garments"),
            Self::Folder(folder) => f.write_str(&folder_name(folder)),
        }
    }
}

fn folder_name(folder: &Path) -> String {
    let absolute = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    absolute.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned()
}

/// Both parts of a data set, and what to call it.
#[derive(Clone, Debug)]
pub struct LoadedData {
    /// What result lines call it.
    pub name: String,
    /// What is trained on.
    pub train: Dataset,
    /// What accuracy is measured on.
    pub test: Dataset,
}

fn draw(split: Split, count: usize) -> Dataset {
    let count = count.max(1) as u64;
    let images = (0..count)
        .into_par_iter()
        .map(|index| synthetic::draw(GARMENTS_SEED, split, index))
        .collect();
    let labels = (0..count).map(synthetic::label).collect();
    Dataset::new(images, labels).expect("as many labels as images, all of them classes")
}

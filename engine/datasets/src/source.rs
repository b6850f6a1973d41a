//! Where the images come from: what `--data` means.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::download::TimeLimits;
use super::mirrors::{FASHION_MNIST, Mirrors};
use super::{Dataset, Split, cache, fashion_mnist, synthetic};

/// Images in each part of Fashion-MNIST, and so in the synthetic stand-in.
const FULL_SIZE: (usize, usize) = (60_000, 10_000);

/// What result lines call the real images, and the drawn ones.
const NAMES: (&str, &str) = ("Fashion-MNIST", "synthetic garments");

/// Which data set a run asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataSource {
    /// Fashion-MNIST where it is on this machine or can be downloaded, else synthetic garments.
    Auto,
    /// Fashion-MNIST, and nothing else.
    FashionMnist,
    /// Garments drawn by this program.
    Synthetic,
    /// A folder in Fashion-MNIST's format.
    Folder(PathBuf),
}

/// Where Fashion-MNIST is kept, and where it comes from.
#[derive(Clone, Debug)]
pub struct Supply {
    /// The folder it is kept in; `None` where the platform names none.
    pub folder: Option<PathBuf>,
    /// Who has it.
    pub mirrors: Mirrors,
}

/// Why there is no data.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A folder's files are missing or malformed.
    #[error(transparent)]
    Files(#[from] fashion_mnist::Error),
    /// Fashion-MNIST is neither here nor to be had.
    #[error("Fashion-MNIST: {0}")]
    Supply(cache::Error),
}

impl DataSource {
    /// Reads a `--data` argument: `auto`, `fashion-mnist`, `synthetic`, or the name of a folder. A folder
    /// that is called like one of these can be named `./synthetic`.
    pub fn parse(argument: &OsStr) -> Self {
        match argument.to_str() {
            Some("auto") => Self::Auto,
            Some("fashion-mnist") => Self::FashionMnist,
            Some("synthetic") => Self::Synthetic,
            _ => Self::Folder(PathBuf::from(argument)),
        }
    }

    /// Loads both parts, the first `limits.0` training images and the first `limits.1` test images.
    ///
    /// # Errors
    ///
    /// When files are missing or malformed, or Fashion-MNIST is insisted on and cannot be had.
    pub fn load(
        &self,
        supply: &Supply,
        limits: (Option<usize>, Option<usize>),
    ) -> Result<LoadedData, Error> {
        match self {
            Self::Auto => match fetched(supply, TimeLimits::NICE_TO_HAVE) {
                Ok(folder) => Ok(read(folder, NAMES.0.to_owned(), limits)?),
                Err(error @ cache::Error::OtherFile { .. }) => Err(Error::Supply(error)),
                Err(error) => {
                    let note = format!(
                        "{} is not on this machine and cannot be had ({error}): using {}",
                        NAMES.0, NAMES.1
                    );
                    Ok(LoadedData { note: Some(note), ..garments(limits) })
                }
            },
            Self::FashionMnist => {
                let folder = fetched(supply, TimeLimits::NEEDED).map_err(Error::Supply)?;
                Ok(read(folder, NAMES.0.to_owned(), limits)?)
            }
            Self::Synthetic => Ok(garments(limits)),
            Self::Folder(folder) => Ok(read(folder, folder_name(folder), limits)?),
        }
    }
}

/// The folder with Fashion-MNIST in it.
fn fetched(supply: &Supply, limits: TimeLimits) -> Result<&Path, cache::Error> {
    let folder = supply.folder.as_deref().ok_or(cache::Error::NoFolder)?;
    cache::obtain(folder, &FASHION_MNIST, &supply.mirrors, limits)?;
    Ok(folder)
}

fn read(
    folder: &Path,
    name: String,
    limits: (Option<usize>, Option<usize>),
) -> Result<LoadedData, fashion_mnist::Error> {
    let part = |split, limit: Option<usize>| {
        let mut dataset = fashion_mnist::read(folder, split)?;
        dataset.truncate(limit.unwrap_or(usize::MAX));
        Ok(dataset)
    };
    let (train, test) = (part(Split::Train, limits.0)?, part(Split::Test, limits.1)?);
    Ok(LoadedData { name, note: None, train, test })
}

fn garments(limits: (Option<usize>, Option<usize>)) -> LoadedData {
    LoadedData {
        name: NAMES.1.to_owned(),
        note: None,
        train: synthetic::dataset(Split::Train, limits.0.unwrap_or(FULL_SIZE.0)),
        test: synthetic::dataset(Split::Test, limits.1.unwrap_or(FULL_SIZE.1)),
    }
}

fn folder_name(folder: &Path) -> String {
    let absolute = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let name = absolute.file_name().unwrap_or(folder.as_os_str()).to_string_lossy();
    // A name may have anything in it: an escape sequence for a terminal, or what no SVG may hold.
    name.replace(char::is_control, "\u{fffd}")
}

/// Both parts of a data set, and what to call it.
#[derive(Clone, Debug)]
pub struct LoadedData {
    /// What result lines call it.
    pub name: String,
    /// What the user should know about where it comes from.
    pub note: Option<String>,
    /// What is trained on.
    pub train: Dataset,
    /// What accuracy is measured on.
    pub test: Dataset,
}

//! Loads the images that `--data` asks for.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;

use super::download::{self, FASHION_MNIST, Mirrors, TimeLimits};
use super::{CLASSES, Dataset, GUESSING, SAMPLE, Split, synthetic};
use harness::cli::{DATA_FOLDER, DATA_MIRRORS, UsageError};
use harness::records::Unit;
use harness::{images, machine};

/// The number of images in the two parts of Fashion-MNIST, and of synthetic garments.
const FULL_SIZE: (usize, usize) = (60_000, 10_000);

/// The names of the real and of the drawn images in result lines.
const REAL: &str = "Fashion-MNIST";
const DRAWN: &str = "synthetic garments";

/// The number of training and test images to load: the first ones. `None` loads all of them.
pub type Sizes = (Option<usize>, Option<usize>);

/// Flags that choose the images.
#[derive(Args, Clone, Debug)]
pub struct DataArguments {
    /// Images: synthetic, fashion-mnist, folder
    ///
    /// By default, the images are Fashion-MNIST, or drawn garments without a network. Synthetic images are drawn garments,
    /// too. A folder has the four files of Fashion-MNIST.
    #[arg(long, default_value = "auto", value_name = "SOURCE")]
    data: OsString,

    /// Folder that Fashion-MNIST is in, or is downloaded to [default: one in the user's cache]
    #[arg(long, value_name = "FOLDER", env = DATA_FOLDER, hide_env_values = true, hide_short_help = true)]
    data_dir: Option<PathBuf>,

    /// Web addresses to download Fashion-MNIST from, separated by spaces [default: the public ones]
    #[arg(long, value_name = "URLS", env = DATA_MIRRORS, hide_env_values = true, hide_short_help = true)]
    data_mirrors: Option<Mirrors>,

    /// Whether another process of this machine has loaded the images before: then this process downloads nothing.
    #[arg(skip)]
    pub follows: bool,
}

/// Both parts of a data set.
#[derive(Clone, Debug)]
pub struct LoadedData {
    /// The data set's name in result lines.
    pub name: String,
    /// The samples to train on.
    pub train: Dataset,
    /// The samples to measure accuracy on. Of a text, those for validation.
    pub test: Dataset,
}

impl DataArguments {
    /// Whether a flag names a source of images.
    pub fn is_chosen(&self) -> bool {
        self.data != "auto"
    }

    /// Says what [`load`](Self::load) does, as in `drawing images`.
    pub fn activity(&self) -> String {
        match self.data.to_str() {
            Some("synthetic") => "drawing images".to_owned(),
            Some("auto") => format!("reading {REAL}, or drawing images"),
            Some("fashion-mnist") => format!("reading {REAL}"),
            _ => format!("reading the images in {}", last_name(Path::new(&self.data))),
        }
    }

    /// Loads the images. Returns a note if drawn images replace the real ones. `fits` refuses numbers of training and test images,
    /// before any is read or drawn. Fails with the error of `fits`, and with a [`UsageError`] when a folder does not exist or lacks a file.
    pub fn load(
        &self,
        sizes: Sizes,
        fits: impl Fn((usize, usize)) -> Result<(), UsageError>,
    ) -> anyhow::Result<(LoadedData, Option<String>)> {
        if let Some(folder) = self.data_dir.as_deref().filter(|it| it.exists() && !it.is_dir()) {
            bail!(UsageError::new(format_args!(
                "--data-dir {}: this is a file; name a folder, or one that does not exist yet",
                folder.display()
            )));
        }
        let read = |folder: &Path, name: &str, flag| {
            let [train, test] = read(folder, flag, sizes, &fits)?;
            Ok((LoadedData { name: name.to_owned(), train, test }, None))
        };
        let draw = |note| {
            fits((sizes.0.unwrap_or(FULL_SIZE.0), sizes.1.unwrap_or(FULL_SIZE.1)))?;
            Ok((LoadedData::draw(sizes), note))
        };
        match self.data.to_str() {
            Some("synthetic") => draw(None),
            Some(name @ "fashion-mnist") => match self.obtain(TimeLimits::REQUIRED) {
                Ok(folder) => read(&folder, REAL, "--data-dir"),
                Err(error) => bail!("--data {name}: {error}; use --data synthetic for {DRAWN}"),
            },
            Some("auto") => match self.obtain(TimeLimits::OPTIONAL) {
                Ok(folder) => read(&folder, REAL, "--data-dir"),
                Err(error @ download::Error::OtherFile(_)) => bail!("--data-dir: {error}"),
                Err(error) => draw(Some(self.why_drawn(&error)?)),
            },
            // A folder with one of these names can be written as `./synthetic`.
            _ => {
                let folder = Path::new(&self.data);
                let found = match (folder.is_dir(), folder.exists()) {
                    (true, _) => return read(folder, &last_name(folder), "--data"),
                    (false, true) => "this is not a folder",
                    (false, false) => "there is no such folder",
                };
                bail!(UsageError::new(format_args!(
                    "--data {}: {found}; use auto, fashion-mnist, synthetic, or a folder with Fashion-MNIST's four files",
                    folder.display()
                )))
            }
        }
    }

    /// The note about drawn images that replace the real ones. Refuses a folder of `--data-dir` with other files only: drawn
    /// images are not what its user wants.
    fn why_drawn(&self, error: &download::Error) -> Result<String, UsageError> {
        if let Some(folder) = &self.data_dir {
            let others = images::others(folder, &FASHION_MNIST.map(|file| file.plain_name()));
            if !others.is_empty() {
                let advice = "name the folder of its files, or use --data synthetic";
                return Err(UsageError::new(format_args!(
                    "--data-dir {}: Fashion-MNIST is not among {others}, and cannot be had ({error}); {advice}",
                    folder.display()
                )));
            }
        }
        let reason = match error {
            download::Error::NoAnswer(_) if self.data_mirrors.is_some() => "no mirror answers",
            download::Error::NoAnswer(_) => "no network",
            _ => "no download",
        };
        Ok(format!("{reason}, so drawn garments replace {REAL} (README, Data)"))
    }

    /// Downloads the missing files of Fashion-MNIST, and returns their folder.
    fn obtain(&self, limits: TimeLimits) -> Result<PathBuf, download::Error> {
        let folder = self.data_dir.clone().or_else(machine::data_folder);
        let nowhere = "this machine names no folder for downloads; --data-dir can";
        let folder = folder.ok_or_else(|| download::Error::Unavailable(nowhere.to_owned()))?;
        let none = Mirrors(Vec::new());
        let mirrors = if self.follows { Some(none) } else { self.data_mirrors.clone() };
        download::obtain(&folder, &FASHION_MNIST, &mirrors.unwrap_or_default(), limits)?;
        Ok(folder)
    }
}

impl LoadedData {
    /// The samples that metrics count.
    pub fn unit(&self) -> Unit {
        if self.train.context().is_some() { Unit::Tokens } else { Unit::Images }
    }

    /// The accuracy of guessing: any class of images, or always the most frequent byte of a text.
    pub fn guessing(&self) -> f64 {
        if self.unit() == Unit::Images {
            return GUESSING;
        }
        let mut counts = [0_usize; 256];
        self.train.bytes().iter().for_each(|&byte| counts[usize::from(byte)] += 1);
        let most = (0..=u8::MAX).max_by_key(|&byte| counts[usize::from(byte)]);
        let (labels, right) = (self.test.labels(), |byte: &&u8| Some(**byte) == most);
        labels.iter().filter(right).count() as f64 / labels.len() as f64
    }

    /// Draws synthetic garments.
    pub fn draw(sizes: Sizes) -> Self {
        Self {
            name: DRAWN.to_owned(),
            train: synthetic::dataset(Split::Train, sizes.0.unwrap_or(FULL_SIZE.0)),
            test: synthetic::dataset(Split::Test, sizes.1.unwrap_or(FULL_SIZE.1)),
        }
    }
}

/// Reads the first images of both parts of the data set in `folder`, which the flag names or can change, if they fit.
fn read(
    folder: &Path,
    flag: &'static str,
    sizes: Sizes,
    fits: impl Fn((usize, usize)) -> Result<(), UsageError>,
) -> anyhow::Result<[Dataset; 2]> {
    let refused = |error| match error {
        images::Error::Missing { .. } => UsageError::new(format_args!("{flag} {error}")).into(),
        error => anyhow::Error::from(error).context(flag),
    };
    let count = |split, size: Option<usize>| {
        let all = images::count(folder, split).map_err(refused)?;
        anyhow::Ok(size.unwrap_or(all).min(all))
    };
    let counts = (count(Split::Train, sizes.0)?, count(Split::Test, sizes.1)?);
    fits(counts)?;
    let read = |split, count| {
        let (pixels, labels) = images::read(folder, split, count).map_err(refused)?;
        Dataset::of_shape(pixels, SAMPLE, labels, CLASSES).context(flag)
    };
    Ok([read(Split::Train, counts.0)?, read(Split::Test, counts.1)?])
}

/// The name of a folder or a file, without escape sequences.
pub(crate) fn last_name(path: &Path) -> String {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = absolute.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    // An escape sequence would change the terminal, and SVG forbids control characters.
    name.replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
#[path = "../../../tests/src/large_folder.rs"]
mod large_folder;

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::PIXELS;

    fn load(folder: &Path, sizes: Sizes, most: usize) -> Result<LoadedData, String> {
        let arguments = DataArguments {
            data: folder.into(),
            data_dir: None,
            data_mirrors: None,
            follows: false,
        };
        let fits = |counts: (usize, usize)| match counts.0 + counts.1 > most {
            true => Err(UsageError::new(format_args!("{counts:?} do not fit"))),
            false => Ok(()),
        };
        let loaded = arguments.load(sizes, fits).map_err(|error| format!("{error:#}"));
        loaded.map(|(data, _)| data)
    }

    #[test]
    fn of_a_large_folder_only_the_images_that_a_run_uses_are_read_and_kept() {
        let folder = large_folder::of_images(400_000);
        let LoadedData { train, test, .. } = load(folder.path(), (Some(64), Some(9)), 73).unwrap();
        assert_eq!([&train, &test].map(Dataset::len), [64, 9]);
        // Of the images, only those of the run are there.
        let path = folder.path().join("train-images-idx3-ubyte");
        let images = File::options().write(true).open(path).unwrap();
        images.set_len(16 + 64 * PIXELS as u64).unwrap();
        assert!(load(folder.path(), (Some(64), Some(9)), 73).is_ok());
        let broken = load(folder.path(), (None, Some(9)), usize::MAX).unwrap_err();
        let ends = "ends after 50176 of the 313600000 bytes that its header announces";
        assert!(broken.ends_with(ends), "{broken}");
        // A run that does not fit is refused before that is found.
        let refused = load(folder.path(), (None, Some(9)), 400_008).unwrap_err();
        assert_eq!(refused, "(400000, 9) do not fit");
    }
}

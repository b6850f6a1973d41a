//! The flags that say where images come from.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;

use crate::mirrors::Mirrors;
use crate::source::{DataSource, Error, LoadedData, Supply};
use crate::{cache, fashion_mnist};
use harness::cli::{DATA_FOLDER, DATA_MIRRORS, UsageError};

/// Flags that choose the images.
#[derive(Args, Clone, Debug)]
pub struct DataArguments {
    /// auto (Fashion-MNIST if it can be had, else synthetic), fashion-mnist, synthetic, or a folder with
    /// Fashion-MNIST's four files
    #[arg(long, default_value = "auto", value_name = "SOURCE")]
    data: OsString,

    /// Folder that Fashion-MNIST is in, or is downloaded to [default: one in the user's cache]
    #[arg(long, value_name = "FOLDER", env = DATA_FOLDER, hide_env_values = true)]
    data_dir: Option<PathBuf>,

    /// Web addresses to download Fashion-MNIST from, separated by spaces [default: the public ones]
    #[arg(long, value_name = "URLS", env = DATA_MIRRORS, hide_env_values = true)]
    data_mirrors: Option<Mirrors>,
}

impl DataArguments {
    /// Loads the images, and says on standard error what there is to know about them.
    ///
    /// # Errors
    ///
    /// A [`UsageError`] for a folder that is none or lacks a file; another error for a malformed file or
    /// a failed download.
    pub fn load(&self, limits: (Option<usize>, Option<usize>)) -> anyhow::Result<LoadedData> {
        let source = DataSource::parse(&self.data);
        if let DataSource::Folder(folder) = &source
            && !folder.is_dir()
        {
            let found =
                if folder.exists() { "this is not a folder" } else { "there is no such folder" };
            return Err(UsageError::new(format_args!(
                "--data {}: {found}; use auto, fashion-mnist, synthetic, or a folder \
                 with Fashion-MNIST's four files",
                folder.display()
            ))
            .into());
        }
        if let Some(folder) = &self.data_dir
            && folder.exists()
            && !folder.is_dir()
        {
            return Err(UsageError::new(format_args!(
                "--data-dir {}: this is a file; name a folder, or one that does not exist yet",
                folder.display()
            ))
            .into());
        }
        let supply = Supply {
            folder: self.data_dir.clone().or_else(cache::default_folder),
            mirrors: self.data_mirrors.clone().unwrap_or_default(),
        };
        match source.load(&supply, limits) {
            Ok(data) => {
                if let Some(note) = &data.note {
                    // A note that nobody reads is no reason to stop.
                    let _ = writeln!(std::io::stderr(), "note: {note}");
                }
                Ok(data)
            }
            Err(Error::Files(missing @ fashion_mnist::Error::Missing { .. })) => {
                Err(UsageError::new(format_args!("--data {missing}")).into())
            }
            Err(error) => Err(error.into()),
        }
    }
}

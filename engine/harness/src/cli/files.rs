//! The flags that say what a run leaves behind.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;

use super::UsageError;
use crate::report::metrics::Metrics;
use crate::report::outputs::Outputs;
use crate::report::{file, files_are_wanted};

/// Flags that name the files of a run's results.
#[derive(Args, Clone, Debug, Default)]
pub struct ReportArguments {
    /// Write one JSON object per epoch, and a summary per run, to this file
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,

    /// Draw accuracy and loss by epoch into this SVG file
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,

    /// Write what every device did when to this file; open it in Perfetto (ui.perfetto.dev)
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,

    /// Draw what every device did in one step into this SVG file
    #[arg(long, value_name = "FILE.svg")]
    pub timeline: Option<PathBuf>,
}

/// Begins the file of `--metrics`, for a program that leaves nothing else behind.
///
/// # Errors
///
/// A [`UsageError`] when it cannot be written.
pub fn metrics(path: Option<&Path>) -> Result<Option<Metrics>, UsageError> {
    let begin = |path| {
        writable("--metrics", path)?;
        files_are_wanted();
        Metrics::new(path)
            .map_err(|error| UsageError::new(file::flag_error("--metrics", path, &error)))
    };
    path.map(begin).transpose()
}

/// Checks that the file of a flag could be written, and leaves nothing behind.
///
/// # Errors
///
/// A [`UsageError`] that names both.
pub fn writable(flag: &str, path: &Path) -> Result<(), UsageError> {
    file::check(path).map_err(|error| UsageError::new(file::flag_error(flag, path, &error)))
}

/// Checks that `path` is none of those that are `named` already.
fn apart(named: &[(&str, &Path)], flag: &str, path: &Path, own: &str) -> Result<(), UsageError> {
    match named.iter().find(|(_, other)| file::is_same_file(other, path)) {
        Some((other, _)) => Err(UsageError::new(format_args!(
            "{other} and {flag} both name {}: give each a {own} of its own",
            path.display()
        ))),
        None => Ok(()),
    }
}

impl ReportArguments {
    /// Checks that every file could be written, and is named by one flag only, and writes nothing. Where there is one,
    /// [files are wanted](files_are_wanted) from now on.
    ///
    /// A program may have `further` flags that name files.
    ///
    /// # Errors
    ///
    /// A [`UsageError`] that names the flag, or both.
    pub fn check(&self, further: &[(&str, Option<&Path>)]) -> Result<(), UsageError> {
        let mut named: Vec<(&str, &Path)> = Vec::new();
        for (flag, path) in self.named(further) {
            writable(flag, path)?;
            apart(&named, flag, path, "file")?;
            named.push((flag, path));
        }
        if !named.is_empty() {
            files_are_wanted();
        }
        Ok(())
    }

    /// Checks that no file, of these flags or of `further` ones, has the name of the `folder` of another flag. Neither
    /// need be there: then each could be made, and not both.
    ///
    /// # Errors
    ///
    /// A [`UsageError`] that names both flags.
    pub fn check_folder(
        &self,
        further: &[(&str, Option<&Path>)],
        flag: &str,
        folder: &Path,
    ) -> Result<(), UsageError> {
        let named: Vec<_> = self.named(further).collect();
        apart(&named, flag, folder, "place")
    }

    /// The files that are asked for, each with its flag.
    fn named<'a>(
        &'a self,
        further: &'a [(&'a str, Option<&'a Path>)],
    ) -> impl Iterator<Item = (&'a str, &'a Path)> {
        let mine = [
            ("--metrics", self.metrics.as_deref()),
            ("--plot", self.plot.as_deref()),
            ("--trace", self.trace.as_deref()),
            ("--timeline", self.timeline.as_deref()),
        ];
        let all = mine.into_iter().chain(further.iter().copied());
        all.filter_map(|(flag, path)| Some((flag, path?)))
    }

    /// Opens what has to be open while the run goes on.
    pub fn open(&self) -> io::Result<Outputs> {
        let Self { metrics, plot, trace, timeline } = self.clone();
        Outputs::open(metrics.as_deref(), plot, trace, timeline)
    }
}

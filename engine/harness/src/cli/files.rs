//! The flags for the files of a run.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;

use super::UsageError;
use crate::report::metrics::Metrics;
use crate::report::outputs::Outputs;
use crate::report::{file, files_are_wanted, trace};

/// Flags for the files of results.
#[derive(Args, Clone, Debug, Default)]
pub struct ReportArguments {
    /// Write one JSON object per epoch, and a summary per run, to this file
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,

    /// Draw accuracy and loss by epoch into this SVG file
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,

    /// Write the work of every device over time to this file; open it in Perfetto (ui.perfetto.dev)
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,

    /// Draw the work of every device in one step into this SVG file
    #[arg(long, value_name = "FILE.svg")]
    pub timeline: Option<PathBuf>,
}

/// Opens the file of `--metrics`, for a program that writes no other file, if the file can be written.
pub fn metrics(path: Option<&Path>) -> Result<Option<Metrics>, UsageError> {
    let arguments = ReportArguments { metrics: path.map(Path::to_owned), ..Default::default() };
    arguments.check(&[])?;
    Ok(arguments.open().map_err(UsageError::new)?.metrics)
}

/// Checks that the file of a flag can be written, and leaves nothing behind. The error names both.
pub fn writable(flag: &str, path: &Path) -> Result<(), UsageError> {
    file::check(path).map_err(|error| UsageError::new(file::flag_error(flag, path, &error)))
}

/// Checks that `path` is not the path of another flag in `named`. `kind` is `file` or `place`.
fn check_distinct(
    named: &[(&str, &Path)],
    flag: &str,
    path: &Path,
    kind: &str,
) -> Result<(), UsageError> {
    match named.iter().find(|(_, other)| file::is_same_file(other, path)) {
        Some((other, _)) => Err(UsageError::new(format_args!(
            "{other} and {flag} both name {}: give each a {kind} of its own",
            path.display()
        ))),
        None => Ok(()),
    }
}

impl ReportArguments {
    /// Checks that every file can be written and that no two flags name the same file. Writes nothing.
    ///
    /// `further` are flags of the program that name files, too. If there is any file, [`files_are_wanted`] is called.
    /// Fails with a [`UsageError`] that names the flag or both flags.
    pub fn check(&self, further: &[(&str, Option<&Path>)]) -> Result<(), UsageError> {
        let mut named: Vec<(&str, &Path)> = Vec::new();
        for (flag, path) in self.named(further) {
            writable(flag, path)?;
            check_distinct(&named, flag, path, "file")?;
            named.push((flag, path));
        }
        if !named.is_empty() {
            files_are_wanted();
        }
        Ok(())
    }

    /// Checks that no file has the same name as the `folder` of another flag. If neither exists yet, only one of the
    /// two could be created. Fails with a [`UsageError`] that names both flags.
    pub fn check_folder(
        &self,
        further: &[(&str, Option<&Path>)],
        flag: &str,
        folder: &Path,
    ) -> Result<(), UsageError> {
        let named: Vec<_> = self.named(further).collect();
        check_distinct(&named, flag, folder, "place")
    }

    /// The flags that are set, each with its file.
    fn named<'a>(
        &'a self,
        further: &'a [(&'a str, Option<&'a Path>)],
    ) -> impl Iterator<Item = (&'a str, &'a Path)> {
        let own = [
            ("--metrics", self.metrics.as_deref()),
            ("--plot", self.plot.as_deref()),
            ("--trace", self.trace.as_deref()),
            ("--timeline", self.timeline.as_deref()),
        ];
        let all = own.into_iter().chain(further.iter().copied());
        all.filter_map(|(flag, path)| Some((flag, path?)))
    }

    /// Opens the files that a run writes while it goes on, and begins to record spans. Fails when a special file cannot
    /// be opened, or spans are being recorded already.
    pub fn open(&self) -> io::Result<Outputs> {
        let Self { metrics, plot, trace, timeline } = self.clone();
        let spans = trace.is_some() || timeline.is_some();
        Ok(Outputs {
            metrics: metrics.as_deref().map(Metrics::new).transpose()?,
            recording: spans.then(|| trace::begin(trace.is_some())).transpose()?,
            plot,
            trace,
            timeline,
            runs: Vec::new(),
        })
    }
}

//! The flags for the files of a run.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;

use super::UsageError;
use crate::report::file::{self, LazyFile};
use crate::report::outputs::Outputs;
use crate::report::{files_are_wanted, trace};

/// Flags for the files of results.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Output")]
pub struct ReportArguments {
    /// Write a line of JSON per epoch and per run
    #[arg(long, value_name = "FILE.jsonl")]
    pub metrics: Option<PathBuf>,

    /// Draw accuracy and loss by epoch
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,

    /// Draw the work of every device in one step
    #[arg(long, value_name = "FILE.svg")]
    pub timeline: Option<PathBuf>,

    /// Write the work of every device over time; open the file in Perfetto (ui.perfetto.dev)
    #[arg(long, value_name = "FILE.json", hide_short_help = true)]
    pub trace: Option<PathBuf>,
}

/// The format of a file: its name, and its extensions, the usual one first.
pub type Format = (&'static str, &'static [&'static str]);

/// SVG pictures.
pub const SVG: Format = ("an SVG picture", &["svg"]);

/// A line of JSON for each entry.
pub const JSON_LINES: Format = ("a file of JSON lines", &["jsonl", "json", "ndjson"]);

const JSON: Format = ("a JSON file", &["json"]);

/// Extensions that belong to a format. A file with any other extension may have every format.
const EXTENSIONS: &str =
    "svg jsonl json ndjson png jpg jpeg gif webp pdf html csv xlsx safetensors";

/// Opens the file of `--metrics`, for a program that writes no other file, if the file can be written.
pub fn metrics(path: Option<&Path>) -> Result<Option<LazyFile>, UsageError> {
    let arguments = ReportArguments { metrics: path.map(Path::to_owned), ..Default::default() };
    arguments.check(&[], None)?;
    Ok(arguments.open().map_err(UsageError::new)?.metrics)
}

/// Checks that the file of a flag can be written and has no extension of another format. Leaves nothing behind.
pub fn writable(flag: &str, path: &Path, (format, own): Format) -> Result<(), UsageError> {
    let extension = path.extension().and_then(|it| it.to_str()).map(str::to_lowercase);
    let given = extension.as_deref().unwrap_or("");
    if EXTENSIONS.split(' ').any(|known| known == given) && !own.contains(&given) {
        let (path, usual) = (path.display(), path.with_extension(own[0]));
        return Err(UsageError::new(format_args!(
            "{flag} {path}: the flag writes {format}, not .{given}; use {}",
            usual.display()
        )));
    }
    file::check(path).map_err(|error| UsageError::new(file::flag_error(flag, path, &error)))
}

impl ReportArguments {
    /// Checks that every file can be written and that no two flags name the same place, and leaves nothing behind. `further` are
    /// the program's other flags of files, and `folder` is a flag of a folder. The error names the flag or both flags.
    pub fn check(
        &self,
        further: &[(&str, Option<&Path>, Format)],
        folder: Option<(&str, &Path)>,
    ) -> Result<(), UsageError> {
        let own = [
            ("--metrics", self.metrics.as_deref(), JSON_LINES),
            ("--plot", self.plot.as_deref(), SVG),
            ("--trace", self.trace.as_deref(), JSON),
            ("--timeline", self.timeline.as_deref(), SVG),
        ];
        let files = own.iter().chain(further);
        let files = files.filter_map(|&(flag, path, format)| Some((flag, path?, Some(format))));
        let mut named: Vec<(&str, &Path)> = Vec::new();
        for (flag, path, format) in files.chain(folder.map(|(flag, path)| (flag, path, None))) {
            format.map_or(Ok(()), |format| writable(flag, path, format))?;
            if let Some((other, _)) = named.iter().find(|(_, it)| file::is_same_file(it, path)) {
                let kind = if format.is_some() { "file" } else { "place" };
                return Err(UsageError::new(format_args!(
                    "{other} and {flag} both name {}: give each a {kind} of its own",
                    path.display()
                )));
            }
            named.push((flag, path));
        }
        if !named.is_empty() {
            files_are_wanted();
        }
        Ok(())
    }

    /// Opens the files that a run writes while it goes on, and begins to record spans. Fails when a special file cannot be opened.
    pub fn open(&self) -> io::Result<Outputs> {
        let Self { metrics, plot, trace, timeline } = self.clone();
        let spans = trace.is_some() || timeline.is_some();
        Ok(Outputs {
            metrics: metrics.map(|path| LazyFile::new("--metrics", &path)).transpose()?,
            recording: spans.then(|| trace::begin(trace.is_some())).transpose()?,
            plot,
            trace,
            timeline,
            ..Outputs::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_of_another_format_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let png: Format = ("a PNG picture", &["png"]);
        let check = |name: &str, format| {
            let checked = writable("--flag", &folder.path().join(name), format);
            checked.map_err(|error| error.to_string())
        };
        for (format, names) in [
            (SVG, &["a.svg", "A.SVG", "plot", "plot.v2"][..]),
            (JSON_LINES, &["a.json", "a.log"]),
            (JSON, &["a.json"]),
            (png, &["a.png"]),
        ] {
            names.iter().for_each(|name| check(name, format).unwrap());
        }
        for (format, name, right) in [
            (SVG, "a.png", "use "),
            (SVG, "a.PDF", "an SVG picture"),
            (JSON_LINES, "a.csv", "a.jsonl"),
            (JSON, "a.svg", "a.json"),
            (png, "a.jpg", "a.png"),
        ] {
            let message = check(name, format).unwrap_err();
            assert!(message.starts_with("--flag ") && message.contains(right), "{message}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

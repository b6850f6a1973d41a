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

/// Opens the file of `--metrics`, for a program that writes no other file, if the file can be written.
pub fn metrics(path: Option<&Path>) -> Result<Option<Metrics>, UsageError> {
    let arguments = ReportArguments { metrics: path.map(Path::to_owned), ..Default::default() };
    arguments.check(&[])?;
    Ok(arguments.open().map_err(UsageError::new)?.metrics)
}

/// The formats of files: the flags, the name, and the extensions. The first extension is the usual one.
const FORMATS: [(&[&str], &str, &[&str]); 4] = [
    (&["--plot", "--timeline", "--gantt"], "an SVG picture", &["svg"]),
    (&["--metrics", "--record"], "a file of JSON lines", &["jsonl", "json", "ndjson"]),
    (&["--trace"], "a JSON file", &["json"]),
    (&["--contact-sheet"], "a PNG picture", &["png"]),
];

/// Extensions of other formats.
const OTHERS: [&str; 9] =
    ["jpg", "jpeg", "gif", "webp", "pdf", "html", "csv", "xlsx", "safetensors"];

/// Checks that the file of a flag can be written, and leaves nothing behind. The error names both. An extension that
/// belongs to another format is an error, too.
pub fn writable(flag: &str, path: &Path) -> Result<(), UsageError> {
    let given = path.extension().and_then(|it| it.to_str()).map(str::to_lowercase);
    let given = given.as_deref().unwrap_or("");
    let of_any = FORMATS.iter().flat_map(|(.., extensions)| extensions.iter()).chain(&OTHERS);
    if let Some((_, format, extensions)) = FORMATS.iter().find(|(flags, ..)| flags.contains(&flag))
        && of_any.into_iter().any(|it| *it == given)
        && !extensions.contains(&given)
    {
        let (path, usual) = (path.display(), path.with_extension(extensions[0]));
        return Err(UsageError::new(format_args!(
            "{flag} {path}: the flag writes {format}, not .{given}; use {}",
            usual.display()
        )));
    }
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
        let check = |flag: &str, name: &str| {
            writable(flag, &folder.path().join(name)).map_err(|error| error.to_string())
        };
        for (flag, name) in [
            ("--plot", "a.svg"),
            ("--plot", "A.SVG"),
            ("--plot", "plot"),
            ("--plot", "plot.v2"),
            ("--metrics", "a.json"),
            ("--metrics", "a.log"),
            ("--trace", "a.json"),
            ("--contact-sheet", "a.png"),
            ("--else", "a.png"),
        ] {
            check(flag, name).unwrap();
        }
        for (flag, name, right) in [
            ("--plot", "a.png", "use "),
            ("--timeline", "a.PDF", "an SVG picture"),
            ("--metrics", "a.csv", "a.jsonl"),
            ("--trace", "a.svg", "a.json"),
            ("--contact-sheet", "a.jpg", "a.png"),
        ] {
            let message = check(flag, name).unwrap_err();
            assert!(message.starts_with(flag) && message.contains(right), "{message}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

//! The files of all runs of a program: metrics, a plot, a trace, a timeline.

use std::io;
use std::path::PathBuf;

use super::file::{self, LazyFile};
use super::summary::{FinishedRun, Summary};
use super::trace::Recording;
use super::{Report, line, paragraph, plot, thousands, timeline};
use crate::lock::locked;
use crate::records::{EpochRecord, Unit};

/// The files to write. By default there are none; [`ReportArguments::open`](crate::cli::ReportArguments::open) makes others.
#[derive(Debug, Default)]
pub struct Outputs {
    /// The metrics file, if there is one.
    pub metrics: Option<LazyFile>,
    /// The samples that the runs count.
    pub unit: Unit,
    pub(crate) plot: Option<PathBuf>,
    pub(crate) trace: Option<PathBuf>,
    pub(crate) timeline: Option<PathBuf>,
    /// The spans for the trace and the timeline, if one of them is to be written.
    pub(crate) recording: Option<Recording>,
    pub(crate) runs: Vec<FinishedRun>,
}

impl Outputs {
    /// Returns the reporter for a run that begins.
    pub fn report(&mut self, run: &str) -> Report<'_> {
        Report::new(run, self.unit, self.metrics.as_mut())
    }

    /// Adds a run that has ended, interrupted or not. Fails when the metrics cannot be written. The run is still drawn.
    pub fn run_ended(&mut self, summary: &Summary, records: &[EpochRecord]) -> io::Result<()> {
        self.runs.push(FinishedRun { summary: summary.clone(), records: records.to_vec() });
        self.metrics.as_mut().map_or(Ok(()), |metrics| metrics.write_json("summary", summary))
    }

    /// Writes the pictures and the trace of all runs that have ended, if there are any, and prints the paths of all files.
    /// Fails when a file cannot be written: the message names the flag and the file. The other files are still written.
    pub fn write(&self, title: &str) -> io::Result<()> {
        if self.runs.is_empty() {
            return Ok(());
        }
        let recorded = self.recording.as_deref().map(locked);
        let mut written = vec![self.metrics.as_ref().map_or(Ok(()), LazyFile::announce)];
        if let (Some(path), Some(recorded)) = (&self.trace, &recorded) {
            written.push(file::write_flag("--trace", path, |file| recorded.write(file)));
        }
        let picture = |flag, path, svg: String| {
            file::write_flag(flag, path, |file| file.write_all(svg.as_bytes()))
        };
        if let Some(path) = &self.plot {
            written.push(picture("--plot", path, plot::draw(title, &self.runs)));
        }
        if let (Some(path), Some(recorded)) = (&self.timeline, &recorded) {
            let none = || line("note: no step was recorded, so there is no timeline");
            let svg = timeline::draw(title, recorded);
            written.push(svg.map_or_else(none, |svg| picture("--timeline", path, svg)));
        }
        if let Some(spans) = recorded.map(|recorded| recorded.left_out).filter(|&spans| spans > 0) {
            written.push(paragraph(format_args!(
                "note: the last {} spans were not recorded: a trace or a timeline is of what came before them",
                thousands(spans)
            )));
        }
        written.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::super::trace::{STEPS, Span, Work};
    use super::*;

    #[test]
    fn a_timeline_needs_a_step_and_an_error_names_the_flag() {
        let run = FinishedRun { summary: Summary::default(), records: Vec::new() };
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().join("timeline.svg");
        let (begin, path) = (format!("--timeline {}: ", path.display()), path);
        let (timeline, recording) = (Some(path), Some(Recording::default()));
        let outputs = Outputs { timeline, recording, runs: vec![run], ..Outputs::default() };
        outputs.write("title").unwrap();
        let (track, name) = (STEPS.into(), "step".into());
        let work = Work { rank: 0, track, name, start: 0.0, end: 0.01 };
        let step = Span { run: 0, work, fields: Map::new() };
        locked(outputs.recording.as_ref().unwrap()).spans = vec![step];
        let error = outputs.write("title").unwrap_err().to_string();
        assert!(error.starts_with(&begin), "{error}");
    }
}

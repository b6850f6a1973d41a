//! The files of all runs of a program: metrics, a plot, a trace, a timeline.

use std::io;
use std::path::PathBuf;

use super::metrics::Metrics;
use super::summary::{FinishedRun, Summary, sparklines};
use super::trace::Recording;
use super::{Report, file, line, paragraph, plot, thousands, timeline};
use crate::lock::locked;
use crate::records::EpochRecord;

/// The files to write. By default there are none; [`ReportArguments::open`](crate::cli::ReportArguments::open) makes others.
#[derive(Debug, Default)]
pub struct Outputs {
    pub(crate) metrics: Option<Metrics>,
    pub(crate) plot: Option<PathBuf>,
    pub(crate) trace: Option<PathBuf>,
    pub(crate) timeline: Option<PathBuf>,
    /// The spans for the trace and the timeline, if one of them is to be written.
    pub(crate) recording: Option<Recording>,
    pub(crate) runs: Vec<FinishedRun>,
    /// Whether a run has learned.
    pub(crate) learned: bool,
}

impl Outputs {
    /// Returns the reporter for a run that begins.
    pub fn report(&mut self, run: &str) -> Report<'_> {
        Report::new(run, self.metrics.as_mut())
    }

    /// The metrics file, if there is one.
    pub fn metrics(&mut self) -> Option<&mut Metrics> {
        self.metrics.as_mut()
    }

    /// Appends the metrics to the file of an earlier process. This process resumes the runs of that one.
    pub fn resume(&mut self) {
        if let Some(metrics) = &mut self.metrics {
            metrics.resume();
        }
    }

    /// Adds a run that has ended, interrupted or not. Fails when the metrics cannot be written. The run is still drawn.
    pub fn run_ended(&mut self, summary: &Summary, records: &[EpochRecord]) -> io::Result<()> {
        self.learned |= summary.has_learned();
        self.runs.push(FinishedRun {
            name: summary.run.clone(),
            devices: format!("[{}]", summary.devices.join(", ")),
            records: records.to_vec(),
        });
        self.metrics.as_mut().map_or(Ok(()), |metrics| metrics.write("summary", summary))
    }

    /// Prints test accuracy by epoch, if a run has at least two epochs.
    pub fn print_sparklines(&self) -> io::Result<()> {
        sparklines(&self.runs, self.learned).map_or(Ok(()), |lines| line(format_args!("\n{lines}")))
    }

    /// Writes the trace, the plot and the timeline of all runs that have ended, and prints the paths of all files. If no run
    /// has ended, because all were refused or failed, older files stay as they are. Fails when a file cannot be written. The message names the flag
    /// and the file. The other files are still written.
    pub fn write(&self, title: &str) -> io::Result<()> {
        if self.runs.is_empty() {
            return Ok(());
        }
        let recorded = self.recording.as_deref().map(locked);
        let mut written = vec![self.metrics.as_ref().map_or(Ok(()), Metrics::announce)];
        if let (Some(path), Some(recorded)) = (&self.trace, &recorded) {
            written.push(file::write_flag("--trace", path, |file| recorded.write(file)));
        }
        if let Some(path) = &self.plot {
            written.push(file::write_flag("--plot", path, |file| {
                file.write_all(plot::draw(title, &self.runs).as_bytes())
            }));
        }
        if let (Some(path), Some(recorded)) = (&self.timeline, &recorded) {
            written.push(match timeline::draw(title, recorded) {
                Some(svg) => {
                    file::write_flag("--timeline", path, |file| file.write_all(svg.as_bytes()))
                }
                None => line("note: no step was recorded, so there is no timeline"),
            });
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
    use std::time::Duration;

    use super::super::trace::{Fields, RunRank, STEPS, Span};
    use super::*;

    #[test]
    fn a_timeline_needs_a_step_and_an_error_names_the_flag() {
        let run = FinishedRun { name: String::new(), devices: String::new(), records: Vec::new() };
        let path = PathBuf::from("of a folder that is not there/timeline.svg");
        let (timeline, recording) = (Some(path), Some(Recording::default()));
        let outputs = Outputs { timeline, recording, runs: vec![run], ..Outputs::default() };
        outputs.write("title").unwrap();
        let owner = RunRank { run: 0, rank: 0 };
        let (start, duration, fields) =
            (Duration::ZERO, Duration::from_millis(10), Fields::default());
        let step = Span { name: "step", target: STEPS, owner, start, duration, fields };
        locked(outputs.recording.as_ref().unwrap()).spans = vec![step];
        let error = outputs.write("title").unwrap_err().to_string();
        assert!(error.starts_with("--timeline of a folder that is not there/"), "{error}");
    }
}

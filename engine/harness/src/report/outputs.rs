//! The files of all runs of a program: metrics, a plot, a trace, a timeline.

use std::io;
use std::path::{Path, PathBuf};

use super::file::flag_error;
use super::metrics::Metrics;
use super::sparklines::Sparklines;
use super::summary::{FinishedRun, Summary};
use super::trace::Trace;
use super::{Report, line, plot, thousands, timeline};
use crate::records::EpochRecord;

/// The files to write. By default there are none.
#[derive(Debug, Default)]
pub struct Outputs {
    metrics: Option<Metrics>,
    plot: Option<PathBuf>,
    trace: Option<PathBuf>,
    timeline: Option<PathBuf>,
    /// The spans for the trace and the timeline, if one of them is to be written.
    recording: Option<Trace>,
    runs: Vec<FinishedRun>,
}

impl Outputs {
    /// Begins to record spans if there is to be a trace or a timeline. Files are created later.
    ///
    /// # Errors
    ///
    /// When a FIFO for the metrics cannot be opened, or a trace is being recorded already.
    pub fn open(
        metrics: Option<&Path>,
        plot: Option<PathBuf>,
        trace: Option<PathBuf>,
        timeline: Option<PathBuf>,
    ) -> io::Result<Self> {
        let records_spans = trace.is_some() || timeline.is_some();
        Ok(Self {
            metrics: metrics.map(Metrics::new).transpose()?,
            plot,
            recording: records_spans.then(|| Trace::begin(trace.is_some())).transpose()?,
            trace,
            timeline,
            runs: Vec::new(),
        })
    }

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

    /// Adds a run that has ended, interrupted or not.
    ///
    /// # Errors
    ///
    /// When the metrics cannot be written. The run is still drawn.
    pub fn run_ended(&mut self, summary: &Summary, records: &[EpochRecord]) -> io::Result<()> {
        self.runs.push(FinishedRun {
            name: summary.run.clone(),
            devices: format!("[{}]", summary.devices.join(", ")),
            records: records.to_vec(),
        });
        self.metrics.as_mut().map_or(Ok(()), |metrics| metrics.summary(summary))
    }

    /// Prints test accuracy by epoch, if a run has at least two epochs.
    ///
    /// # Errors
    ///
    /// When standard output has no reader any more.
    pub fn print_sparklines(&self) -> io::Result<()> {
        let lines = Sparklines(&self.runs);
        if lines.is_empty() { Ok(()) } else { line(format_args!("\n{lines}")) }
    }

    /// Writes the trace, the plot and the timeline of all runs that have ended. If no run has ended, because all were
    /// refused or failed, older files stay as they are.
    ///
    /// # Errors
    ///
    /// When a file cannot be written. The message names the flag and the file. The other files are still written.
    pub fn write(&self, title: &str) -> io::Result<()> {
        if self.runs.is_empty() {
            return Ok(());
        }
        let written = [
            self.write_trace(),
            self.write_plot(title),
            self.write_timeline(title),
            self.note_left_out_spans(),
        ];
        written.into_iter().collect()
    }

    fn write_trace(&self) -> io::Result<()> {
        let (Some(path), Some(recording)) = (&self.trace, &self.recording) else { return Ok(()) };
        recording.write(path).map_err(|error| flag_error("--trace", path, &error))
    }

    fn write_plot(&self, title: &str) -> io::Result<()> {
        let Some(path) = &self.plot else { return Ok(()) };
        plot::write(path, title, &self.runs).map_err(|error| flag_error("--plot", path, &error))
    }

    /// Draws one step. If no step was recorded, a note says that there is no timeline.
    fn write_timeline(&self, title: &str) -> io::Result<()> {
        let (Some(path), Some(recording)) = (&self.timeline, &self.recording) else {
            return Ok(());
        };
        match timeline::write(path, title, &recording.spans()) {
            Ok(true) => Ok(()),
            Ok(false) => line("note: no step was recorded, so there is no timeline"),
            Err(error) => Err(flag_error("--timeline", path, &error)),
        }
    }

    fn note_left_out_spans(&self) -> io::Result<()> {
        match self.recording.as_ref().map_or(0, Trace::left_out) {
            0 => Ok(()),
            spans => line(format_args!(
                "note: the last {} spans were not recorded: a trace or a timeline is of what came before them",
                thousands(spans)
            )),
        }
    }
}

//! Everything that one call of a binary leaves behind: metrics, a plot, a trace, and sparklines to end with.

use std::io;
use std::path::{Path, PathBuf};

use super::metrics::Metrics;
use super::sparklines::Sparklines;
use super::summary::Summary;
use super::trace::Trace;
use super::{Report, file, line, plot, thousands, timeline};
use crate::records::EpochRecord;

/// What to write, and where. Nothing, by default.
#[derive(Debug, Default)]
pub struct Outputs {
    metrics: Option<Metrics>,
    plot: Option<PathBuf>,
    /// While a trace or a timeline is wanted.
    recording: Option<Trace>,
    trace: Option<PathBuf>,
    timeline: Option<PathBuf>,
    runs: Vec<FinishedRun>,
}

/// A run as it is drawn.
#[derive(Debug)]
pub(super) struct FinishedRun {
    pub(super) name: String,
    pub(super) devices: String,
    pub(super) records: Vec<EpochRecord>,
}

impl Outputs {
    /// Begins to record if there is to be a trace or a timeline; the files are made later.
    ///
    /// # Errors
    ///
    /// When a pipe that is to get the metrics cannot be opened, or a trace is being recorded already.
    pub fn open(
        metrics: Option<&Path>,
        plot: Option<PathBuf>,
        trace: Option<PathBuf>,
        timeline: Option<PathBuf>,
    ) -> io::Result<Self> {
        let wanted = trace.is_some() || timeline.is_some();
        Ok(Self {
            metrics: metrics.map(Metrics::new).transpose()?,
            plot,
            recording: wanted.then(|| Trace::begin(trace.is_some())).transpose()?,
            trace,
            timeline,
            runs: Vec::new(),
        })
    }

    /// The reporter of a run that begins.
    pub fn report(&mut self, run: &str) -> Report<'_> {
        Report::new(run, self.metrics.as_mut())
    }

    /// The metrics file, if there is one.
    pub fn metrics(&mut self) -> Option<&mut Metrics> {
        self.metrics.as_mut()
    }

    /// The runs go on with what an earlier call began: metrics go behind those that are there.
    pub fn go_on(&mut self) {
        if let Some(metrics) = &mut self.metrics {
            metrics.go_on();
        }
    }

    /// Takes in a run that has ended, whether or not it was interrupted.
    ///
    /// # Errors
    ///
    /// When the metrics cannot be written.
    pub fn run_ended(&mut self, summary: &Summary, records: &[EpochRecord]) -> io::Result<()> {
        // It is drawn, whether or not the metrics can be written.
        self.runs.push(FinishedRun {
            name: summary.run.clone(),
            devices: format!("[{}]", summary.devices.join(", ")),
            records: records.to_vec(),
        });
        self.metrics.as_mut().map_or(Ok(()), |metrics| metrics.summary(summary))
    }

    /// Prints test accuracy by epoch, where there are two epochs to compare.
    ///
    /// # Errors
    ///
    /// When nobody reads standard output any more.
    pub fn print_sparklines(&self) -> io::Result<()> {
        let lines = Sparklines(&self.runs);
        if lines.is_empty() { Ok(()) } else { line(format_args!("\n{lines}")) }
    }

    /// Writes the trace, the plot and the timeline of all runs that have ended. Where none has, as all were refused or failed,
    /// the files of an earlier call stay as they are.
    ///
    /// A timeline is of a step: where there was none, none is drawn, and a note says so.
    ///
    /// # Errors
    ///
    /// When one of them cannot be written: the message names the flag and the file. The others are written all the same.
    pub fn write(&self, title: &str) -> io::Result<()> {
        if self.runs.is_empty() {
            return Ok(());
        }
        let written = [
            self.write_trace(),
            self.write_plot(title),
            self.write_timeline(title),
            self.tell_left_out(),
        ];
        written.into_iter().collect()
    }

    fn write_trace(&self) -> io::Result<()> {
        if let (Some(path), Some(recording)) = (&self.trace, &self.recording) {
            recording.write(path).map_err(|error| file::of_flag("--trace", path, &error))?;
        }
        Ok(())
    }

    fn write_plot(&self, title: &str) -> io::Result<()> {
        let Some(path) = &self.plot else { return Ok(()) };
        plot::write(path, title, &self.runs).map_err(|error| file::of_flag("--plot", path, &error))
    }

    fn write_timeline(&self, title: &str) -> io::Result<()> {
        if let (Some(path), Some(recording)) = (&self.timeline, &self.recording) {
            let drawn = timeline::write(path, title, &recording.spans())
                .map_err(|error| file::of_flag("--timeline", path, &error))?;
            if !drawn {
                line("note: no step was recorded, so there is no timeline")?;
            }
        }
        Ok(())
    }

    fn tell_left_out(&self) -> io::Result<()> {
        match self.recording.as_ref().map_or(0, Trace::left_out) {
            0 => Ok(()),
            spans => line(format_args!(
                "note: the last {} spans were not recorded: a trace or a timeline is of what came before them",
                thousands(spans)
            )),
        }
    }
}

//! What stage 7's program measured on this machine: its predictions, and what came of them.

use anyhow::Context as _;
use cost_model::all_reduce::Way;
use cost_model::record::{Calibration, How, Step};
use cost_model::training::Sum;
use harness::report::thousands;
use itertools::Itertools as _;
use serde::{Deserialize, Serialize};

use super::{Curve, Here, Panel, Seen, short};
use crate::Machine;
use crate::number::Rounded;

/// `book/data/cost-model-cpu.json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Measurement {
    pub command: String,
    #[serde(default)]
    pub date: Option<String>,
    pub machine: Machine,
    /// What predictions are made of, for each model and number of devices.
    pub calibrations: Vec<Calibration>,
    pub steps: Vec<Step>,
}

impl Measurement {
    /// Reads the file.
    /// Fails when it is not such a file.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        serde_json::from_str(text).context("this is not what `--measure cost-model-cpu` stores")
    }

    /// Takes calibrations and steps out of the lines that `--metrics` wrote.
    /// Fails when a line is neither, or has not all fields.
    pub fn of(
        metrics: &str,
        command: &str,
        machine: Machine,
        date: Option<String>,
    ) -> anyhow::Result<Self> {
        let (mut calibrations, mut steps) = (Vec::new(), Vec::new());
        for line in metrics.lines() {
            let value: serde_json::Value = serde_json::from_str(line)?;
            match value["kind"].as_str() {
                Some("calibration") => calibrations.push(serde_json::from_value(value)?),
                Some("step") => steps.push(serde_json::from_value(value)?),
                _ => anyhow::bail!("neither a calibration nor a step: {line}"),
            }
        }
        Ok(Self { command: command.to_owned(), date, machine, calibrations, steps })
    }

    /// `AMD EPYC, 2 cores, 2026-11-22`
    pub(super) fn place(&self) -> String {
        let date = self.date.as_ref().map_or_else(String::new, |date| format!(", {date}"));
        format!("{}{date}", self.machine.short())
    }

    /// Every model with its batch, once.
    pub fn trainings(&self) -> Vec<(&str, usize)> {
        self.steps.iter().map(|step| (step.model.as_str(), step.batch_size)).unique().collect()
    }

    /// Every model, over both links.
    pub(super) fn panels(&self) -> anyhow::Result<Vec<Panel>> {
        let mut panels = Vec::new();
        for (slow, link) in [(false, "measured here: memory"), (true, "measured here: slow link")] {
            for (model, batch_size) in self.trainings() {
                let training = Training { of: self, model, batch_size, slow };
                panels.extend(training.panel(link).with_context(|| format!("{model}, {link}"))?);
            }
        }
        Ok(panels)
    }
}

/// One panel's part of the measurement.
struct Training<'a> {
    of: &'a Measurement,
    model: &'a str,
    batch_size: usize,
    slow: bool,
}

impl Training<'_> {
    fn is(&self, model: &str, batch_size: usize) -> bool {
        (model, batch_size) == (self.model, self.batch_size)
    }

    fn steps(&self) -> impl Iterator<Item = &Step> {
        self.of.steps.iter().filter(|step| self.is(&step.model, step.batch_size))
    }

    /// The steps on these numbers of devices; one device does the same whatever the way.
    fn on(&self, devices: &[usize], sum: Sum) -> anyhow::Result<Vec<&Step>> {
        let step = |&devices: &usize| {
            let how = (devices > 1).then_some(How { slow: self.slow, sum });
            let step = self.steps().find(|step| step.devices == devices && step.how == how);
            step.with_context(|| format!("no step of {} on {devices} devices", sum.way))
        };
        devices.iter().map(step).collect()
    }

    /// `None` where there is nothing but one device.
    fn panel(&self, link: &str) -> anyhow::Result<Option<Panel>> {
        let together =
            |step: &Step| Some((step.devices, step.how.filter(|h| h.slow == self.slow)?));
        let steps = || self.steps().filter_map(together);
        let ways: Vec<Way> = steps().map(|(_, how)| how.sum.way).unique().collect();
        let Some(&way) = ways.first() else { return Ok(None) };
        let devices = [1].into_iter().chain(steps().map(|(devices, _)| devices));
        let devices: Vec<usize> = devices.sorted_unstable().dedup().collect();
        let curves = |overlap: bool| -> anyhow::Result<Vec<Curve>> {
            let curve = |&way| Ok(curve(way, &self.on(&devices, Sum { way, overlap })?));
            ways.iter().map(curve).collect()
        };
        let any = self.on(&devices, Sum { way, overlap: true })?;
        Ok(Some(Panel {
            model: short(self.model),
            name: self.model.to_owned(),
            batch: format!("{} for all", thousands(self.batch_size)),
            link: link.to_owned(),
            samples: devices.iter().map(|&count| self.batch_size.div_ceil(count)).collect(),
            compute: any.iter().map(|s| Rounded::of(1e3 * s.predicted.compute)).collect(),
            with_overlap: curves(true)?,
            without_overlap: curves(false)?,
            here: Some(self.here(&devices)?),
            devices,
        }))
    }

    /// What calibrations tell of these numbers of devices.
    fn here(&self, devices: &[usize]) -> anyhow::Result<Here> {
        let mut here = Here { on: Vec::new(), links: Vec::new(), notes: Vec::new() };
        for &count in devices {
            let is = |c: &&Calibration| self.is(&c.model, c.batch_size) && c.devices.len() == count;
            let calibration = self.of.calibrations.iter().find(is);
            let calibration = calibration.with_context(|| format!("no calibration of {count}"))?;
            here.on.push(calibration.devices.join(", "));
            let link = calibration.link(self.slow);
            let numbers = link.map(|link| [1e6 * link.latency, link.bandwidth() / 1e9]);
            here.links.push(numbers.map(|numbers| numbers.map(Rounded::of)));
            here.notes.push(calibration.note.clone());
        }
        Ok(here)
    }
}

/// The curve of these steps, the first of which is on one device.
fn curve(way: Way, steps: &[&Step]) -> Curve {
    let each = |of: &dyn Fn(&Step) -> f64| -> Vec<Rounded> {
        steps.iter().map(|step| Rounded::of(of(step))).collect()
    };
    Curve {
        way: way.to_string(),
        step: each(&|step| 1e3 * step.predicted.seconds),
        exposed: each(&|step| 1e3 * step.predicted.exposed()),
        speed_up: each(&|step| steps[0].predicted.seconds / step.predicted.seconds),
        measured: Some(Seen {
            measured: each(&|step| 1e3 * step.measured),
            measured_speed_up: each(&|step| steps[0].measured / step.measured),
        }),
    }
}

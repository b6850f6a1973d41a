//! What stage 7's program measured on this machine: its predictions, and what came of them.

use anyhow::Context as _;
use cost_model::all_reduce::Way;
use cost_model::record::{Calibration, How, Step};
use cost_model::training::Sum;
use harness::report::thousands;
use itertools::Itertools as _;
use serde::{Deserialize, Serialize};

use super::{Curve, Here, Link, Panel, Seen, short};
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

/// The two links that can be measured, by whether they are slow.
pub(super) fn links() -> [Link; 2] {
    [false, true].map(|slow| Link {
        name: name(slow).to_owned(),
        measured: true,
        each: None,
        wires: Vec::new(),
    })
}

fn name(slow: bool) -> &'static str {
    if slow { "measured here: slow link" } else { "measured here: memory" }
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

    /// Every model, over both links.
    pub(super) fn panels(&self) -> anyhow::Result<Vec<Panel>> {
        let mut panels = Vec::new();
        for slow in [false, true] {
            for (model, batch_size) in self.trainings() {
                let training = Training { of: self, model, batch_size, slow };
                let what = || format!("{model}, {}", name(slow));
                panels.extend(training.panel().with_context(what)?);
            }
        }
        Ok(panels)
    }

    /// Every model with its batch, once.
    pub fn trainings(&self) -> Vec<(&str, usize)> {
        self.steps.iter().map(|step| (step.model.as_str(), step.batch_size)).unique().collect()
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
    fn steps(&self) -> impl Iterator<Item = &Step> {
        let is =
            |step: &&Step| (step.model.as_str(), step.batch_size) == (self.model, self.batch_size);
        self.of.steps.iter().filter(is)
    }

    /// The step on so many devices; one device does the same whatever the way.
    fn step(&self, devices: usize, way: Way, overlap: bool) -> anyhow::Result<&Step> {
        let how = How { slow: self.slow, sum: Sum { way, overlap } };
        let how = (devices > 1).then_some(how);
        self.steps()
            .find(|step| step.devices == devices && step.how == how)
            .with_context(|| format!("no step of {way} on {devices} devices"))
    }

    /// `None` where there is nothing but one device.
    fn panel(&self) -> anyhow::Result<Option<Panel>> {
        let steps = || {
            let together = |step: &Step| step.how.map(|how| (step.devices, how));
            self.steps().filter_map(together).filter(|(_, how)| how.slow == self.slow)
        };
        let ways: Vec<Way> = steps().map(|(_, how)| how.sum.way).unique().collect();
        let Some(&any) = ways.first() else { return Ok(None) };
        let devices = [1].into_iter().chain(steps().map(|(devices, _)| devices));
        let devices: Vec<usize> = devices.sorted_unstable().dedup().collect();
        let curves = |overlap: bool| -> anyhow::Result<Vec<Curve>> {
            ways.iter().map(|&way| self.curve(way, overlap, &devices)).collect()
        };
        let (with_overlap, without_overlap) = (curves(true)?, curves(false)?);
        let compute =
            |&count: &usize| Ok(Rounded::of(1e3 * self.step(count, any, true)?.predicted.compute));
        let compute = devices.iter().map(compute).collect::<anyhow::Result<_>>()?;
        Ok(Some(Panel {
            model: short(self.model),
            name: self.model.to_owned(),
            batch: format!("{} for all", thousands(self.batch_size)),
            link: name(self.slow).to_owned(),
            samples: devices.iter().map(|&count| self.batch_size.div_ceil(count)).collect(),
            compute,
            with_overlap,
            without_overlap,
            here: Some(self.here(&devices)?),
            devices,
        }))
    }

    fn curve(&self, way: Way, overlap: bool, devices: &[usize]) -> anyhow::Result<Curve> {
        let alone = self.step(1, way, overlap)?;
        let steps = devices.iter().map(|&count| self.step(count, way, overlap));
        let steps = steps.collect::<anyhow::Result<Vec<_>>>()?;
        let each = |of: &dyn Fn(&Step) -> f64| -> Vec<Rounded> {
            steps.iter().map(|step| Rounded::of(of(step))).collect()
        };
        Ok(Curve {
            way: way.to_string(),
            step: each(&|step| 1e3 * step.predicted.seconds),
            exposed: each(&|step| 1e3 * step.predicted.exposed()),
            speed_up: each(&|step| alone.predicted.seconds / step.predicted.seconds),
            measured: Some(Seen {
                measured: each(&|step| 1e3 * step.measured),
                measured_speed_up: each(&|step| alone.measured / step.measured),
            }),
        })
    }

    /// What calibrations tell of these numbers of devices.
    fn here(&self, devices: &[usize]) -> anyhow::Result<Here> {
        let mut here = Here { on: Vec::new(), links: Vec::new(), notes: Vec::new() };
        for &count in devices {
            let calibration = self.of.calibrations.iter().find(|calibration| {
                (calibration.model.as_str(), calibration.batch_size)
                    == (self.model, self.batch_size)
                    && calibration.devices.len() == count
            });
            let calibration = calibration.with_context(|| format!("no calibration of {count}"))?;
            here.on.push(calibration.devices.join(", "));
            here.links.push(calibration.link(self.slow).map(|link| {
                [Rounded::of(1e6 * link.latency), Rounded::of(link.bandwidth() / 1e9)]
            }));
            here.notes.push(calibration.note.clone());
        }
        Ok(here)
    }
}

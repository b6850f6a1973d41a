//! The measurements of stage 8's program: predicted steps, and the same steps as measured.

use anyhow::Context as _;
use cost_model::all_reduce::Way;
use cost_model::record::{Calibration, How, Step};
use cost_model::training::Sum;
use harness::report::thousands;
use itertools::Itertools as _;
use serde::{Deserialize, Serialize};

use super::{Curve, Here, Panel, Seen, short};
use crate::number::Rounded;
use crate::{Machine, stored};

/// `book/data/cost-model-cpu.json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Measurement {
    pub command: String,
    #[serde(default)]
    pub date: Option<String>,
    pub machine: Machine,
    /// The numbers from which a step is predicted, for each model and number of devices.
    pub calibrations: Vec<Calibration>,
    pub steps: Vec<Step>,
}

impl Measurement {
    /// Reads the text of the file. Fails when the text is not such a measurement.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        serde_json::from_str(text).context("this is not what `--measure cost-model-cpu` stores")
    }

    /// Reads the file in the book.
    pub fn stored() -> anyhow::Result<Self> {
        let text = stored::text("book/data/cost-model-cpu.json");
        let text = text
            .context("no measurement: `cargo xtask figures --measure cost-model-cpu` makes one")?;
        Self::parse(&text)
    }

    /// Takes calibrations and steps out of the lines of `--metrics`. Fails when a line is another one, or lacks a field.
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

    /// Every model with its batch, once.
    pub fn trainings(&self) -> Vec<(&str, usize)> {
        self.steps.iter().map(|step| (step.model.as_str(), step.batch_size)).unique().collect()
    }

    /// Every model, over both links.
    pub(super) fn panels(&self) -> anyhow::Result<Vec<Panel>> {
        let mut panels = Vec::new();
        for (slow, link) in [(false, "measured here: memory"), (true, "measured here: slow link")] {
            for (model, batch_size) in self.trainings() {
                let panel = self.panel((model, batch_size), slow, link);
                panels.extend(panel.with_context(|| format!("{model}, {link}"))?);
            }
        }
        Ok(panels)
    }

    /// The panel of a model with its batch. `None` if all steps are steps of one device.
    fn panel(
        &self,
        training: (&str, usize),
        slow: bool,
        link: &str,
    ) -> anyhow::Result<Option<Panel>> {
        let (model, batch_size) = training;
        let of_training = |step: &&Step| (step.model.as_str(), step.batch_size) == training;
        let steps: Vec<&Step> = self.steps.iter().filter(of_training).collect();
        let together =
            |step: &&Step| Some((step.devices, step.how.filter(|how| how.slow == slow)?.sum.way));
        let together: Vec<(usize, Way)> = steps.iter().filter_map(together).collect();
        let ways: Vec<Way> = together.iter().map(|(_, way)| *way).unique().collect();
        let Some(&any) = ways.first() else { return Ok(None) };
        let devices = [1].into_iter().chain(together.iter().map(|(devices, _)| *devices));
        let devices: Vec<usize> = devices.sorted_unstable().dedup().collect();
        // One device makes the same step in every way.
        let in_this_way = |way: Way, overlap: bool| -> anyhow::Result<Vec<&Step>> {
            let step = |&devices: &usize| {
                let how = (devices > 1).then_some(How { slow, sum: Sum { way, overlap } });
                let step = steps.iter().find(|step| step.devices == devices && step.how == how);
                step.copied().with_context(|| format!("no step of {way} on {devices} devices"))
            };
            devices.iter().map(step).collect()
        };
        let curves = |overlap: bool| -> anyhow::Result<Vec<Curve>> {
            ways.iter().map(|&way| Ok(curve(way, &in_this_way(way, overlap)?))).collect()
        };
        let compute = in_this_way(any, true)?;
        Ok(Some(Panel {
            model: short(model),
            name: model.to_owned(),
            batch: format!("{} for all", thousands(batch_size)),
            link: link.to_owned(),
            samples: devices.iter().map(|&count| batch_size.div_ceil(count)).collect(),
            compute: compute.iter().map(|it| Rounded::of(1e3 * it.predicted.compute)).collect(),
            with_overlap: curves(true)?,
            without_overlap: curves(false)?,
            here: Some(self.here(training, slow, &devices)?),
            devices,
        }))
    }

    /// The content of the calibrations on these numbers of devices.
    fn here(&self, training: (&str, usize), slow: bool, devices: &[usize]) -> anyhow::Result<Here> {
        let mut here = Here { on: Vec::new(), links: Vec::new(), notes: Vec::new() };
        for &count in devices {
            let is = |it: &&Calibration| {
                (it.model.as_str(), it.batch_size) == training && it.devices.len() == count
            };
            let calibration = self.calibrations.iter().find(is);
            let calibration = calibration.with_context(|| format!("no calibration of {count}"))?;
            here.on.push(calibration.devices.join(", "));
            let link = calibration.link(slow);
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

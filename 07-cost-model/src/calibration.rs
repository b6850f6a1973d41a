//! What is known of a model on so many devices here, before any of its training was run on them.

use std::fmt;

use concise_wrapper::ddp::bucket::BucketCaps;
use concise_wrapper::slow_link::Slowness;
use cost_model::compute::{Line, Measured};
use cost_model::link::Link;
use cost_model::measure;
use cost_model::model::{Bucket, Model};
use model_parallel::layers::Layers;
use model_parallel::partition::{self, LayerCost};
use serde::Serialize;
use single_gpu::data::{Dataset, SIDE};
use single_gpu::device::DevicePlan;

/// How many steps are timed in a row.
const STEPS: usize = 5;

/// How often each layer is timed.
const TIMES: usize = 3;

/// When in a backward pass what is done.
pub(crate) struct Layered {
    /// The forward pass' part of both.
    forward: f64,
    /// The buckets of the gradients.
    pub(crate) buckets: Vec<Bucket>,
}

/// Devices of one number.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Calibration {
    /// Their names.
    pub(crate) devices: Vec<String>,
    /// What is to know before believing these times.
    pub(crate) note: Option<String>,
    /// What was measured, and the line through it.
    pub(crate) measured: [Measured; 2],
    pub(crate) line: Line,
    /// In memory; none where there is one device.
    pub(crate) memory: Option<Link>,
    /// Slowed down on purpose.
    pub(crate) slow: Option<Link>,
}

impl Layered {
    /// Measures every layer on the first device of a plan.
    pub(crate) fn measure(
        plan: &DevicePlan,
        model: &Model,
        layers: &Layers,
        rows: usize,
    ) -> anyhow::Result<Self> {
        let device = plan.slots()[0].open()?;
        let sample = [1, SIDE, SIDE];
        let dtype = candle_core::DType::F32;
        let costs = device
            .run(|| partition::measure(layers, &sample, rows, TIMES, dtype, device.tensors()))?;
        let forward: f64 = costs.iter().map(|cost| cost.forward).sum();
        let both: f64 = costs.iter().map(LayerCost::total).sum();
        let backward: Vec<f64> = costs.iter().map(|cost| cost.backward).collect();
        let buckets = model.buckets(BucketCaps::default(), &backward);
        Ok(Self { forward: forward / both, buckets })
    }

    /// The longest message that will be sent.
    fn longest(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.bytes as usize).max().unwrap_or(0)
    }
}

/// What devices of one number take by themselves, with two numbers of samples that are not what each will have of a
/// batch.
///
/// Machines are not equally fast all the time. So it is measured before, between and after the trainings that it is to
/// predict, and the median counts.
pub(crate) struct Trials<'a> {
    plan: &'a DevicePlan,
    layers: &'a Layers,
    data: &'a Dataset,
    samples: [usize; 2],
    measured: [Vec<Measured>; 2],
}

impl<'a> Trials<'a> {
    /// Nothing measured yet.
    pub(crate) fn new(
        plan: &'a DevicePlan,
        layers: &'a Layers,
        data: &'a Dataset,
        batch_size: usize,
    ) -> Self {
        let share = batch_size / plan.len();
        // Operations take sixteen samples side by side: beside a small share, half of it is not quicker.
        let samples = match share {
            ..32 => [2 * share, 3 * share],
            _ => [share / 2, share + share / 2],
        };
        Self { plan, layers, data, samples, measured: Default::default() }
    }

    /// Measures both once more.
    pub(crate) fn once_more(&mut self) -> anyhow::Result<()> {
        for (samples, measured) in self.samples.into_iter().zip(&mut self.measured) {
            measured.push(measure::compute(self.plan, self.layers, self.data, samples, STEPS)?);
        }
        Ok(())
    }

    /// The line through the medians, and the links.
    pub(crate) fn calibration(
        self,
        layered: &Layered,
        slowness: Slowness,
    ) -> anyhow::Result<Calibration> {
        let plan = self.plan;
        let link = |slowness| match plan.len() {
            1 => Ok(None),
            _ => measure::link(plan, layered.longest(), slowness).map(Some),
        };
        let [few, many] = self.measured.map(|trials| Measured::median(&trials));
        Ok(Calibration {
            devices: plan.slots().iter().map(ToString::to_string).collect(),
            note: plan.note().map(str::to_owned),
            measured: [few, many],
            line: Line::through(few, many, layered.forward),
            memory: link(None)?,
            slow: link(Some(slowness))?,
        })
    }
}

impl Calibration {
    /// The columns of a calibration as it is displayed.
    pub(crate) const HEADING: &str = "  devices   forward and backward of b images     update    latency, memory    latency, slow link";
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line { fixed, sample, update, .. } = self.line;
        let [few, many] = self.measured.map(|measured| measured.samples);
        let line = format!("{:.2} ms + b · {:.1} µs ({few}, {many})", 1e3 * fixed, 1e6 * sample);
        write!(f, "  {:>7}   {line:<33}{:>7.2} ms", self.devices.len(), 1e3 * update)?;
        for link in [self.memory, self.slow].into_iter().flatten() {
            let gigabytes = link.bandwidth() / 1e9;
            let link = format!("{:.0} µs, {gigabytes:.2} GB/s", 1e6 * link.latency);
            write!(f, "{link:>19}")?;
        }
        match &self.note {
            Some(note) => write!(f, "\n           note: {note}"),
            None => Ok(()),
        }
    }
}

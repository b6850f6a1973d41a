//! Measures the parts of a model's step on one number of devices.

use concise_wrapper::ddp::bucket::BucketCaps;
use concise_wrapper::optimizer::{Momentum, Sgd};
use concise_wrapper::slow_link::Slowness;
use cost_model::compute::{Line, Measured};
use cost_model::measure;
use cost_model::model::{Bucket, Model};
use cost_model::record::Calibration;
use datasets::{Dataset, SAMPLE};
use devices::DevicePlan;
use model_parallel::Cost;
use model_parallel::layers::Layers;
use model_parallel::partition::{self, Setting, each};

/// The number of timed steps in a row.
const STEPS: usize = 5;

/// The number of times that each layer is timed.
const TIMES: usize = 3;

/// One model, and its batches.
pub(crate) struct Training {
    pub(crate) model: Model,
    pub(crate) layers: Layers,
    pub(crate) batch_size: usize,
    /// Steps in one of the epochs that are run.
    pub(crate) steps: usize,
}

/// The times of the layers in a step.
pub(crate) struct Layered {
    /// The forward pass's part of both passes.
    forward: f64,
    /// The buckets of the gradients.
    pub(crate) buckets: Vec<Bucket>,
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
        let dtype = candle_core::DType::F32;
        let (setting, units) =
            (Setting { sample: &SAMPLE, rows, tries: TIMES, parts: 1 }, each(layers));
        let (tensors, mut sgd) = (device.tensors(), Sgd::new(Momentum::default()));
        let measure = || partition::measure(layers, &units, setting, dtype, tensors, &mut sgd);
        let costs = device.run(measure)?;
        let forward: f64 = costs.iter().map(|cost| cost.forward).sum();
        let both: f64 = costs.iter().map(Cost::total).sum();
        let backward: Vec<f64> = costs.iter().map(|cost| cost.backward).collect();
        let buckets = model.buckets(BucketCaps::default(), &backward);
        Ok(Self { forward: forward / both, buckets })
    }

    /// The bytes of the longest message.
    fn longest(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.bytes as usize).max().unwrap_or(0)
    }
}

/// The compute time of devices, with two numbers of samples. Neither is the number of samples in the training.
///
/// The speed of a machine varies, so the time is measured before, between and after the trainings. The median counts.
pub(crate) struct Trials<'a> {
    plan: &'a DevicePlan,
    training: &'a Training,
    data: &'a Dataset,
    samples: [usize; 2],
    measured: [Vec<Measured>; 2],
}

impl<'a> Trials<'a> {
    /// Nothing measured yet.
    pub(crate) fn new(plan: &'a DevicePlan, training: &'a Training, data: &'a Dataset) -> Self {
        let share = training.batch_size / plan.len();
        // Operations compute sixteen samples side by side, so half of a small shard is not faster than the whole shard.
        let samples = match share {
            ..32 => [2 * share, 3 * share],
            _ => [share / 2, share + share / 2],
        };
        Self { plan, training, data, samples, measured: Default::default() }
    }

    /// Measures both once more.
    pub(crate) fn once_more(&mut self) -> anyhow::Result<()> {
        for (samples, measured) in self.samples.into_iter().zip(&mut self.measured) {
            measured.push(measure::compute(
                self.plan,
                &self.training.layers,
                self.data,
                samples,
                STEPS,
            )?);
        }
        Ok(())
    }

    /// The line through the medians, and the links.
    pub(crate) fn calibration(
        self,
        layered: &Layered,
        slowness: Slowness,
    ) -> anyhow::Result<Calibration> {
        let Self { plan, training, .. } = self;
        let [few, many] = self.measured.map(|trials| Measured::median(&trials));
        let links = match plan.len() {
            1 => None,
            _ => Some(measure::links(plan, layered.longest(), slowness)?),
        };
        Ok(Calibration {
            model: training.model.name.clone(),
            batch_size: training.batch_size,
            devices: plan.slots().iter().map(ToString::to_string).collect(),
            note: plan.note().map(str::to_owned),
            measured: [few, many],
            line: Line::through(few, many, layered.forward),
            memory: links.map(|links| links.memory),
            slow: links.map(|links| links.slow),
        })
    }
}

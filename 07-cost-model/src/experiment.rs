//! Predictions, and what came of them.

use anyhow::ensure;
use concise_wrapper::ddp::bucket::BucketCaps;
use concise_wrapper::slow_link::Slowness;
use cost_model::all_reduce::Way;
use cost_model::hosts::Hosts;
use cost_model::measure::{self, Together};
use cost_model::record::{Calibration, How, Step};
use cost_model::step::Predicted;
use cost_model::training::{Sum, step};
use datasets::{Dataset, Split, synthetic};
use devices::DevicePlan;
use harness::interrupt;
use harness::report::metrics::Metrics;
use harness::report::{line, thousands};
use harness::statistics::median;
use params_and_allreduce::Algorithm;

use crate::calibration::{Layered, Training, Trials};
use crate::table::{self, CALIBRATIONS, STEPS};

/// How often each training is run: one that something else disturbed is not the median of three.
const ROUNDS: usize = 3;

/// Trainings between two measurements of what devices take by themselves.
const IN_A_ROW: usize = 6;

/// Everything that is to be predicted and run.
pub(crate) struct Experiments {
    pub(crate) plans: Vec<DevicePlan>,
    pub(crate) trainings: Vec<Training>,
    pub(crate) ways: Vec<Way>,
    pub(crate) slowness: Slowness,
    pub(crate) within: Option<f64>,
    pub(crate) metrics: Option<Metrics>,
}

impl Experiments {
    /// Calibrates, predicts, runs and tells, one model after the other.
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        interrupt::watch()?;
        let mut worst: Option<Step> = None;
        for (index, training) in std::mem::take(&mut self.trainings).into_iter().enumerate() {
            if interrupt::requested() {
                break;
            }
            if index > 0 {
                line("")?;
            }
            for step in self.of_one(&training)? {
                if worst.as_ref().is_none_or(|worst| step.error().abs() > worst.error().abs()) {
                    worst = Some(step);
                }
            }
        }
        let Some(worst) = worst else { return Ok(()) };
        line(format_args!("\nfurthest off: {:+.0} %, {worst}", 100.0 * worst.error()))?;
        if let Some(percent) = self.within {
            ensure!(
                100.0 * worst.error().abs() <= percent,
                "a prediction is further off than the {percent} % of --within"
            );
        }
        Ok(())
    }

    /// One model.
    fn of_one(&mut self, training: &Training) -> anyhow::Result<Vec<Step>> {
        let Training { model, layers, batch_size, steps } = training;
        line(format_args!(
            "{}: {} parameters, {} images a step, on synthetic garments\n\n{}",
            model.name,
            thousands(model.bytes() / 4),
            thousands(*batch_size),
            CALIBRATIONS
        ))?;
        // Enough for what devices are measured with by themselves, too.
        let data = synthetic::dataset(Split::Train, batch_size * steps);
        let layered = Layered::measure(&self.plans[0], model, layers, batch_size.div_ceil(2))?;
        let (mut calibrations, mut all) = (Vec::new(), Vec::new());
        let mut ended = Ok(());
        for plan in &self.plans {
            match self.of_plan(plan, training, &layered, &data) {
                Ok(Some((calibration, steps))) => {
                    line(table::calibration(&calibration))?;
                    calibrations.push(calibration);
                    all.extend(steps);
                }
                Ok(None) => {
                    line("  left out after the interrupt")?;
                    break;
                }
                Err(error) => {
                    // What fewer devices have shown is told all the same.
                    ended = Err(error);
                    break;
                }
            }
        }
        if ended.is_ok() || !all.is_empty() {
            line(format_args!("\n{STEPS}"))?;
        }
        for step in &all {
            line(table::step(step))?;
        }
        if let Some(metrics) = &mut self.metrics {
            for calibration in &calibrations {
                metrics.write("calibration", calibration)?;
            }
            for step in &all {
                metrics.write("step", step)?;
            }
        }
        ended.map(|()| all)
    }

    /// Devices of one number: all trainings in turn, several times, and between them what devices take by themselves.
    /// `None` where Ctrl-C came first.
    fn of_plan(
        &self,
        plan: &DevicePlan,
        training: &Training,
        layered: &Layered,
        data: &Dataset,
    ) -> anyhow::Result<Option<(Calibration, Vec<Step>)>> {
        let Training { model, layers, batch_size, .. } = training;
        let ways = self.ways_of(plan.len());
        let mut trials = Trials::new(plan, training, data);
        let mut seconds = vec![Vec::with_capacity(ROUNDS); ways.len()];
        for _ in 0..ROUNDS {
            for (ways, seconds) in ways.chunks(IN_A_ROW).zip(seconds.chunks_mut(IN_A_ROW)) {
                trials.once_more()?;
                for (how, seconds) in ways.iter().zip(seconds) {
                    let together = self.together(*how);
                    seconds.push(measure::training(plan, layers, data, *batch_size, &together)?);
                    if interrupt::requested() {
                        return Ok(None);
                    }
                }
            }
        }
        trials.once_more()?;
        let calibration = trials.calibration(layered, self.slowness)?;
        let step = |(how, measured)| Step {
            model: model.name.clone(),
            batch_size: *batch_size,
            devices: plan.len(),
            how,
            predicted: predicted(&calibration, layered, how),
            measured: median(measured),
        };
        let steps = ways.into_iter().zip(seconds).map(step).collect();
        Ok(Some((calibration, steps)))
    }

    /// On one device there is one way; on several every algorithm, over both links, with and without overlap.
    fn ways_of(&self, devices: usize) -> Vec<Option<How>> {
        if devices == 1 {
            return vec![None];
        }
        let mut all = Vec::new();
        for slow in [false, true] {
            for &way in &self.ways {
                for overlap in [false, true] {
                    all.push(Some(How { slow, sum: Sum { way, overlap } }));
                }
            }
        }
        all
    }

    fn together(&self, how: Option<How>) -> Together {
        Together {
            algorithm: how.and_then(|how| how.sum.way.algorithm()).unwrap_or(Algorithm::Ring),
            overlap: how.is_some_and(|how| how.sum.overlap),
            caps: BucketCaps::default(),
            slowness: how.filter(|how| how.slow).map(|_| self.slowness),
        }
    }
}

/// What a step is going to take.
fn predicted(calibration: &Calibration, layered: &Layered, how: Option<How>) -> Predicted {
    let devices = calibration.devices.len();
    // The largest share: all wait for whoever has it.
    let samples = calibration.batch_size.div_ceil(devices) as f64;
    match how.and_then(|how| Some((how.sum, calibration.link(how.slow)?))) {
        Some((sum, link)) => {
            let hosts = Hosts::one(link);
            step(&calibration.line, &layered.buckets, &hosts, devices, samples, sum)
        }
        None => Predicted::alone(&calibration.line.of(samples)),
    }
}

//! Predictions, and the trainings that test them.

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
use harness::load::Load;
use harness::report::file::LazyFile;
use harness::report::{columns, counted, line, number, paragraph, progress_bar, thousands};
use harness::statistics::median;
use params_and_allreduce::Algorithm;

use crate::calibration::{Layered, Training, Trials};
use crate::{conclusion, report};

/// The runs of each training. A single disturbed run is not the median of three.
const ROUNDS: usize = 3;

/// Trainings between two measurements of a device's compute time.
const IN_A_ROW: usize = 6;

/// Explains the words of the tables.
const LEGEND: &str = "\
predicted: compute + not hidden, both from measured parts
not hidden: all-reduces of gradients and of the loss, and copies into buckets, less what the backward pass hides
error: predicted ÷ measured − 1
link memory: the devices as they are; link slow: each byte is held up on purpose, as in a network";

/// Everything to predict and to run.
pub(crate) struct Experiments {
    pub(crate) plans: Vec<DevicePlan>,
    pub(crate) trainings: Vec<Training>,
    pub(crate) ways: Vec<Way>,
    pub(crate) slowness: Slowness,
    pub(crate) within: Option<f64>,
    pub(crate) metrics: Option<LazyFile>,
}

/// The results for one model.
#[derive(Default)]
struct Results {
    calibrations: Vec<Calibration>,
    steps: Vec<Step>,
    /// The first number of devices that other programs held up, and the note about it.
    busy: Option<(usize, String)>,
}

impl Experiments {
    /// Calibrates, predicts, trains and reports, model by model.
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        interrupt::watch()?;
        if self.plans.iter().any(|plan| plan.len() > 1) {
            paragraph(format_args!(
                "{LEGEND}\nfastest: by the measured times; within {:.0} % they count as equal",
                100.0 * (conclusion::EQUAL - 1.0)
            ))?;
            line("")?;
        }
        let mut all = Vec::new();
        for (index, training) in std::mem::take(&mut self.trainings).iter().enumerate() {
            if interrupt::requested() {
                break;
            }
            if index > 0 {
                line("")?;
            }
            let mut results = Results::default();
            let ended = self.run_model(training, &mut results);
            // The results of fewer devices are reported although more devices have failed.
            self.conclude(&results)?;
            all.extend(results.steps);
            ended?;
        }
        if let Some(metrics) = &self.metrics {
            line("")?;
            metrics.announce()?;
        }
        if let (Some(percent), Some(worst)) = (self.within, conclusion::worst(&all)) {
            let off = 100.0 * worst.error();
            ensure!(
                off.abs() <= percent,
                "the prediction of {worst} is {off:+.0} % off, further than the {} % of --within",
                number(percent)
            );
        }
        Ok(())
    }

    /// Measures and prints the numbers of devices in turn.
    fn run_model(&self, training: &Training, results: &mut Results) -> anyhow::Result<()> {
        let Training { model, layers, batch_size, steps } = training;
        paragraph(format_args!(
            "{}: {} parameters, {} images a step, on synthetic garments",
            model.name,
            thousands(model.bytes() / 4),
            thousands(*batch_size),
        ))?;
        // The calibration uses the same images.
        let data = synthetic::dataset(Split::Train, batch_size * steps);
        let layered = Layered::measure(&self.plans[0], model, layers, batch_size.div_ceil(2))?;
        for plan in &self.plans {
            let load = Load::now();
            let devices = plan.len();
            let Some((calibration, steps)) = self.run_plan(plan, training, &layered, &data)? else {
                let nothing = if results.steps.is_empty() { "; nothing was measured" } else { "" };
                paragraph(format_args!(
                    "\n{}: left out after the interrupt{nothing}",
                    counted(devices, "device")
                ))?;
                break;
            };
            let one = results.steps.first().unwrap_or(&steps[0]).measured;
            line(format_args!("\n{}", report::block(&calibration, &steps, one, columns())))?;
            if results.busy.is_none() {
                results.busy = plan.busy_since(&load).map(|note| (devices, note));
            }
            results.calibrations.push(calibration);
            results.steps.extend(steps);
        }
        Ok(())
    }

    /// Prints the conclusion about a model, and writes its metrics.
    fn conclude(&mut self, results: &Results) -> anyhow::Result<()> {
        let Results { calibrations, steps, busy } = results;
        if !steps.is_empty() {
            line("")?;
        }
        if let Some((devices, note)) = busy {
            paragraph(format_args!("note: on {}, {note}", counted(*devices, "device")))?;
        }
        if !steps.is_empty() {
            let shared = self.plans.iter().filter(|plan| plan.shares_hardware());
            let shared: Vec<usize> = shared.map(DevicePlan::len).collect();
            paragraph(conclusion::of_model(steps, &shared))?;
        }
        if let Some(metrics) = &mut self.metrics {
            for calibration in calibrations {
                metrics.write_json("calibration", calibration)?;
            }
            for step in steps {
                metrics.write_json("step", step)?;
            }
        }
        Ok(())
    }

    /// Measures devices of one number: all trainings in turn, several times, and between them the compute time.
    ///
    /// Returns `None` after an interrupt.
    fn run_plan(
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
        let bar = progress_bar("{prefix} {bar:20} {pos}/{len} trainings");
        bar.set_prefix(format!("{} on {}", model.name, counted(plan.len(), "device")));
        bar.set_length((ROUNDS * ways.len()) as u64);
        for _ in 0..ROUNDS {
            for (ways, seconds) in ways.chunks(IN_A_ROW).zip(seconds.chunks_mut(IN_A_ROW)) {
                trials.once_more()?;
                for (how, seconds) in ways.iter().zip(seconds) {
                    let together = self.together(*how);
                    seconds.push(measure::training(plan, layers, data, *batch_size, &together)?);
                    bar.inc(1);
                    if interrupt::requested() {
                        bar.finish_and_clear();
                        return Ok(None);
                    }
                }
            }
        }
        bar.finish_and_clear();
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

    /// One device has no all-reduce. Several devices use every algorithm, over both links, with and without overlap.
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

/// Predicts a step.
fn predicted(calibration: &Calibration, layered: &Layered, how: Option<How>) -> Predicted {
    let devices = calibration.devices.len();
    // All devices wait for the device with the largest share.
    let samples = calibration.batch_size.div_ceil(devices) as f64;
    match how.and_then(|how| Some((how.sum, calibration.link(how.slow)?))) {
        Some((sum, link)) => {
            let hosts = Hosts::one(link);
            step(&calibration.line, &layered.buckets, &hosts, devices, samples, sum)
        }
        None => Predicted::alone(&calibration.line.of(samples)),
    }
}

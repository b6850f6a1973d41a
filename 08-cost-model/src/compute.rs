//! Measurements on this machine. The seconds and bytes of a layer are a straight line in the number of samples, measured
//! with two numbers of samples. Whole steps are measured, too, for the comparison with their predictions.
//!
//! ```text
//! a pass over b samples   fixed + b · sample
//! ```
//!
//! `fixed` does not shrink when devices share the batch: a GPU launches the same kernels, and every device runs the same
//! layers. For this reason a small batch is not faster on more devices.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use candle_core::{DType, Tensor};
use concise_wrapper::optimizer::AdamW;
use concise_wrapper::slow_link::SlowNetwork;
use concise_wrapper::{Error, Model as _};
use datasets::Batch;
use devices::DevicePlan;
use harness::statistics::{median, slowest};
use model_parallel::execute::unit::Unit;
use model_parallel::execute::{Executor, Measured, Settings};
use model_parallel::layers::Layers;
use model_parallel::mesh::{Axis, Mesh};
use model_parallel::partition::{self, Setting, each};
use model_parallel::{Action, Checked, Cost, Instruction, UNBOUNDED, check};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Alone, Communicator as _, SharedCommunicator};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, Rank, RankFailure, run_ranks};
use sharded_state::{Sharded, Sharing};
use split_batch::loader::LocalBatch;

use crate::plan::{Plan, Predicted, Step};

/// The steps in which layers are timed. The median counts.
const TRIES: usize = 9;

/// A model, and the shape of a sample.
pub type Model<'a> = (&'a Layers, &'a [usize]);

// ANCHOR: line
/// The costs of all layers of a model with any number of samples: lines through two measurements.
#[derive(Clone, Debug)]
pub struct Lines {
    few: (usize, Vec<Cost>),
    many: (usize, Vec<Cost>),
}

impl Lines {
    /// The costs of all layers with so many samples.
    pub fn at(&self, samples: usize) -> Vec<Cost> {
        let ((few, low), (many, high)) = (&self.few, &self.many);
        let seconds = |a, b| line([*few as f64, a], [*many as f64, b], samples as f64);
        let part = (samples as f64 - *few as f64) / (*many as f64 - *few as f64);
        let bytes = |a, b| (a as f64 + part * (b as f64 - a as f64)).round() as usize;
        let at = |(a, b): (&Cost, &Cost)| Cost {
            // The weights are the same with any number of samples.
            update: a.update.min(b.update),
            activations: bytes(a.activations, b.activations),
            halves: bytes(a.halves, b.halves),
            input: bytes(a.input, b.input),
            output: bytes(a.output, b.output),
            ..a.with(b, seconds)
        };
        low.iter().zip(high).map(at).collect()
    }
}

/// The line through two measurements, at x. If noise makes the line fall, or begin below zero, the line goes through the
/// origin and the larger measurement.
fn line([b, few]: [f64; 2], [c, many]: [f64; 2], x: f64) -> f64 {
    let slope = (many - few) / (c - b);
    let fixed = few - slope * b;
    match slope > 0.0 && fixed >= 0.0 {
        true => fixed + slope * x,
        false => many / c * x,
    }
}
// ANCHOR_END: line

// ANCHOR: measure
/// Measures the layers on all devices of a plan at the same time. Slices of one CPU share its memory, its caches and its
/// power, so a slice is slower when other slices compute.
///
/// Stage 6's executor measures the seconds: in a loop around one layer, everything would be in a cache. With `parts`,
/// the devices share each layer, and the passes contain the messages of tensor parallelism on this link. A layer takes
/// as long as on the slowest device. Fails when a rank fails.
pub fn measure(
    devices: &DevicePlan,
    (layers, sample): Model<'_>,
    samples: [usize; 2],
    (parts, slow): (bool, Option<&Arc<SlowNetwork>>),
) -> Result<Lines, RankFailure<Error>> {
    let mesh = if parts { Mesh::tensor(devices.len()) } else { Mesh::pipeline(1) };
    let (strategy, units) = (Sharing::Ddp.plain(), each(layers.len()));
    let plan = Plan { strategy, mesh, micro_batches: 1 };
    let [few, many] = samples.map(|rows| {
        let setting = Setting { sample, rows, tries: 1, parts: mesh.tensor };
        let of_ranks = run_ranks(devices, DEFAULT_TIMEOUT, |rank| {
            let (device, adamw) = (rank.device(), &mut AdamW::default());
            let alone = || Alone(device.clone()).into();
            let comm = if parts { connection(rank, slow) } else { alone() };
            let mut costs = partition::measure(layers, &units, setting, DType::F32, device, adamw)?;
            let checked = check(strategy.schedule(units.len(), 1, 1), UNBOUNDED);
            let checked = checked.map_err(|wrong| Error::Model(wrong.into()))?;
            let lists = (&checked, &units[..]);
            // One pass gives the bytes, and whole steps give the seconds.
            let (_, measured) =
                on_rank((rank, comm), (layers, sample), (&plan, lists), (rows, TRIES))?;
            for (unit, cost) in costs.iter_mut().enumerate() {
                let seconds = |action| {
                    let spans = measured.steps.iter().skip(1).flatten();
                    let of = spans.filter(|it| it.instruction == Instruction { unit, action });
                    median(of.map(|it| it.end - it.start))
                };
                cost.forward = seconds(Action::Forward(0));
                cost.backward = seconds(Action::Backward(0));
                cost.update = seconds(Action::Update);
            }
            Ok::<_, Error>(costs)
        })?;
        let slower = |(a, b): (&Cost, &Cost)| a.with(b, f64::max);
        let slowest = of_ranks.into_iter().reduce(|a, b| a.iter().zip(&b).map(slower).collect());
        Ok((rows, slowest.unwrap_or_default()))
    });
    Ok(Lines { few: few?, many: many? })
}
// ANCHOR_END: measure

// ANCHOR: run
/// Runs steps of a plan on all devices of `devices`: the median step, and the most bytes. Fails when a rank fails.
pub fn run(
    devices: &DevicePlan,
    model: Model<'_>,
    Predicted { plan, checked, units, .. }: &Predicted,
    (batch, steps): (usize, usize),
    slow: Option<&Arc<SlowNetwork>>,
) -> Result<Step, RankFailure<Error>> {
    let of_ranks = run_ranks(devices, DEFAULT_TIMEOUT, |rank| {
        on_rank((rank, connection(rank, slow)), model, (plan, (checked, units)), (batch, steps))
    })?;
    let (times, measured): (Vec<_>, Vec<_>) = of_ranks.into_iter().unzip();
    let held = measured.into_iter().map(|it| it.held).max_by_key(|held| held.total);
    let held = held.unwrap_or_default();
    Ok(Step { seconds: slowest(&times), peak: held.peak, total: held.total })
}

/// The connection of a rank to all ranks, perhaps through a slow network.
fn connection(rank: &Rank, slow: Option<&Arc<SlowNetwork>>) -> SharedCommunicator {
    slow.map_or(rank.into(), |slow| slow.slow_down(rank.into()))
}

/// Runs steps with stage 6's executor on a rank of a plan: the seconds of each, and the executor's measurements. All units
/// have their layers from the list of runs.
///
/// `batch` is the number of samples over all devices. They are zeros, which take as long as others.
pub(crate) fn on_rank(
    (rank, comm): (&Rank, SharedCommunicator),
    (layers, sample): Model<'_>,
    (plan, (checked, runs)): (&Plan, (&Checked, &[Range<usize>])),
    (batch, steps): (usize, usize),
) -> Result<(Vec<f64>, Measured), Error> {
    let (mesh, device, rows) = (plan.mesh, rank.device(), plan.rows(batch));
    let (dtype, labels) = match layers.takes_tokens() {
        true => (DType::U32, vec![rows, sample[0]]),
        false => (DType::F32, vec![rows]),
    };
    let images = Tensor::zeros([&[rows], sample].concat(), dtype, device)?;
    let zeros = Batch { images, labels: Tensor::zeros(labels, DType::U32, device)? };
    let share = LocalBatch { shards: vec![zeros; plan.micro_batches], samples: batch };
    let group = mesh.along(&comm, Axis::Tensor)?;
    let build = |unit: usize| layers.build_part(runs[unit].clone(), 1, DType::F32, device, &group);
    let settings = Settings { algorithm: Algorithm::Ring, ..Settings::of(layers) };
    if plan.strategy.sharing == Sharing::Ddp {
        let units = checked.schedule().units_of(mesh.coordinate(comm.rank(), Axis::Pipeline));
        let units = units.map(build).collect::<Result<_, _>>()?;
        let executor = Executor::new(checked, units, comm, mesh, sample, settings)?;
        return timed(&executor, &share, rank, steps);
    }
    let unit = |unit, all: &_| Sharded::new(unit, build(unit)?, all);
    let executor = Executor::of_units(checked, comm, mesh, sample, settings, unit)?;
    timed(&executor, &share, rank, steps)
}

/// Seconds of each step but the first, which finds memory that was never touched.
fn timed<U: Unit>(
    executor: &Executor<U>,
    share: &LocalBatch,
    rank: &Rank,
    steps: usize,
) -> Result<(Vec<f64>, Measured), Error> {
    let (mut adamw, mut seconds) = (AdamW::default(), Vec::new());
    for _ in 0..=steps {
        rank.device().synchronize()?;
        rank.barrier()?;
        let start = Instant::now();
        executor.step(share, &mut adamw, 1e-3)?;
        rank.device().synchronize()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok((seconds.split_off(1), executor.measured()))
}
// ANCHOR_END: run

#[cfg(test)]
mod tests {
    use model_parallel::gpt::Gpt;

    use super::*;

    #[test]
    fn a_line_goes_through_what_was_measured() {
        let cost = |seconds: f64, activations, update| Cost {
            forward: seconds,
            backward: 3.0 * seconds,
            update,
            activations,
            parameters: 80,
            ..Cost::default()
        };
        let (few, many) = ((10, vec![cost(7.0, 50, 2.0)]), (30, vec![cost(15.0, 130, 1.0)]));
        let lines = Lines { few, many };
        for (samples, seconds, activations) in [(10, 7.0, 50), (20, 11.0, 90), (40, 19.0, 170)] {
            assert_eq!(lines.at(samples), [cost(seconds, activations, 1.0)], "{samples}");
        }
    }

    #[test]
    fn noise_makes_no_line_that_cannot_be() {
        for (few, many, expected) in [(7.0, 6.0, 4.0), (1.0, 6.0, 4.0), (7.0, 15.0, 11.0)] {
            assert_eq!(line([10.0, few], [30.0, many], 20.0), expected);
        }
    }

    /// Two measurements of the bytes of layers give the bytes with a third number of samples, in one piece and by layers.
    /// Each of two devices has half of the cut tensors.
    #[test]
    fn bytes_are_exact() {
        let gpt = Gpt { vocabulary: 24, context: 6, width: 16, heads: 2, blocks: 2 };
        let cases = [
            (Layers::dense(&[12, 20, 16, 10]).unwrap(), &[12][..]),
            (Layers::gpt(&gpt).unwrap(), &[6]),
        ];
        for (layers, sample) in cases {
            let measured = |devices, samples, parts| {
                let plan = DevicePlan::slices(devices).unwrap();
                measure(&plan, (&layers, sample), samples, (parts, None)).unwrap()
            };
            let bytes = |it: &Cost| {
                (it.parameters, it.optimizer, it.activations, it.halves, it.input, it.output)
            };
            let all = |costs: &[Cost]| costs.iter().map(bytes).collect::<Vec<_>>();
            let (line, other) = (measured(1, [2, 6], false), measured(2, [4, 8], false));
            assert_eq!(all(&line.at(4)), all(&other.at(4)), "{}", layers.name());
            // The whole model as one unit.
            let (setting, mut adamw) =
                (Setting { sample, rows: 4, tries: 1, parts: 1 }, AdamW::default());
            let device = &candle_core::Device::Cpu;
            let unit = &std::iter::once(0..layers.len()).collect::<Vec<_>>();
            let whole = partition::measure(&layers, unit, setting, DType::F32, device, &mut adamw);
            let (whole, joined) = (whole.unwrap()[0], Cost::of_parts(&line.at(4), unit)[0]);
            assert_eq!(joined.activations, whole.activations, "{}", layers.name());
            assert_eq!((joined.parameters, joined.output), (whole.parameters, whole.output));
            let parts = measured(2, [2, 4], true);
            let sum =
                |of: fn(&Cost) -> usize, costs: Vec<Cost>| costs.iter().map(of).sum::<usize>();
            let [whole, part] = [line.at(4), parts.at(4)].map(|it| sum(|it| it.parameters, it));
            assert!(part < whole && 2 * part >= whole, "{part} of {whole}");
        }
    }
}

//! Training in one way, on all its devices.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use candle_core::{Device, ModuleT, Tensor};
use concise_wrapper::ddp::{Lines, Reduction, alike};
use concise_wrapper::launch::{ForRank0, Launch, Rank};
use concise_wrapper::weights::{Snapshot, Weights};
use concise_wrapper::{Ddp, Error, Model, Precision, text, train};
use datasets::{Dataset, SAMPLE};
use devices::DevicePlan;
use harness::records::{BatchSums, EpochRecord};
use harness::report::Report;
use harness::report::outputs::Outputs;
use harness::report::summary::Versions;
use harness::report::trace;
use model_parallel::held::{Held, Whole, activations_of};
use model_parallel::mesh::{Axis, Mesh};
use model_parallel::pipeline::{Timeline, Worker};
use model_parallel::tensor_parallel::dense::DenseStack;
use model_parallel::tensor_parallel::lenet::{Channels, LeNet};
use model_parallel::tensor_parallel::{Group, Replicated, TensorParallel};
use ops::weights_hash::WeightsHash;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;
use scratch_data_parallel::{FixedTree, TreeSum};
use single_gpu::train::Step;
use split_batch::loader::{LocalBatch, Shards};
use trainer::StepSums;

use crate::arguments::{ModelKind, Prepared};
use crate::plan::Way;

/// The results of a way on rank 0.
pub(crate) struct Trained {
    pub(crate) records: Vec<EpochRecord>,
    pub(crate) after_first_step: Snapshot,
    pub(crate) weights: Snapshot,
    /// The hash of each replica's whole weights.
    pub(crate) replicas: Vec<String>,
    /// The bytes of each device.
    pub(crate) held: Vec<Held>,
    /// The timelines of the first steps, for stages.
    pub(crate) steps: Vec<Timeline>,
}

/// The devices of this process for a way.
pub(crate) fn devices_of<'a>(way: &Way, prepared: &'a Prepared) -> &'a DevicePlan {
    prepared.one.as_ref().filter(|_| way.is_alone()).unwrap_or(&prepared.several)
}

/// Trains in one way, and returns the results to the process that reports.
pub(crate) fn train_way(
    way: &Way,
    prepared: &Prepared,
    launch: &Launch,
    outputs: &mut Outputs,
) -> anyhow::Result<Option<Trained>> {
    let mut report = if launch.speaks() { outputs.report(&way.name) } else { Report::silent() };
    let report = ForRank0::new(&mut report);
    let trained = launch.run(devices_of(way, prepared), |rank| {
        let Rank { number, device, lines } = rank;
        let _rank = trace::rank(&way.name, *number, *device);
        let mut silent = Report::silent();
        let report = report.take(*number).unwrap_or(&mut silent);
        alike::compare(&lines.main, &settings(way, prepared))?;
        train_rank(way, prepared, device.tensors(), lines, report)
    });
    Ok(trained.map_err(anyhow::Error::from)?.swap_remove(0))
}

/// The settings that must be the same on all ranks, in addition to those that the training loop compares.
fn settings(way: &Way, prepared: &Prepared) -> Vec<(String, String)> {
    let cut = way.pipeline.as_ref().map(|pipeline| &pipeline.cut);
    let settings = [
        ("program version", format!("{:?}", Versions::of_this_binary())),
        ("model", prepared.network.name()),
        ("mesh", prepared.mesh.to_string()),
        ("way", way.name.clone()),
        ("cut", format!("{cut:?}")),
    ];
    settings.map(|(what, value)| (what.to_owned(), value)).to_vec()
}

/// Trains on one rank.
fn train_rank(
    way: &Way,
    prepared: &Prepared,
    device: &Device,
    lines: &Lines,
    report: &mut Report<'_>,
) -> Result<Option<Trained>, Error> {
    let (seed, dtype) = (prepared.setup.options.seed, prepared.dtype());
    let (all, mesh, constants) = (&lines.main, way.mesh, prepared.extras.constants);
    let layers = prepared.network.layers()?;
    if let Some(pipeline) = &way.pipeline {
        let schedule = pipeline.checked.schedule();
        let parts = schedule.parts(mesh.coordinates(all.rank()).pipeline);
        let chunks =
            parts.map(|part| layers.build(pipeline.cut[part].clone(), seed, dtype, device));
        let chunks = chunks.collect::<candle_core::Result<_>>()?;
        // From here on the clocks of all stages count.
        all.barrier()?;
        let (checked, all) = (&pipeline.checked, all.clone());
        let worker = Worker::new(checked, chunks, all, mesh, &SAMPLE, Instant::now())?;
        let held = |worker: &Worker<'_, _>| {
            let measured = worker.measured();
            let held = Held::new(worker.weights(), constants, measured.activations);
            Held { gradients: measured.gradients, sent: measured.sent, ..held }
        };
        let trained = all_steps(&worker, &lines.main, held, prepared, report)?;
        let steps = worker.timelines()?;
        return Ok(trained.map(|trained| Trained { steps, ..trained }));
    }
    if way.is_alone() {
        let network = layers.build(0..layers.len(), seed, dtype, device)?;
        let replica = network.replica(device)?;
        let input = zeros(prepared.rows(way.shards), prepared, device)?;
        let held = Held::new(network.weights(), constants, activations_of(&replica, &input)?);
        drop(replica);
        if way.shards == 1 {
            return all_steps(&network, all, |_| held, prepared, report);
        }
        let sets = TreeSum::most_in_order(FixedTree::new(way.shards, 1)?, 0);
        let held = Held { gradients: sets * held.parameters, ..held };
        let reduction = Reduction::Reproducible { shards: way.shards };
        let model = Ddp::new(network, lines.clone(), reduction)?;
        return all_steps(&model, all, |_| held, prepared, report);
    }
    // A ring saves nothing between two ranks.
    let algorithm = if mesh.tensor > 2 { Algorithm::Ring } else { Algorithm::OneShot };
    let group = Group::new(mesh.along(all, Axis::Tensor)?, algorithm);
    if prepared.network.model == ModelKind::Lenet {
        let model = TensorParallel::new(seed, dtype, group, |parts, _| {
            LeNet::new(Channels::Gathered, parts)
        })?;
        return train_parts(model, mesh, lines, device, prepared, report);
    }
    let widths = prepared.network.widths.clone();
    let model =
        TensorParallel::new(seed, dtype, group, move |parts, _| DenseStack::new(&widths, parts))?;
    train_parts(model, mesh, lines, device, prepared, report)
}

/// Trains a network whose layers are in parts, on one rank.
fn train_parts<M: ModuleT>(
    model: TensorParallel<M>,
    mesh: Mesh,
    lines: &Lines,
    device: &Device,
    prepared: &Prepared,
    report: &mut Report<'_>,
) -> Result<Option<Trained>, Error> {
    let input = zeros(prepared.rows(mesh.data), prepared, device)?;
    let activations = activations_of(model.network(), &input)?;
    let held = Held::new(model.weights(), prepared.extras.constants, activations);
    if mesh.data == 1 {
        return all_steps(&model, &lines.main, |_| held, prepared, report);
    }
    // The gradients in the buckets, and their sums.
    let held = Held { gradients: 2 * held.parameters, ..held };
    let model = Replicated::new(model, lines, mesh, Reduction::default())?;
    all_steps(&model, &lines.main, |_| held, prepared, report)
}

/// Trains a model with stage 5's loop, and collects the results on rank 0.
fn all_steps<M: Whole>(
    model: &M,
    all: &SharedCommunicator,
    held: impl FnOnce(&M) -> Held,
    prepared: &Prepared,
    report: &mut Report<'_>,
) -> Result<Option<Trained>, Error> {
    let Prepared { setup, extras, .. } = prepared;
    let watched = Watched { model, steps: Cell::new(0), after_first_step: RefCell::new(None) };
    let trained = train(&watched, &setup.data, &setup.options, extras, None, report)?;
    let after_first_step = match watched.after_first_step.take() {
        Some(weights) => weights,
        // There was no second step.
        None => model.weights().snapshot()?,
    };
    let after_first_step = model.whole(after_first_step)?;
    let weights = model.whole(trained.weights)?;
    let hash = weights.as_ref().map(|weights| WeightsHash::new(weights)).transpose()?;
    let replicas = text::values_gathered(&**all, &hash.map(|hash| format!("{hash:?}")))?;
    let held = text::values_gathered(&**all, &held(model))?;
    // The results of all ranks are on rank 0 only.
    let whole = after_first_step.zip(weights).filter(|_| all.rank() == 0);
    Ok(whole.map(|(after_first_step, weights)| Trained {
        records: trained.records,
        after_first_step,
        weights,
        replicas: replicas.into_iter().flatten().collect(),
        held,
        steps: Vec::new(),
    }))
}

/// A batch of black images.
fn zeros(rows: usize, prepared: &Prepared, device: &Device) -> candle_core::Result<Tensor> {
    Tensor::zeros([&[rows], SAMPLE.as_slice()].concat(), prepared.dtype(), device)
}

/// A model that keeps a copy of the weights after the first step, before rounding differences grow.
struct Watched<'a, M> {
    model: &'a M,
    steps: Cell<usize>,
    after_first_step: RefCell<Option<Snapshot>>,
}

impl<M: Model> Watched<'_, M> {
    /// Copies the weights before the second step.
    fn before_step(&self) -> candle_core::Result<()> {
        if self.steps.replace(self.steps.get() + 1) == 1 {
            self.after_first_step.replace(Some(self.model.weights().snapshot()?));
        }
        Ok(())
    }
}

impl<M: Model> Model for Watched<'_, M> {
    fn hosts(&self) -> Shards {
        self.model.hosts()
    }

    fn backward(&self, share: &LocalBatch) -> Result<Step, Error> {
        self.before_step()?;
        self.model.backward(share)
    }

    fn backward_deferred(&self, share: &LocalBatch) -> Result<(StepSums, Vec<Tensor>), Error> {
        self.before_step()?;
        self.model.backward_deferred(share)
    }

    fn begins_after(&self, steps: usize) {
        self.model.begins_after(steps);
    }

    fn ends(&self) -> Result<(), Error> {
        self.model.ends()
    }

    fn precision(&self) -> Precision {
        self.model.precision()
    }

    fn weights(&self) -> &Weights {
        self.model.weights()
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        self.model.rank()
    }

    fn is_whole(&self) -> bool {
        self.model.is_whole()
    }

    fn evaluate(&self, images: &Dataset) -> Result<Option<BatchSums>, Error> {
        self.model.evaluate(images)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use concise_wrapper::optimiser::{Momentum, Sgd};
    use datasets::loader::Epochs as _;
    use datasets::{CLASSES, PIXELS};
    use model_parallel::layers::Layers;
    use ops::weights_hash::WeightsHash;
    use split_batch::loader::ShardLoader;

    use super::*;

    #[test]
    fn the_weights_after_the_first_step_are_watched() {
        let data = Dataset::new(vec![[100; PIXELS]; 6], vec![3; 6]).unwrap();
        let layers = Layers::dense(&[PIXELS, CLASSES]).unwrap();
        for steps in 1..=3 {
            let network = layers.build(0..1, 1, DType::F64, &Device::Cpu).unwrap();
            let watched = Watched {
                model: &network,
                steps: Cell::new(0),
                after_first_step: RefCell::new(None),
            };
            let shares = ShardLoader::new(&data, 2, 1, DType::F64, watched.hosts());
            let mut sgd = Sgd::new(Momentum::default());
            let mut hashes = Vec::new();
            for share in shares.epoch(1).take(steps) {
                let share = share.unwrap();
                // As the loop does.
                let (_, gradients) = watched.backward_deferred(&share).unwrap();
                sgd.step(watched.weights(), &gradients, 0.1, share.samples).unwrap();
                hashes.push(WeightsHash::new(&watched.weights().snapshot().unwrap()).unwrap());
            }
            let after_first = watched
                .after_first_step
                .take()
                .unwrap_or_else(|| watched.weights().snapshot().unwrap());
            let after_first = WeightsHash::new(&after_first).unwrap();
            assert_eq!(after_first, hashes[0], "{steps} steps");
            assert!(hashes.windows(2).all(|pair| pair[0] != pair[1]), "every step changes them");
        }
    }
}

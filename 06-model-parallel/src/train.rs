//! Training in one way, on all its devices.

use std::time::Instant;

use candle_core::{Device, ModuleT, Tensor};
use concise_wrapper::ddp::{Reduction, alike};
use concise_wrapper::launch::Launch;
use concise_wrapper::weights::Snapshot;
use concise_wrapper::{Ddp, Error, Model as _, text, train};
use datasets::SAMPLE;
use devices::DevicePlan;
use harness::records::EpochRecord;
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
    let report = if launch.speaks() { outputs.report(&way.name) } else { Report::silent() };
    let plan = devices_of(way, prepared);
    let mut reports = vec![report];
    reports.resize_with(plan.len(), Report::silent);
    let trained = launch.run(plan, reports, |device, rank, mut report| {
        let _rank = trace::rank(&way.name, rank.rank(), device);
        alike::compare(&rank, &settings(way, prepared))?;
        train_rank(way, prepared, device.tensors(), &rank, &mut report)
    });
    Ok(trained?.swap_remove(0))
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
    all: &SharedCommunicator,
    report: &mut Report<'_>,
) -> Result<Option<Trained>, Error> {
    let (seed, dtype) = (prepared.setup.options.seed, prepared.dtype());
    let (mesh, constants) = (way.mesh, prepared.extras.constants);
    let layers = prepared.network.layers()?;
    if let Some(pipeline) = &way.pipeline {
        let schedule = pipeline.checked.schedule();
        let parts = schedule.parts(mesh.coordinates(all.rank()).pipeline);
        let chunks =
            parts.map(|part| layers.build(pipeline.cut[part].clone(), seed, dtype, device));
        let chunks = chunks.collect::<candle_core::Result<_>>()?;
        // From here on the clocks of all stages count.
        all.barrier()?;
        let (checked, now) = (&pipeline.checked, Instant::now());
        let worker = Worker::new(checked, chunks, all.clone(), mesh, &SAMPLE, now)?;
        let held = |worker: &Worker<'_, _>| {
            let measured = worker.measured();
            let held = Held::new(worker.weights(), constants, measured.activations);
            Held { gradients: measured.gradients, sent: measured.sent, ..held }
        };
        let trained = all_steps(&worker, all, held, prepared, report)?;
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
        let model = Ddp::new(network, all.clone(), reduction)?;
        return all_steps(&model, all, |_| held, prepared, report);
    }
    // A ring saves nothing between two ranks.
    let algorithm = if mesh.tensor > 2 { Algorithm::Ring } else { Algorithm::OneShot };
    let group = Group::new(mesh.along(all, Axis::Tensor)?, algorithm);
    if prepared.network.model == ModelKind::Lenet {
        let model = TensorParallel::new(seed, dtype, group, |parts, _| {
            LeNet::new(Channels::Gathered, parts)
        })?;
        return train_parts(model, mesh, all, device, prepared, report);
    }
    let widths = prepared.network.widths.clone();
    let model =
        TensorParallel::new(seed, dtype, group, move |parts, _| DenseStack::new(&widths, parts))?;
    train_parts(model, mesh, all, device, prepared, report)
}

/// Trains a network whose layers are in parts, on one rank.
fn train_parts<M: ModuleT>(
    model: TensorParallel<M>,
    mesh: Mesh,
    all: &SharedCommunicator,
    device: &Device,
    prepared: &Prepared,
    report: &mut Report<'_>,
) -> Result<Option<Trained>, Error> {
    let input = zeros(prepared.rows(mesh.data), prepared, device)?;
    let activations = activations_of(model.network(), &input)?;
    let held = Held::new(model.weights(), prepared.extras.constants, activations);
    if mesh.data == 1 {
        return all_steps(&model, all, |_| held, prepared, report);
    }
    // The gradients in the buckets, and their sums.
    let held = Held { gradients: 2 * held.parameters, ..held };
    let model = Replicated::new(model, all, mesh, Reduction::default())?;
    all_steps(&model, all, |_| held, prepared, report)
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
    // After the first step no rounding has been amplified yet.
    let mut after_first_step = Vec::new();
    let trained = train(model, &setup.data, &setup.options, extras, None, report, |progress| {
        if progress.steps <= 1 {
            after_first_step = model.weights().snapshot()?;
        }
        Ok(())
    })?;
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

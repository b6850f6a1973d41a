//! Training in one way, on one of its ranks.

use std::time::Instant;

use candle_core::{Device, Tensor};
use concise_wrapper::ddp::alike;
use concise_wrapper::model::Progress;
use concise_wrapper::weights::{Snapshot, Weights};
use concise_wrapper::{Error, Model as _, text, train};
use datasets::SAMPLE;
use devices::ComputeDevice;
use harness::records::EpochRecord;
use harness::report::Report;
use harness::report::summary::Versions;
use harness::report::trace;
use model_parallel::held::{Held, activations_of};
use model_parallel::mesh::Axis;
use model_parallel::pipeline::{Timeline, Worker};
use model_parallel::tensor_parallel::Group;
use ops::weights_hash::WeightsHash;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;

use crate::arguments::Prepared;
use crate::plan::{Pipeline, Way};

/// The task of one rank.
pub(crate) struct RankTask<'a> {
    pub(crate) way: &'a Way,
    pub(crate) prepared: &'a Prepared,
    pub(crate) report: Report<'a>,
}

impl<'a> RankTask<'a> {
    /// The tasks of all ranks of this process. The first one reports.
    pub(crate) fn of_ranks(way: &'a Way, prepared: &'a Prepared, report: Report<'a>) -> Vec<Self> {
        let reports = report.of_ranks(prepared.devices_of(way).len());
        reports.into_iter().map(|report| RankTask { way, prepared, report }).collect()
    }
}

/// The results of a way on rank 0.
pub(crate) struct Trained {
    pub(crate) records: Vec<EpochRecord>,
    /// The weights of the whole model, before rounding errors have grown.
    pub(crate) after_first_step: Snapshot,
    pub(crate) weights: Snapshot,
    /// The hash of each replica's whole weights.
    pub(crate) replicas: Vec<String>,
    /// The bytes of each device.
    pub(crate) held: Vec<Held>,
    /// The timelines of the first steps.
    pub(crate) steps: Vec<Timeline>,
}

/// Trains a stage, or a part of a stage, and returns the results on rank 0.
pub(crate) fn train_rank(
    device: &ComputeDevice,
    all: SharedCommunicator,
    RankTask { way, prepared, mut report }: RankTask<'_>,
) -> Result<Option<Trained>, Error> {
    let _rank = trace::rank(&way.name, all.rank(), device);
    alike::compare(&all, &settings(way, prepared))?;
    let Some(Pipeline { checked, cut, .. }) = &way.pipeline else {
        return train_alone(prepared, device.tensors(), &all, &mut report);
    };
    let Prepared { layers, setup, extras, .. } = prepared;
    // A ring saves nothing between two ranks.
    let algorithm = if way.mesh.tensor > 2 { Algorithm::Ring } else { Algorithm::OneShot };
    let group = match way.mesh.tensor {
        1 => Group::alone(),
        _ => Group::new(way.mesh.along(&all, Axis::Tensor)?, algorithm),
    };
    let (seed, dtype) = (setup.options.seed, setup.dtype);
    let parts = checked.schedule().parts(way.mesh.coordinates(all.rank()).pipeline);
    let build =
        |part: usize| layers.build_part(cut[part].clone(), seed, dtype, device.tensors(), &group);
    let chunks = parts.map(build).collect::<Result<_, _>>()?;
    // From here on the clocks of all stages count.
    all.barrier()?;
    let worker = Worker::new(checked, chunks, all.clone(), way.mesh, &SAMPLE, Instant::now())?;
    let mut after_first_step = Vec::new();
    let observe = keep_first(worker.weights(), &mut after_first_step);
    let trained = train(&worker, &setup.data, &setup.options, extras, None, &mut report, observe)?;
    let whole = |mine: Snapshot| worker.whole(layers.join(mine, &group)?);
    let weights = [whole(after_first_step)?, whole(trained.weights)?];
    let measured = worker.measured();
    let held = Held {
        gradients: measured.gradients,
        sent: measured.sent,
        ..Held::new(worker.weights(), extras.constants, measured.activations)
    };
    collect(&all, trained.records, weights, held, worker.timelines()?)
}

/// Trains the whole model on one device, on whole batches. This is the device to beat, so there is no worker.
fn train_alone(
    prepared: &Prepared,
    device: &Device,
    all: &SharedCommunicator,
    report: &mut Report<'_>,
) -> Result<Option<Trained>, Error> {
    let Prepared { layers, setup, extras, .. } = prepared;
    let network = layers.build(0..layers.len(), setup.options.seed, setup.dtype, device)?;
    let rows = [prepared.rows(1)];
    let input = Tensor::zeros([&rows, SAMPLE.as_slice()].concat(), setup.dtype, device)?;
    // Batch norms of a replica see the zeros.
    let activations = activations_of(&network.replica(device)?, &input)?;
    let held = Held::new(network.weights(), extras.constants, activations);
    let mut after_first_step = Vec::new();
    let observe = keep_first(network.weights(), &mut after_first_step);
    let trained = train(&network, &setup.data, &setup.options, extras, None, report, observe)?;
    collect(all, trained.records, [Some(after_first_step), Some(trained.weights)], held, Vec::new())
}

/// An observer of the training loop that copies the weights after the first step.
fn keep_first(
    weights: &Weights,
    copy: &mut Snapshot,
) -> impl FnMut(Progress<'_>) -> Result<(), Error> {
    move |progress| {
        if progress.steps == 1 {
            *copy = weights.snapshot()?;
        }
        Ok(())
    }
}

/// Collects the results of all ranks on rank 0. All ranks call this together.
fn collect(
    all: &SharedCommunicator,
    records: Vec<EpochRecord>,
    [after_first_step, weights]: [Option<Snapshot>; 2],
    held: Held,
    steps: Vec<Timeline>,
) -> Result<Option<Trained>, Error> {
    let hash = weights.as_ref().map(|weights| WeightsHash::new(weights)).transpose()?;
    let replicas = text::values_gathered(&**all, &hash.map(|hash| format!("{hash:?}")))?;
    let held = text::values_gathered(&**all, &held)?;
    let replicas = replicas.into_iter().flatten().collect();
    let whole = after_first_step.zip(weights).filter(|_| all.rank() == 0);
    Ok(whole.map(|(after_first_step, weights)| Trained {
        records,
        after_first_step,
        weights,
        replicas,
        held,
        steps,
    }))
}

/// The settings that must be the same on all ranks, in addition to those that the training loop compares.
fn settings(way: &Way, prepared: &Prepared) -> Vec<(String, String)> {
    let cut = way.pipeline.as_ref().map(|pipeline| &pipeline.cut);
    let settings = [
        ("program version", format!("{:?}", Versions::of_this_binary())),
        ("model", prepared.layers.name().to_owned()),
        ("epochs", prepared.setup.options.epochs.to_string()),
        ("mesh", prepared.mesh.to_string()),
        ("way", way.name.clone()),
        ("cut", format!("{cut:?}")),
    ];
    settings.map(|(what, value)| (what.to_owned(), value)).to_vec()
}

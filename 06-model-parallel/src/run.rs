//! A run: one way to train, on however many devices it takes.

use candle_core::{DType, Device, ModuleT, Tensor};
use concise_wrapper::ddp::{Reduction, alike};
use concise_wrapper::launch::Launch;
use concise_wrapper::{Ddp, Error, Model, text, train};
use datasets::SAMPLE;
use harness::report::Report;
use harness::report::outputs::Outputs;
use harness::report::trace;
use model_parallel::held::{Held, activations_of};
use model_parallel::mesh::{Axis, Mesh};
use model_parallel::pipeline::PipelineParallel;
use model_parallel::tensor_parallel::dense::DenseStack;
use model_parallel::tensor_parallel::lenet::{Channels, LeNet};
use model_parallel::tensor_parallel::{Group, Replicated, TensorParallel};
use model_parallel::whole::Whole;
use ops::weights_hash::WeightsHash;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;
use scratch_data_parallel::{FixedTree, TreeSum};

use crate::arguments::{ModelKind, Prepared};
use crate::outcome::{Outcome, Shown};
use crate::way::{Planned, Way};

/// Trains in one way; what comes back is for the process that speaks.
pub(crate) fn run<'a>(
    way: &'a Way,
    planned: &Planned,
    prepared: &Prepared,
    launch: &Launch,
    outputs: &mut Outputs,
) -> anyhow::Result<Option<Outcome<'a>>> {
    let name = way.name();
    let report = if launch.speaks() { outputs.report(&name) } else { Report::silent() };
    let plan = match (way, &prepared.one) {
        (Way::Alone { .. }, Some(one)) => one,
        _ => &prepared.several,
    };
    let mut reports = vec![report];
    reports.resize_with(plan.len(), Report::silent);
    let shown = launch.run(plan, reports, |device, rank, mut report| {
        let _rank = trace::rank(&name, rank.rank(), device);
        alike::compare(&rank, &prepared.to_compare(way, planned))?;
        one_rank(way, planned, prepared, device.tensors(), &rank, &mut report)
    });
    let shown = shown?.swap_remove(0);
    shown.map(|shown| Outcome::new(way, planned, prepared, plan, shown, outputs)).transpose()
}

/// One rank's part.
fn one_rank(
    way: &Way,
    planned: &Planned,
    prepared: &Prepared,
    device: &Device,
    all: &SharedCommunicator,
    report: &mut Report<'_>,
) -> Result<Option<Shown>, Error> {
    let (seed, dtype) = (prepared.setup.options.seed, prepared.dtype());
    let constants = prepared.extras.constants;
    let build = |layers| prepared.network.layers()?.build(layers, seed, dtype, device);
    match way {
        Way::Alone { shards } => {
            let network = build(0..prepared.network.layers()?.len())?;
            let replica = network.replica(device)?;
            let input = zeros(prepared.rows(*shards), dtype, device)?;
            let held = Held::new(network.weights(), constants, activations_of(&replica, &input)?);
            drop(replica);
            if *shards == 1 {
                return all_steps(&network, all, |_| held, prepared, report);
            }
            let sets = TreeSum::most_in_order(FixedTree::new(*shards, 1)?, 0);
            let held = Held { gradients: sets * held.parameters, ..held };
            let reduction = Reduction::Reproducible { shards: *shards };
            let model = Ddp::new(network, all.clone(), reduction)?;
            all_steps(&model, all, |_| held, prepared, report)
        }
        Way::Pipeline { checked, mesh, .. } => {
            let stage = mesh.coordinates(all.rank()).pipeline;
            let network = build(planned.cut[stage].clone())?;
            let model = PipelineParallel::new(checked, network, all.clone(), *mesh, &SAMPLE)?;
            let shown = all_steps(&model, all, |model| model.held(constants), prepared, report)?;
            let steps = model.timelines()?;
            Ok(shown.map(|shown| Shown { steps, ..shown }))
        }
        Way::Tensor { mesh } => {
            // A ring has nothing to save between two.
            let algorithm = if mesh.tensor > 2 { Algorithm::Ring } else { Algorithm::OneShot };
            let group = Group::new(mesh.along(all, Axis::Tensor)?, algorithm);
            match prepared.network.model {
                ModelKind::Lenet => {
                    let model = TensorParallel::new(seed, dtype, group, |parts, _| {
                        LeNet::new(Channels::Gathered, parts)
                    })?;
                    in_parts(model, *mesh, all, device, prepared, report)
                }
                ModelKind::Dense => {
                    let widths = prepared.network.widths.clone();
                    let model = TensorParallel::new(seed, dtype, group, move |parts, _| {
                        DenseStack::new(&widths, parts)
                    })?;
                    in_parts(model, *mesh, all, device, prepared, report)
                }
                ModelKind::Resnet18 => {
                    let text = "ResNet-18 is split in stages only".to_owned();
                    Err(candle_core::Error::Msg(text).into())
                }
            }
        }
    }
}

/// One rank's part of a network whose layers are in parts.
fn in_parts<M: ModuleT>(
    model: TensorParallel<M>,
    mesh: Mesh,
    all: &SharedCommunicator,
    device: &Device,
    prepared: &Prepared,
    report: &mut Report<'_>,
) -> Result<Option<Shown>, Error> {
    let constants = prepared.extras.constants;
    let input = zeros(prepared.rows(mesh.data), prepared.dtype(), device)?;
    let activations = activations_of(model.network(), &input)?;
    let held = Held::new(model.weights(), constants, activations);
    if mesh.data == 1 {
        return all_steps(&model, all, |_| held, prepared, report);
    }
    // Those in the buckets, and their sums.
    let held = Held { gradients: 2 * held.parameters, ..held };
    let model = Replicated::new(model, all, mesh, Reduction::default())?;
    all_steps(&model, all, |_| held, prepared, report)
}

/// All steps, and what they come to, on rank 0.
fn all_steps<M: Whole>(
    model: &M,
    all: &SharedCommunicator,
    held: impl FnOnce(&M) -> Held,
    prepared: &Prepared,
    report: &mut Report<'_>,
) -> Result<Option<Shown>, Error> {
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
    // Only rank 0 has been told of all.
    let shown = after_first_step.zip(weights).filter(|_| all.rank() == 0);
    Ok(shown.map(|(after_first_step, weights)| Shown {
        records: trained.records,
        after_first_step,
        weights,
        replicas: replicas.into_iter().flatten().collect(),
        held,
        steps: Vec::new(),
    }))
}

fn zeros(rows: usize, dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
    Tensor::zeros([&[rows], SAMPLE.as_slice()].concat(), dtype, device)
}

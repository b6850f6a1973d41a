//! Training in one way, on one of its ranks.

use candle_core::{Device, Tensor};
use concise_wrapper::ddp::alike;
use concise_wrapper::model::Progress;
use concise_wrapper::optimizer::{Extras, Optimizer as _, Sgd};
use concise_wrapper::weights::{Snapshot, Weights};
use concise_wrapper::{Error, Model as _, text, train};
use datasets::SAMPLE;
use devices::ComputeDevice;
use harness::records::EpochRecord;
use harness::report::Report;
use harness::report::summary::Versions;
use harness::report::trace;
use model_parallel::execute::{Executor, Held, Settings};
use model_parallel::held::activations;
use model_parallel::mesh::Axis;
use model_parallel::{Bytes, Timeline};
use model_state::weights_hash::WeightsHash;
use ops::size_in_bytes;
use params_and_allreduce::communicator::SharedCommunicator;

use crate::plan::{Prepared, Way};

/// The results of a way on rank 0.
pub(crate) struct Trained {
    pub(crate) records: Vec<EpochRecord>,
    /// The weights of the whole model: after the first step, before rounding errors have grown, and at the end.
    pub(crate) weights: [Snapshot; 2],
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
    (way, prepared, mut report): (&Way, &Prepared, Report<'_>),
) -> Result<Option<Trained>, Error> {
    let _rank = trace::rank(&way.name, all.rank(), device);
    // The training loop compares further settings.
    let settings = [
        ("program version", format!("{:?}", Versions::of_this_binary())),
        ("model", prepared.layers.name().to_owned()),
        ("epochs", prepared.setup.options.epochs.to_string()),
        ("way", way.name.clone()),
        ("cut", format!("{:?}", way.cut)),
    ];
    alike::compare(&all, &settings.map(|(what, value)| (what.to_owned(), value)))?;
    if way.is_alone() && way.shards == 1 {
        return train_alone(prepared, device.tensors(), &all, &mut report);
    }
    let Prepared { flags, layers, setup, .. } = prepared;
    let Way { mesh, checked, .. } = way;
    let group = mesh.along(&all, Axis::Tensor)?;
    let build = |part: usize| {
        let (range, seed) = (way.cut[part].clone(), setup.options.seed);
        layers.build_part(range, seed, setup.dtype, device.tensors(), &group)
    };
    let units = checked.schedule().units_of(mesh.coordinate(all.rank(), Axis::Pipeline));
    let units = units.map(build).collect::<Result<_, _>>()?;
    let settings = Settings { by_shards: way.by_shards, ..Settings::default() };
    let executor = Executor::with(checked, units, all.clone(), *mesh, &SAMPLE, settings)?;
    let mut first = Vec::new();
    let observe = keep_first(executor.weights(), &mut first);
    let (data, options, Extras { constants, warm_up }) =
        (&setup.data, &setup.options, flags.extras);
    let sgd = &mut Sgd::new(constants);
    let trained = train(&executor, data, options, (sgd, warm_up), None, &mut report, observe)?;
    let whole = |mine: Snapshot| executor.whole(layers.join(mine, &group)?);
    let weights = whole(first)?.zip(whole(trained.weights)?);
    let held = executor.measured().held;
    collect(&all, trained.records, weights, held, executor.timelines()?)
}

/// Trains the whole model on one device, on whole batches. This is the device to beat, so there is no executor.
fn train_alone(
    prepared: &Prepared,
    device: &Device,
    all: &SharedCommunicator,
    report: &mut Report<'_>,
) -> Result<Option<Trained>, Error> {
    let Prepared { flags, layers, setup, .. } = prepared;
    let (data, options, Extras { constants, warm_up }) =
        (&setup.data, &setup.options, flags.extras);
    let network = layers.build(0..layers.len(), options.seed, setup.dtype, device)?;
    let activations = {
        let shape = [&[prepared.batch()], SAMPLE.as_slice()].concat();
        let input = Tensor::zeros(shape, setup.dtype, device)?;
        // Batch norms see the zeros.
        let replica = network.replica(device)?;
        activations(&replica.forward_training(&input)?, &input, replica.weights())
    };
    let (mut first, mut sgd) = (Vec::new(), Sgd::new(constants));
    let observe = keep_first(network.weights(), &mut first);
    let trained = train(&network, data, options, (&mut sgd, warm_up), None, report, observe)?;
    let parameters = network.weights().parameter_bytes();
    let state = sgd.state(network.weights())?;
    let optimizer = state.iter().map(|(_, tensor)| size_in_bytes(tensor)).sum();
    let peak = Bytes { parameters, gradients: parameters, optimizer, activations, messages: 0 };
    let held = Held { peak, total: peak.total(), sent: 0 };
    collect(all, trained.records, Some((first, trained.weights)), held, Vec::new())
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

/// Collects the results of all ranks on rank 0. All ranks call this together. The first rank of each replica has its
/// `weights`: after the first step, and at the end.
fn collect(
    all: &SharedCommunicator,
    records: Vec<EpochRecord>,
    weights: Option<(Snapshot, Snapshot)>,
    held: Held,
    steps: Vec<Timeline>,
) -> Result<Option<Trained>, Error> {
    let hash = weights.as_ref().map(|(_, last)| WeightsHash::new(last)).transpose()?;
    let hashes = text::values_gathered(&**all, &hash.map(|hash| format!("{hash:?}")))?;
    let held = text::values_gathered(&**all, &held)?;
    let replicas = hashes.into_iter().flatten().collect();
    let of_rank_0 = weights.filter(|_| all.rank() == 0);
    Ok(of_rank_0.map(|weights| Trained { records, weights: weights.into(), replicas, held, steps }))
}

//! Training in one way, on one of its ranks.

use candle_core::{Device, Tensor};
use concise_wrapper::ddp::alike;
use concise_wrapper::model::Progress;
use concise_wrapper::optimizer::{Optimizer as _, Sgd};
use concise_wrapper::weights::Snapshot;
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
use trainer::TrainSetup;

use crate::plan::{Prepared, Way};

/// The results of a way.
#[derive(Default)]
pub(crate) struct Trained {
    pub(crate) records: Vec<EpochRecord>,
    /// The weights of the whole model: after the first step, before rounding errors have grown, and at the end. The first rank
    /// of each replica has them.
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
    let Prepared { flags, layers, setup: TrainSetup { data, options, dtype, .. }, .. } = prepared;
    // The training loop compares further settings.
    let settings = [
        ("program version", format!("{:?}", Versions::of_this_binary())),
        ("model", layers.name().to_owned()),
        ("epochs", options.epochs.to_string()),
        ("way", way.name.clone()),
        ("cut", format!("{:?}", way.cut)),
    ];
    alike::compare(&all, &settings.map(|(what, value)| (what.to_owned(), value)))?;
    if way.is_alone() && way.shards == 1 {
        return collect(&all, train_alone(prepared, device.tensors(), &mut report)?);
    }
    let Way { mesh, checked, .. } = way;
    let group = mesh.along(&all, Axis::Tensor)?;
    let build = |part: usize| {
        let range = way.cut[part].clone();
        layers.build_part(range, options.seed, *dtype, device.tensors(), &group)
    };
    let units = checked.schedule().units_of(mesh.coordinate(all.rank(), Axis::Pipeline));
    let units = units.map(build).collect::<Result<_, _>>()?;
    let settings = Settings { by_shards: way.by_shards, ..Settings::default() };
    let executor = Executor::with(checked, units, all.clone(), *mesh, &SAMPLE, settings)?;
    let (mut first, mut sgd) = (Vec::new(), Sgd::new(flags.extras.constants));
    let observe = |now: Progress<'_>| {
        if now.steps == 1 {
            first = executor.weights().snapshot()?;
        }
        Ok(())
    };
    let update = (&mut sgd as _, flags.extras.warm_up);
    let trained = train(&executor, data, options, update, None, &mut report, observe)?;
    let whole = |mine: Snapshot| executor.whole(layers.join(mine, &group)?);
    let weights = [whole(first)?, whole(trained.weights)?].map(Option::unwrap_or_default);
    let (held, steps) = (vec![executor.measured().held], executor.timelines()?);
    collect(&all, Trained { records: trained.records, weights, held, steps, ..Trained::default() })
}

/// Trains the whole model on one device, on whole batches. This is the device to beat, so there is no executor.
fn train_alone(
    prepared: &Prepared,
    on: &Device,
    report: &mut Report<'_>,
) -> Result<Trained, Error> {
    let Prepared { flags, layers, setup: TrainSetup { data, options, dtype, .. }, .. } = prepared;
    let network = layers.build(0..layers.len(), options.seed, *dtype, on)?;
    let activations = {
        let shape = [&[options.batch_size.min(data.train.len())], SAMPLE.as_slice()].concat();
        let input = Tensor::zeros(shape, *dtype, on)?;
        // Batch norms see the zeros.
        let replica = network.replica(on)?;
        activations(&replica.forward_training(&input)?, &input, replica.weights())
    };
    let (mut first, mut sgd) = (Vec::new(), Sgd::new(flags.extras.constants));
    let observe = |now: Progress<'_>| {
        if now.steps == 1 {
            first = network.weights().snapshot()?;
        }
        Ok(())
    };
    let update = (&mut sgd as _, flags.extras.warm_up);
    let trained = train(&network, data, options, update, None, report, observe)?;
    let (parameters, state) = (network.weights().parameter_bytes(), sgd.state(network.weights())?);
    let optimizer = state.iter().map(|(_, tensor)| size_in_bytes(tensor)).sum();
    let peak = Bytes { parameters, gradients: parameters, optimizer, activations, messages: 0 };
    let held = vec![Held { peak, total: peak.total(), sent: 0 }];
    let (records, weights) = (trained.records, [first, trained.weights]);
    Ok(Trained { records, weights, held, ..Trained::default() })
}

/// Collects the results of all ranks on rank 0. All ranks call this together.
fn collect(all: &SharedCommunicator, mut mine: Trained) -> Result<Option<Trained>, Error> {
    let [_, last] = &mine.weights;
    let hash = (!last.is_empty()).then(|| WeightsHash::new(last)).transpose()?;
    let hashes = text::values_gathered(&**all, &hash.map(|hash| format!("{hash:?}")))?;
    mine.replicas = hashes.into_iter().flatten().collect();
    mine.held = text::values_gathered(&**all, &mine.held)?.concat();
    Ok((all.rank() == 0).then_some(mine))
}

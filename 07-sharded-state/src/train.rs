//! A run, on one of its ranks.

use std::sync::Arc;

use concise_wrapper::ddp::alike;
use concise_wrapper::model::Progress;
use concise_wrapper::optimizer::AdamW;
use concise_wrapper::slow_link::SlowNetwork;
use concise_wrapper::weights::Snapshot;
use concise_wrapper::{Error, Model as _, Store, train};
use datasets::SAMPLE;
use devices::ComputeDevice;
use harness::records::EpochRecord;
use harness::report::summary::Versions;
use harness::report::{Report, trace};
use itertools::Itertools as _;
use model_parallel::Timeline;
use model_parallel::execute::unit::Unit;
use model_parallel::execute::{Executor, Held, Settings};
use model_parallel::mesh::Mesh;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;
use sharded_state::{Counted, Sets, Sharded, Sharing};

use crate::plan::{Prepared, Run};

/// The results of a run on a rank. Rank 0 has the largest chunks.
pub(crate) struct Trained {
    pub(crate) records: Vec<EpochRecord>,
    /// The whole model: after the first step, before rounding errors have grown, and at the end.
    pub(crate) weights: [Snapshot; 2],
    pub(crate) held: Held,
    /// The step with the median time.
    pub(crate) step: Option<Timeline>,
}

/// Trains a rank's part of the state.
pub(crate) fn train_rank(
    device: &ComputeDevice,
    comm: SharedCommunicator,
    (run, prepared, slow, report): (&Run, &Prepared, Option<&Arc<SlowNetwork>>, Report<'_>),
) -> Result<Trained, Error> {
    let _rank = trace::rank(&run.name, comm.rank(), device);
    let counted = Counted::new(slow.map_or(comm.clone(), |slow| slow.slow_down(comm)));
    let comm: SharedCommunicator = Arc::new(counted.clone());
    let Prepared { layers, setup, flags, .. } = prepared;
    // The training loop and the executor compare further settings.
    let version = format!("{:?}", Versions::of_this_binary());
    let settings = [
        ("program version", version),
        ("strategy", run.name.clone()),
        ("epochs", flags.train.epochs.to_string()),
    ];
    alike::compare(&comm, &settings.map(|(what, value)| (what.to_owned(), value)))?;
    let mesh = Mesh { data: run.replicas, ..Mesh::pipeline(1) };
    let settings = Settings { algorithm: Algorithm::Ring, ..Settings::default() };
    let (seed, dtype) = (setup.options.seed, setup.dtype);
    let mut checkpoints = flags.checkpoints.clone();
    let of_model = ("model", layers.name().to_owned());
    checkpoints.iter_mut().for_each(|it| it.configuration.extend([of_model.clone()]));
    let build = |unit| layers.build(unit..unit + 1, seed, dtype, device.tensors());
    if run.strategy.sharing == Sharing::Ddp {
        let units = (0..layers.len()).map(build).collect::<Result<_, _>>()?;
        let executor = Executor::with(&run.checked, units, comm, mesh, &SAMPLE, settings)?;
        let whole = || Ok(executor.weights().snapshot()?);
        let of_ddp = ("sharing", "ddp".to_owned());
        checkpoints.iter_mut().for_each(|it| it.configuration.extend([of_ddp.clone()]));
        let store = checkpoints.as_ref().map(|it| it as &dyn Store);
        return train_units(&executor, whole, store, &counted, prepared, report);
    }
    let unit = |unit, replicas: &_| Sharded::new(unit, build(unit)?, replicas);
    let executor = Executor::of_units(&run.checked, comm, mesh, &SAMPLE, settings, unit)?;
    let whole = || executor.units().map(Sharded::whole).flatten_ok().collect();
    let sets = checkpoints.map(|it| Sets::new(it, run.strategy.sharing, &executor)).transpose()?;
    let store = sets.as_ref().map(|it| it as &dyn Store);
    train_units(&executor, whole, store, &counted, prepared, report)
}

/// Trains units of any kind. All ranks call `whole` together, which returns the weights of the whole model.
fn train_units<U: Unit>(
    executor: &Executor<U>,
    whole: impl Fn() -> Result<Snapshot, Error>,
    store: Option<&dyn Store>,
    counted: &Counted,
    Prepared { setup, .. }: &Prepared,
    mut report: Report<'_>,
) -> Result<Trained, Error> {
    let (mut first, mut before, mut sent) = (None, 0, Vec::new());
    let observe = |now: Progress<'_>| {
        if now.last.is_some() {
            // Between the last step of an epoch and the next step is an evaluation.
            sent.push((counted.sent() - before) as usize);
            first = if first.is_none() { Some(whole()?) } else { first.take() };
        }
        before = counted.sent();
        Ok(())
    };
    let adamw = (&mut AdamW::default() as _, 0);
    let trained = train(executor, &setup.data, &setup.options, adamw, store, &mut report, observe)?;
    let weights = [first.unwrap_or_default(), whole()?];
    let step = Timeline::median(&executor.timelines()?, Timeline::makespan).cloned();
    let sent = sent.into_iter().min().unwrap_or(0);
    let held = Held { sent, ..executor.measured().held };
    Ok(Trained { records: trained.records, weights, held, step })
}

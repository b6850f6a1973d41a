//! A run, on one of its ranks.

use concise_wrapper::counted::Counted;
use concise_wrapper::optimizer::AdamW;
use concise_wrapper::{Error, Model as _, Store};
use devices::ComputeDevice;
use harness::report::Report;
use itertools::Itertools as _;
use model_parallel::execute::{Executor, Settings};
use model_parallel::mesh::Axis;
use model_parallel::runs::{Trained, Training};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;
use sharded_state::{Sets, Sharded, Sharing};

use crate::arguments::Arguments;
use crate::plan::Run;

/// Trains a rank's part of the state.
pub(crate) fn train_rank(
    (flags, training): (&Arguments, &Training),
    device: &ComputeDevice,
    comm: SharedCommunicator,
    run: &Run,
    report: Report<'_>,
) -> Result<Trained, Error> {
    let slow = run.facts.slow.as_ref();
    let counted = Counted::new(slow.map_or(comm.clone(), |slow| slow.slow_down(comm)));
    let (comm, sent) = (counted.shared(), || counted.sent());
    let Run { mesh, checked, cut, .. } = run;
    let group = mesh.along(&comm, Axis::Tensor)?;
    let settings = Settings { algorithm: Algorithm::Ring, ..Settings::of(&training.layers) };
    let (sample, adamw) = (training.sample(), (&mut AdamW::default() as _, flags.warm_up));
    let mut checkpoints = flags.checkpoints.clone();
    let of_model = ("model", training.layers.name().to_owned());
    checkpoints.iter_mut().for_each(|it| it.configuration.extend([of_model.clone()]));
    let build = |unit: usize| training.build(&cut[unit], device, &group);
    let sharing = run.facts.strategy.sharing;
    if sharing == Sharing::Ddp {
        let units = (0..cut.len()).map(build).collect::<Result<_, _>>()?;
        let executor = Executor::new(checked, units, comm, *mesh, sample, settings)?;
        let parts = || Ok(executor.weights().snapshot()?);
        let of_ddp = ("sharing", "ddp".to_owned());
        checkpoints.iter_mut().for_each(|it| it.configuration.extend([of_ddp.clone()]));
        let store = checkpoints.as_ref().map(|it| it as &dyn Store);
        return Trained::with((&executor, &group), training, adamw, store, (parts, sent), report);
    }
    let unit = |unit, replicas: &_| Sharded::new(unit, build(unit)?, replicas);
    let executor = Executor::of_units(checked, comm, *mesh, sample, settings, unit)?;
    let parts = || executor.units().map(Sharded::whole).flatten_ok().collect();
    let sets = checkpoints.map(|it| Sets::new(it, sharing, &executor)).transpose()?;
    let store = sets.as_ref().map(|it| it as &dyn Store);
    Trained::with((&executor, &group), training, adamw, store, (parts, sent), report)
}

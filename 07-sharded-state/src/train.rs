//! A run, on one of its ranks.

use std::sync::Arc;

use concise_wrapper::counted::Counted;
use concise_wrapper::optimizer::AdamW;
use concise_wrapper::slow_link::SlowNetwork;
use concise_wrapper::{Error, Model as _, Store};
use devices::ComputeDevice;
use harness::report::{Report, trace};
use itertools::Itertools as _;
use model_parallel::execute::{Executor, Settings};
use model_parallel::mesh::Axis;
use model_parallel::runs::{Trained, Training};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;
use sharded_state::{Sets, Sharded, Sharing};

use crate::plan::{Prepared, Run};

/// Trains a rank's part of the state.
pub(crate) fn train_rank(
    device: &ComputeDevice,
    comm: SharedCommunicator,
    (run, prepared, slow, report): (&Run, &Prepared, Option<&Arc<SlowNetwork>>, Report<'_>),
) -> Result<Trained, Error> {
    let _rank = trace::rank(&run.name, comm.rank(), device);
    let counted = Counted::new(slow.map_or(comm.clone(), |slow| slow.slow_down(comm)));
    let comm = counted.shared();
    let Prepared { flags, training, .. } = prepared;
    let Training { layers, setup, .. } = training;
    training.compare(&comm, &run.name, String::new())?;
    let Run { strategy, mesh, checked, .. } = run;
    let group = mesh.along(&comm, Axis::Tensor)?;
    let settings = Settings { algorithm: Algorithm::Ring, ..Settings::of(layers) };
    let (seed, dtype, sent) = (setup.options.seed, setup.dtype, || counted.sent());
    let (sample, mut adamw) = (training.sample(), AdamW::default());
    let adamw = (&mut adamw as _, flags.warm_up);
    let mut checkpoints = flags.checkpoints.clone();
    let of_model = ("model", layers.name().to_owned());
    checkpoints.iter_mut().for_each(|it| it.configuration.extend([of_model.clone()]));
    let build = |unit| layers.build_part(unit..unit + 1, seed, dtype, device.tensors(), &group);
    if strategy.sharing == Sharing::Ddp {
        let units = (0..layers.len()).map(build).collect::<Result<_, _>>()?;
        let executor = Executor::new(checked, units, comm, *mesh, sample, settings)?;
        let whole = || executor.whole(layers.join(executor.weights().snapshot()?, &group)?);
        let of_ddp = ("sharing", "ddp".to_owned());
        checkpoints.iter_mut().for_each(|it| it.configuration.extend([of_ddp.clone()]));
        let store = checkpoints.as_ref().map(|it| it as &dyn Store);
        return Trained::with(&executor, setup, adamw, store, (whole, sent), report);
    }
    let unit = |unit, replicas: &_| Sharded::new(unit, build(unit)?, replicas);
    let executor = Executor::of_units(checked, comm, *mesh, sample, settings, unit)?;
    let whole = || {
        let parts = executor.units().map(Sharded::whole).flatten_ok().collect::<Result<_, _>>()?;
        executor.whole(layers.join(parts, &group)?)
    };
    let sets = checkpoints.map(|it| Sets::new(it, strategy.sharing, &executor)).transpose()?;
    let store = sets.as_ref().map(|it| it as &dyn Store);
    Trained::with(&executor, setup, adamw, store, (whole, sent), report)
}

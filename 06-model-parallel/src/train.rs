//! Training in one way, on one of its ranks.

use concise_wrapper::{Error, Model as _};
use devices::ComputeDevice;
use harness::report::Report;
use harness::report::trace;
use model_parallel::execute::{Executor, Settings};
use model_parallel::mesh::Axis;
use model_parallel::runs::{Trained, Training};
use params_and_allreduce::communicator::SharedCommunicator;

use crate::plan::{Prepared, Way};

/// Trains a stage, or a part of a stage, and returns the results on rank 0.
pub(crate) fn train_rank(
    device: &ComputeDevice,
    all: SharedCommunicator,
    (way, prepared, report): (&Way, &Prepared, Report<'_>),
) -> Result<Trained, Error> {
    let _rank = trace::rank(&way.name, all.rank(), device);
    let Prepared { flags, training, .. } = prepared;
    let Training { layers, setup, .. } = training;
    training.compare(&all, &way.name, format!("{:?}", way.cut))?;
    let Way { mesh, checked, .. } = way;
    let group = mesh.along(&all, Axis::Tensor)?;
    let build = |part: usize| {
        let range = way.cut[part].clone();
        layers.build_part(range, setup.options.seed, setup.dtype, device.tensors(), &group)
    };
    let units = checked.schedule().units_of(mesh.coordinate(all.rank(), Axis::Pipeline));
    let units = units.map(build).collect::<Result<_, _>>()?;
    let settings = Settings { by_shards: way.by_shards, ..Settings::of(layers) };
    let executor = Executor::with(checked, units, all.clone(), *mesh, training.sample(), settings)?;
    let (mut optimizer, warm_up) = (flags.optimizer(), flags.extras.warm_up);
    let whole = || executor.whole(layers.join(executor.weights().snapshot()?, &group)?);
    Trained::with(&executor, setup, (&mut *optimizer, warm_up), None, (whole, || 0), report)
}
